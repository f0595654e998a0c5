"""Ctrl-C, SIGTERM and a closed terminal end every command alike: it lets go of what it holds, exit code 130."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

came = threading.Event()
"""Whether one has come: what is raised after that, from under an import say, may be it in another's clothes."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """The signals raise KeyboardInterrupt, with the name of the signal when it was none of the keyboard.

    One that somebody has ignored on purpose (nohup) stays ignored.
    """

    def end(number: int, frame: object) -> None:
        came.set()
        raise KeyboardInterrupt(*[] if number == signal.SIGINT else [signal.Signals(number).name])

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
