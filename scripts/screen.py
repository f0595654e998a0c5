"""One command as it looks in a terminal: python scripts/screen.py OUT.svg TITLE COMMAND ...

Run in a pseudo-terminal of 110 columns; the picture is drawn from what it wrote.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 110


def captured(command: list[str]) -> str:
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True, env=environment
    )
    os.close(inside)
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other side has closed it
            break
        if not piece:
            break
        pieces.append(piece)
    process.wait()
    return b"".join(pieces).decode(errors="replace")


def plain_lines(text: str) -> str:
    """What stays on the screen: progress bars are drawn and wiped."""
    text = re.sub(r"\x1b\[\?\d+[hl]|\x1b\[\d*[ABGJK]|\x1b\[K", "", text.replace("\r\n", "\n"))
    lines = [line.rsplit("\r", 1)[-1] for line in text.split("\n")]
    return "\n".join(line for line in lines if line.strip())


def main() -> None:
    out, title, *command = sys.argv[1:]
    screen = plain_lines(captured(command))
    shown = " ".join(["fleetctl", *command[1:]])
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {shown}", style="bold"))
    console.print(Text.from_ansi(screen))
    svg = console.export_svg(title=title, clear=False)
    # Fonts of other people's servers are not asked for: the reader's own monospace does.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, ", "")
    Path(out).write_text(svg, encoding="utf-8")
    Path(out).with_suffix(".txt").write_text(console.export_text(), encoding="utf-8")


main()
