"""The nearest of the words that would have been right, for errors that offer it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word most like `word`, None when nothing is near; `_` and `-` count as the same."""
    plain = {_plain(one): one for one in reversed(list(known))}
    found = difflib.get_close_matches(_plain(word[:200]), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")
