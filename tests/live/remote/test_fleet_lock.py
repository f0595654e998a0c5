"""Commands that hold the fleet's lock over a real connection, and what ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.remote.sshd import Server, wait_until

# Somebody who starts tests in the background has SIGINT ignored.
HOLDER = """
import signal, sys, time
from pathlib import Path, PurePosixPath
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.argv[6] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
from fleetctl.interrupt import ended_by_signals
from fleetctl.commands import paths
from fleetctl.fleet.load import load
from fleetctl.plan import lock
from fleetctl.remote.fanout import Connections
from fleetctl.remote.target import SshTarget
paths.fleet_lock = lambda fleet: PurePosixPath(sys.argv[5])
lock.HEARTBEAT = 0.1
target = SshTarget(69, "127.0.0.1", int(sys.argv[1]), sys.argv[2], sys.argv[3], agent="none",
                   known_hosts=(sys.argv[4],), sudo=False)
say = lambda where, words: print(words, flush=True)
try:
    with ended_by_signals(), Connections([target]) as machines, \\
            lock.FleetLock(load(Path(sys.argv[7])), machines, "rollout", say) as held:
        held.wait()
        print("held", flush=True)
        machines.map(lambda connection: connection.run("sleep 30", timeout=60))
except KeyboardInterrupt:
    sys.exit(130)
"""
INVENTORY = Path(__file__).parents[3] / "inventory.yaml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "f.fleet-lock"


@pytest.fixture
def hold(server: Server, file: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command that holds the lock; it has said so."""
    running: list[subprocess.Popen[str]] = []

    def start(mode: str = "", server: Server = server) -> subprocess.Popen[str]:
        target = server.target
        words = [str(target.port), target.user, str(target.key), target.known_hosts[0], str(file), mode, str(INVENTORY)]
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        running.append(process)
        assert process.stdout is not None
        said = process.stdout.readline()
        while said and said != "held\n":
            said = process.stdout.readline()
        assert said == "held\n", process.stderr.read() if process.stderr else ""
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def holds(file: Path) -> bool:
    return "token=" in file.read_text()


def beats(file: Path) -> str:
    return next((line for line in file.read_text().splitlines() if line.startswith("beat=")), "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_let_go_on_ctrl_c_sigterm_and_a_closed_terminal(
    hold: Callable[..., subprocess.Popen[str]], file: Path, number: signal.Signals
) -> None:
    process = hold()
    assert holds(file)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")
    assert not holds(file)


def test_a_command_under_nohup_survives_its_terminal(hold: Callable[..., subprocess.Popen[str]], file: Path) -> None:
    process = hold("nohup")
    process.send_signal(signal.SIGHUP)
    before = beats(file)
    wait_until(lambda: beats(file) != before)
    assert process.poll() is None


def test_after_sigkill_the_next_command_of_the_same_computer_has_it_at_once(
    hold: Callable[..., subprocess.Popen[str]], file: Path
) -> None:
    process = hold()
    process.kill()
    process.wait()
    assert holds(file)
    hold()


def test_heartbeats_find_their_way_over_a_new_connection(
    hold: Callable[..., subprocess.Popen[str]], file: Path, make_server: Callable[..., Server]
) -> None:
    server = make_server()
    hold("", server)
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    before = beats(file)
    wait_until(lambda: beats(file) != before)
