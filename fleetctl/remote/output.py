"""What a command prints, collected as bytes and handed on as lines."""

from __future__ import annotations

import codecs
from collections.abc import Callable

TAIL = 65_536  # bytes kept of output that somebody follows line by line


class Output:
    """One stream of a command. With `on_line` each line is passed on as it comes and only the last 64 KiB are kept."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._on_line is None:
            return
        if self._size > 2 * TAIL:
            self._chunks = [b"".join(self._chunks)[-TAIL:]]
            self._size = TAIL
        self._pass_on(self._rest + self._decoder.decode(data), self._on_line)

    def end(self) -> None:
        """Pass on a last line that no newline ended."""
        if self._on_line is not None and (last := self._rest + self._decoder.decode(b"", final=True)):
            self._rest = ""
            self._on_line(last)

    def text(self) -> str:
        """The output as UTF-8; bytes that are none become U+FFFD."""
        return b"".join(self._chunks).decode("utf-8", errors="replace")

    def _pass_on(self, text: str, on_line: Callable[[str], None]) -> None:
        *lines, self._rest = text.split("\n")
        for line in lines:
            on_line(line)
