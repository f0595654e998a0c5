"""The nearest of the words that would have been right, for errors that offer it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word most like `word`, None when nothing is near; `_` and `-` count as the same."""
    plain = {_plain(one): one for one in reversed(list(known))}
    # Two letters that changed places are likelier than one that is another: 76/1 was to be 67/1 and not 69/1.
    swapped = [one for one in plain if sorted(one) == sorted(_plain(word[:200]))]
    found = swapped[:1] or difflib.get_close_matches(_plain(word[:200]), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")
