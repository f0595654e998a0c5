"""The command line that runs a script as root with a time limit of its own."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

# One argument may be 128 KiB (Linux, MAX_ARG_STRLEN), and sshd hands the whole line to the user's shell as one.
LONGEST_LINE = 100_000
KILL_AFTER = 5  # seconds between TERM and KILL
SUDO_WORKS = "command -v sudo >/dev/null || exit 127; sudo -n /bin/sh -c :"


@dataclass(frozen=True)
class Command:
    """What sshd is asked to run, and what goes to its standard input."""

    line: str
    stdin: bytes


def command(script: str, stdin: bytes, *, sudo: bool, timeout: float) -> Command:
    """`script` as root through /bin/sh, `stdin` as its standard input, ended after `timeout` seconds.

    The limit is kept on the machine, so that nothing goes on there when it is over or when the connection is lost.
    A script too long for a command line is sent ahead of `stdin`: nothing is written to the machine's disk.
    """
    line = _line(script, sudo, timeout)
    if len(line.encode()) <= LONGEST_LINE:
        return Command(line, stdin)
    text = script.encode()
    reader = f'script=$(head -c {len(text)}; echo .); eval "${{script%.}}"'
    return Command(_line(reader, sudo, timeout), text + stdin)


def _line(script: str, sudo: bool, timeout: float) -> str:
    shell = f"/bin/sh -c {shlex.quote(script)}"
    if math.isfinite(timeout):
        shell = f"timeout -k {KILL_AFTER} {timeout:g} {shell}"
    return f"sudo -n /bin/sh -c {shlex.quote('exec ' + shell)}" if sudo else f"exec {shell}"
