"""Finds a peer that is dead or frozen, whatever the connection is waiting for at that moment.

Nothing in paramiko does: exec and global requests wait without any limit (facts/feasibility, section 5). Closing
the transport wakes every waiter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetctl.remote.transport import Transport

TICK = 0.5
QUIET = 2.0  # seconds without a packet until the peer is asked for life
SILENT = 8.0  # seconds without a packet until it counts as dead
NUDGES = (*[0.004] * 8, 0.02, 0.03)  # pauses in seconds; measured on loopback: 85 -> 31 ms to the first answer


class Watch:
    """One daemon thread a connection; costs a wake-up every half second."""

    def __init__(self, transport: Transport) -> None:
        self.found_dead = False
        self._transport = transport
        self._stopped = threading.Event()
        self._settled = threading.Event()
        self._asking: threading.Thread | None = None
        threading.Thread(target=self._run, name="fleetctl-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._settled.set()

    def settle(self) -> None:
        """The first answer came: no more nudges."""
        self._settled.set()

    def _run(self) -> None:
        self._nudge()
        last = start = time.monotonic()
        while not self._stopped.wait(TICK) and self._transport.is_active():
            now = time.monotonic()
            if now - last > 4 * TICK:
                start = now  # we ourselves stood still (Ctrl-Z, a suspended laptop): the peer gets its time anew
            last = now
            silence = now - max(start, self._transport.heard)
            if silence > SILENT:
                self.found_dead = True
                _ignore_failure(self._transport.close)
            elif silence > QUIET:
                self._ask()

    def _ask(self) -> None:
        # Sending blocks once a dead peer's socket buffer is full, so it is not done in the thread that keeps time.
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=_ignore_failure, args=(self._transport.ask_for_life,), daemon=True)
            self._asking.start()

    def _nudge(self) -> None:
        """Junk packets after the login carry the ACK that sshd's Nagle waits for: 40 ms less for the first command."""
        for pause in NUDGES:
            if self._settled.wait(pause):
                return
            _ignore_failure(self._transport.send_ignore)


def _ignore_failure(send: Callable[[], None]) -> None:
    """A packet that cannot be sent says what the silence will say."""
    with suppress(Exception):
        send()
