"""Log lines in vLLM's form, on stdout, each flushed: the journal is what operators read."""

from __future__ import annotations

import os
import sys
import time


def line(level: str, where: str, message: str, process: str = "APIServer") -> None:
    """One line such as `(APIServer pid=1) INFO 11-30 06:05:12 [api_server.py:1971] message`."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    plain(f"({process} pid={os.getpid()}) {level} {stamp} [{where}] {message}")


def info(where: str, message: str, process: str = "APIServer") -> None:
    line("INFO", where, message, process)


def warning(where: str, message: str, process: str = "APIServer") -> None:
    line("WARNING", where, message, process)


def uvicorn(message: str) -> None:
    """A line of the HTTP server, which has no timestamp."""
    plain(f"(APIServer pid={os.getpid()}) INFO:     {message}")


def plain(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def traceback(process: str, *lines: str) -> None:
    """An exception as the real log shows it: every line prefixed, the last one is the cause."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    for text in ("Traceback (most recent call last):", *lines):
        plain(f"({process} pid={os.getpid()}) ERROR {stamp} [core.py:1100] {text}")
