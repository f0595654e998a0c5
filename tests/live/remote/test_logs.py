"""`logs -f` over a real connection, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.remote.sshd import Server, of_process, wait_until

FOLLOWER = """
import signal, sys
from types import SimpleNamespace
# Somebody who starts tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from fleetctl.cli import app, read
from fleetctl.interrupt import ended_by_signals
from fleetctl.remote.fanout import Connections
from fleetctl.remote.target import SshTarget
port, user, key, known, *commands = sys.argv[1:]
targets = [SshTarget(i, "127.0.0.1", int(port), user, key, agent="none", known_hosts=(known,), sudo=False)
           for i, _ in enumerate(commands)]

def follow():
    with Connections(targets) as connections:
        session = SimpleNamespace(connections=connections, say=print)
        wanted = [(f"67/{i}", i, command) for i, command in enumerate(commands)]
        return read._print_logs(session, wanted, probes=True)

with ended_by_signals():
    sys.exit(app._guarded(follow, []))
"""


@pytest.fixture
def followed() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `logs` with these commands, each on a connection of its own; it is gone after the test."""
    running: list[subprocess.Popen[str]] = []

    def start(server: Server, *commands: str) -> subprocess.Popen[str]:
        target = server.target
        words = [str(target.port), target.user, str(target.key), target.known_hosts[0], *commands]
        process = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def runs(text: bytes) -> bool:
    """Whether any process has `text` in its command line."""
    return any(text in of_process(int(each.name), "cmdline") for each in Path("/proc").glob("[0-9]*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_ends_what_follows_here_and_on_the_machine(
    make_server: Callable[..., Server],
    followed: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    server = make_server()
    files = [tmp_path / "one.log", tmp_path / "two.log"]
    for file in files:
        file.write_text(f"{file.name} speaks\n")
    process = followed(server, *(f"exec tail -n 5 -F {file}" for file in files))
    assert process.stdout is not None
    seen = {process.stdout.readline() for _ in files}
    assert seen == {"[67/0] one.log speaks\n", "[67/1] two.log speaks\n"}
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")
    # Its parent may be gone already, so not of the server's descendants alone.
    wait_until(lambda: not any(runs(str(file).encode()) for file in files))


def test_what_one_machine_says_is_shown_whole_when_another_fails(
    make_server: Callable[..., Server], followed: Callable[..., subprocess.Popen[str]]
) -> None:
    server = make_server()
    # The first ends its own connection.
    process = followed(server, "kill $PPID; sleep 5", "sleep 1; echo late")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (4, "[67/1] late\n"), err
