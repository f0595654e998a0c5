"""Mistakes as text: the place, the words, the line of the file and a caret, with everything secret masked.

Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from fleetctl.fleet.document import Document, Location, Mistake, Place

WIDEST = 160
MARGIN = "    "
MASK = "***"

# A word that announces a secret, up to the value that follows it on the same line.
_ANNOUNCED = re.compile(
    r"""((?:api[-_]?key|secret|passw(?:or)?d|token)["']?\s*[:=]\s+)(?![\s#{&*|>])\S.*$""", re.IGNORECASE
)
_ANY_VALUE = re.compile(r"(:\s+|^\s*-\s+)\S.*$")
_PASTED = re.compile(r"\b(sk|hf|ghp|glpat|xox[abp])([-_])[A-Za-z0-9_-]{6,}")


def render(name: str, document: Document, mistakes: Iterable[Mistake]) -> list[str]:
    """Each mistake once, in file order, as `name:line:col: key: message`, the line, and a caret."""
    ordered = sorted(dict.fromkeys(mistakes), key=_order)
    return [_rendered(name, document, mistake) for mistake in ordered]


def _order(mistake: Mistake) -> tuple[int, int]:
    return (mistake.place.line, mistake.place.column) if mistake.place else (0, 0)


def _rendered(name: str, document: Document, mistake: Mistake) -> str:
    key = spoken(mistake.location)
    message = _PASTED.sub(rf"\1\2{MASK}", f"{key}: {mistake.message}" if key else mistake.message)
    if mistake.place is None:
        return f"{name}: {message}"
    head = f"{name}:{mistake.place.line}:{mistake.place.column}: {message}"
    if mistake.place.line > len(document.lines):
        return head
    line = document.lines[mistake.place.line - 1]
    if mistake.location[:1] == ("secrets",) and mistake.location in document.values:
        line = _ANY_VALUE.sub(rf"\1{MASK}", line, count=1)
    return "\n".join([head, *excerpt(line, mistake.place)])


def spoken(location: Location) -> str:
    """`machines[2].clean.units`, as people write it; keys that are not words are quoted."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if re.fullmatch(r"[\w{}./@*-]{1,60}", part) else repr(part[:60])
            text += f".{word}" if text else word
    return text


def masked(text: str) -> str:
    """The text without whatever looks like a key or is announced as one, wherever it was pasted."""
    return _PASTED.sub(rf"\1\2{MASK}", _ANNOUNCED.sub(rf"\1{MASK}", text))


def excerpt(line: str, place: Place) -> Iterator[str]:
    """The line, cut to a window where it is very long, and a caret below the column."""
    start = max(0, place.column - 1 - WIDEST // 2) if len(line) > WIDEST else 0
    shown = masked(line)[start : start + WIDEST]
    shown = "".join(one if one.isprintable() or one == "\t" else "\ufffd" for one in shown)
    yield f"{MARGIN}{shown}"
    before = place.column - 1 - start
    if before <= len(shown):
        yield MARGIN + "".join(map(_blank, shown[:before])) + "^"


def _blank(character: str) -> str:
    """Space as wide as the character: a caret below Chinese text still points at its mark."""
    if character == "\t":
        return "\t"
    if unicodedata.combining(character):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "
