"""Many machines at once: parallel, one bad machine is one row, nothing holds up the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleetctl.errors import HostKeyError, UnreachableError
from fleetctl.remote.connection import Connection, Result
from fleetctl.remote.fanout import Connections
from tests.live.remote.sshd import Server, wait_until

INTERRUPTED_CLIENT = """
import signal
import sys
# Somebody who starts tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from fleetctl.remote.fanout import Connections
from fleetctl.remote.target import SshTarget
targets = [SshTarget(i, "127.0.0.1", int(sys.argv[1]), sys.argv[2], sys.argv[3], agent="none",
                     known_hosts=(sys.argv[4],), sudo=False) for i in (1, 2, 3)]
try:
    with Connections(targets) as connections:
        connections.open()
        print("open", flush=True)
        connections.map(lambda c: c.run("sleep 30", timeout=60))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_sixteen_machines_answer_in_order_and_in_parallel(server: Server) -> None:
    targets = [replace(server.target, id=i) for i in range(1, 17)]
    with Connections(targets) as connections:
        assert connections.open() == {}
        started = time.monotonic()
        rows = connections.map(lambda c: c.run(f"sleep 0.5; echo {c.target.id}", timeout=10))
        seconds = time.monotonic() - started
    assert list(rows) == list(range(1, 17))
    assert [row.stdout for row in rows.values() if isinstance(row, Result)] == [f"{i}\n" for i in range(1, 17)]
    assert seconds < 4


def test_a_connection_that_was_begun_is_the_one_that_is_used(make_server: Callable[..., Server]) -> None:
    server = make_server()
    dead = replace(server.target, id=2, port=1)
    with Connections([server.target, dead]) as connections:
        connections.begin()
        rows = connections.map(lambda c: c.run("true", timeout=10))
        assert isinstance(rows[67], Result)
        assert isinstance(rows[2], UnreachableError)
        assert len(server.sessions()) <= 2
    wait_until(lambda: not server.sessions())


def test_one_connection_a_machine_is_kept(make_server: Callable[..., Server]) -> None:
    server = make_server()
    with Connections([server.target]) as connections:
        for _ in range(3):
            connections.map(lambda c: c.run("true", timeout=10))
        connections[67].run("true", timeout=10)
        assert len(server.sessions()) <= 2  # a monitor and its child, when not root
    wait_until(lambda: not server.sessions())


def test_a_bad_machine_is_one_row(server: Server) -> None:
    targets = [
        server.target,
        replace(server.target, id=66, port=1),
        replace(server.target, id=68, known_hosts=()),
    ]
    with Connections(targets) as connections:
        rows = connections.map(lambda c: c.run("echo ok", timeout=10))
        assert isinstance(rows[67], Result)
        assert isinstance(rows[66], UnreachableError)
        assert isinstance(rows[68], HostKeyError)
        assert list(connections.map(lambda c: c.target.id, [68, 67])) == [68, 67]
        assert set(connections.open()) == {66, 68}


def test_a_bug_is_raised_after_every_machine_has_answered(server: Server) -> None:
    done: list[int] = []

    def work(connection: Connection) -> None:
        if connection.target.id == 1:
            raise ZeroDivisionError
        connection.run("sleep 0.3", timeout=10)
        done.append(connection.target.id)

    with Connections([replace(server.target, id=i) for i in (1, 2)]) as connections, pytest.raises(ZeroDivisionError):
        connections.map(work)
    assert done == [2]


def test_machines_behind_one_jump_host_share_its_connection(make_server: Callable[..., Server]) -> None:
    hop, end = make_server(options=("LogLevel VERBOSE",)), make_server()
    targets = [replace(end.target, id=i, jump=replace(hop.target, id=i, is_jump=True)) for i in (1, 2, 3)]
    with Connections(targets) as connections:
        rows = connections.map(lambda c: c.run("echo ok", timeout=10))
    assert [row.stdout for row in rows.values() if isinstance(row, Result)] == ["ok\n"] * 3
    assert (hop.folder / "log").read_text().count("Accepted publickey") == 1


def test_a_jump_host_that_may_not_forward_is_named(make_server: Callable[..., Server]) -> None:
    hop, end = make_server(options=("AllowTcpForwarding no",)), make_server()
    with Connections([replace(end.target, jump=replace(hop.target, is_jump=True))]) as connections:
        error = connections.open()[67]
    assert isinstance(error, UnreachableError)
    assert f"through jump host 127.0.0.1:{hop.port}: forwarding is not allowed there" in error.cause


def test_a_dead_machine_behind_a_jump_host_is_told_from_a_dead_jump_host(server: Server) -> None:
    behind = replace(server.target, port=1, jump=replace(server.target, is_jump=True))
    through = replace(server.target, jump=replace(server.target, port=1, is_jump=True))
    with Connections([replace(behind, id=1), replace(through, id=2)]) as connections:
        errors = connections.open()
    assert "cannot reach 127.0.0.1:1 through jump host" in errors[1].cause
    assert "cannot reach jump host 127.0.0.1:1: connection refused" in errors[2].cause


def test_a_proxy_command_is_a_way_too(make_server: Callable[..., Server]) -> None:
    hop, end = make_server(), make_server()
    command = (
        f"ssh -F none -i {hop.user_key} -p {hop.port} -o UserKnownHostsFile={hop.known_hosts} "
        f"-o BatchMode=yes -W 127.0.0.1:{end.port} {hop.target.user}@127.0.0.1 2>/dev/null"
    )
    with Connections([replace(end.target, proxy_command=command)]) as connections:
        row = connections.map(lambda c: c.run("echo ok", timeout=10))[67]
    assert isinstance(row, Result)
    wait_until(lambda: not hop.sessions())


def test_a_proxy_command_that_ends_is_found_at_once(server: Server) -> None:
    started = time.monotonic()
    with Connections([replace(server.target, proxy_command="exit 1")]) as connections:
        assert "the ProxyCommand ended: exit 1" in connections.open()[67].cause
    assert time.monotonic() - started < 4


def test_ctrl_c_ends_at_once_and_quietly(server: Server) -> None:
    target = server.target
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            INTERRUPTED_CLIENT,
            str(target.port),
            target.user,
            str(target.key),
            target.known_hosts[0],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 130
    assert time.monotonic() - started < 3


def test_nothing_is_connected_after_the_end(server: Server) -> None:
    with Connections([server.target]) as connections:
        connection = connections[67]
    with pytest.raises(UnreachableError, match="closed here"):
        connection.run("true", timeout=10)
    assert Path(server.folder).exists()
