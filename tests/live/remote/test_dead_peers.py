"""Whatever a connection waits for, a peer that is frozen is found within 10 s; one that is slow is not cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from fleetctl.errors import FleetctlError, UnreachableError
from fleetctl.remote.connection import Connection
from fleetctl.remote.fanout import Connections
from tests.live.remote.sshd import Server, wait_until

LIMIT = 10.0
PATIENT_CLIENT = """
import sys
from fleetctl.remote.connection import Connection
from fleetctl.remote.target import SshTarget
connection = Connection(SshTarget(67, "127.0.0.1", int(sys.argv[1]), sys.argv[2], sys.argv[3], agent="none",
                                  known_hosts=(sys.argv[4],), sudo=False))
connection.open()
print("open", flush=True)
print(connection.run("sleep 8.9; echo whole", timeout=30).stdout, end="", flush=True)
"""


class Case:
    """One call in a thread of its own; `error` and `seconds` tell how it ended."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._call = call
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        started = time.monotonic()
        try:
            self._call()
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - started


def raise_all(failures: dict[int, FleetctlError]) -> None:
    """Raises one of the failures; each has to be of its own machine."""
    assert [error.machine for error in failures.values()] == [1, 2, 3]
    raise failures[3]


def test_frozen_peers_are_found_and_slow_ones_are_not_cut_off(make_server: Callable[..., Server]) -> None:
    """All cases at once, because each of them takes its eight seconds."""
    frozen, listener, hop, healthy = (make_server() for _ in range(4))
    patient = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PATIENT_CLIENT,
            str(healthy.port),
            healthy.target.user,
            str(healthy.user_key),
            str(healthy.known_hosts),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    idle, busy, feeding = (Connection(frozen.target) for _ in range(3))
    through = Connection(replace(healthy.target, jump=replace(hop.target, is_jump=True)))
    slow = Connection(healthy.target)
    for connection in (idle, busy, feeding, through, slow):
        connection.open()
    jump = replace(listener.target, is_jump=True)
    behind = Connections(replace(healthy.target, id=i, jump=replace(jump, id=i)) for i in (1, 2, 3))
    cases = [
        Case("before the first call", lambda: idle.run("true", timeout=60)),
        Case("in the middle of a call", lambda: busy.run("sleep 77", timeout=60)),
        Case("while input is sent", lambda: feeding.run("sleep 78", stdin=b"x" * 50_000_000, timeout=60)),
        Case("a jump host on the way", lambda: through.run("sleep 79", timeout=60)),
        Case("before the connection", lambda: Connection(listener.target).open()),
        Case("behind a jump host that is frozen", lambda: raise_all(behind.open())),
    ]
    for case in cases[1:4]:
        case.thread.start()
    wait_until(lambda: frozen.runs(b"77") and frozen.runs(b"78") and healthy.runs(b"79"))
    assert patient.stdout is not None
    assert patient.stdout.readline() == "open\n"
    quiet = Case("a quiet script", lambda: slow.run("sleep 8.8", timeout=60))
    quiet.thread.start()
    wait_until(lambda: healthy.runs(b"8.8") and healthy.runs(b"8.9"))

    frozen.signal(signal.SIGSTOP)
    hop.signal(signal.SIGSTOP)
    os.kill(listener.process.pid, signal.SIGSTOP)
    patient.send_signal(signal.SIGSTOP)  # Ctrl-Z: it is we who are frozen, not the peer
    froze = time.monotonic()
    cases[0].thread.start()
    cases[4].thread.start()
    cases[5].thread.start()
    for case in cases:
        case.thread.join(max(froze + LIMIT - time.monotonic(), 0))
        assert not case.thread.is_alive(), f"{case.name}: not found within {LIMIT:g} s"
        assert isinstance(case.error, UnreachableError), f"{case.name}: {case.error!r}"
    patient.send_signal(signal.SIGCONT)
    quiet.thread.join(5)
    assert quiet.error is None, "a living machine with a quiet script was cut off"
    assert patient.communicate(timeout=10)[0] == "whole\n"

    for connection in (idle, busy, feeding, through, slow):
        started = time.monotonic()
        connection.close()
        assert time.monotonic() - started < 1
    assert "may still be running" in str(cases[1].error)
    assert "nothing was started" in str(cases[4].error)
    os.kill(listener.process.pid, signal.SIGCONT)
