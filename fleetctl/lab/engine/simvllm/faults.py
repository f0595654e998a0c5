"""Faults on demand: words in a file of the host or of the container, read at start and every second."""

from __future__ import annotations

import contextlib
from pathlib import Path

from . import rooted

FOLDER = "/usr/local/Ascend/driver/lab-faults"
WORDS = frozenset(
    ("hang", "exit0", "exit1", "slow-start", "garbled", "mtp0", "late-release", "unhealthy", "wrong-answers")
)


class Faults:
    """The words in force. The host's file is named by `--port`; /run/fault is the container's own."""

    def __init__(self, port: int) -> None:
        self._files = (rooted(f"{FOLDER}/{port}"), rooted("/run/fault"))
        self.words: frozenset[str] = frozenset()
        self.read()

    def __contains__(self, word: str) -> bool:
        return word in self.words

    def read(self) -> None:
        self.words = frozenset(word for path in self._files for word in _read(path).split()) & WORDS

    def exit_code(self) -> int | None:
        """The status to end with, None while the engine lives on."""
        return 1 if "exit1" in self.words else 0 if "exit0" in self.words else None

    def spent(self) -> None:
        """An exit happens once: the container's own file goes, the host's file is read-only here."""
        with contextlib.suppress(OSError):
            Path(self._files[1]).unlink()


def load_seconds(default: float) -> float:
    """Seconds to load, from the host's lab-faults/load-seconds when that is there."""
    try:
        return float(_read(rooted(f"{FOLDER}/load-seconds")))
    except ValueError:
        return default


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
