"""Shell that runs on machines, as a value: a POSIX sh file of `scripts/` plus its quoted arguments.

Builders return scripts and never run anything, so every command line is tested as a string. Secrets are never
arguments: they travel on a script's standard input.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

SCRIPTS = Path(__file__).parent / "scripts"
Word = str | int | PurePosixPath


def quote(word: Word) -> str:
    """One shell word, whatever it contains. A bool or None here is a programming error.

    Raises TypeError for anything that is not a string, an integer or a path.
    """
    if isinstance(word, bool) or not isinstance(word, str | int | PurePosixPath):
        raise TypeError(f"cannot quote {type(word).__name__} for the shell")
    return shlex.quote(str(word))


def words(argv: Iterable[Word]) -> str:
    """An argument vector as one shell line."""
    return " ".join(quote(word) for word in argv)


@cache
def body(name: str) -> str:
    """The text of `scripts/NAME.sh` without its comment header."""
    text = (SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    while lines and lines[0].startswith("#"):
        lines.pop(0)
    return "".join(lines)


@dataclass(frozen=True)
class Script:
    """A script file and its arguments. `fleet` given: it changes the machine and holds the machine's step lock.

    `patience`: seconds to wait for that lock. `uses`: scripts of functions that stand before it.
    """

    name: str
    args: tuple[Word, ...] = ()
    fleet: str | None = None
    patience: int = 600
    uses: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What `sh -c` gets."""
        head = f"set -eu\numask 022\nset -- {words(self.args)}\n"
        lock = f"fleet={quote(self.fleet)} patience={self.patience}\n{body('lock')}" if self.fleet is not None else ""
        return head + lock + "".join(map(body, self.uses)) + body(self.name)

    def __str__(self) -> str:
        return f"{self.name} {words(self.args)}".rstrip()


@dataclass(frozen=True)
class Inline(Script):
    """A script whose text comes from elsewhere, such as the balancer's shadow start; `name` says what it is."""

    source: str = ""

    @property
    def text(self) -> str:
        return self.source
