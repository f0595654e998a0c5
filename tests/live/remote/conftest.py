"""Servers and connections that end with the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.load import load
from fleetctl.remote.connection import Connection
from fleetctl.remote.target import SshTarget
from tests.live.remote.sshd import SSHD, Server


@pytest.fixture(scope="session")
def sshd_available() -> None:
    if not Path(SSHD).exists():
        pytest.skip(
            "openssh-server is not installed (apt-get install openssh-server): the remote layer cannot be tested"
        )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)


@pytest.fixture(scope="session")
def server(sshd_available: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An sshd that tests do not harm."""
    server = Server(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def make_server(sshd_available: None, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes an sshd for this test alone."""
    made: list[Server] = []

    def make(**options: object) -> Server:
        made.append(Server(tmp_path / f"sshd{len(made)}", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """An unopened connection to the shared server."""
    connection = Connection(server.target)
    yield connection
    connection.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., Connection]]:
    """Makes a connection to a target, with changes to it."""
    made: list[Connection] = []

    def make(target: SshTarget, **changes: object) -> Connection:
        made.append(Connection(replace(target, **changes)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for connection in made:
        connection.close()


@pytest.fixture
def fleet() -> Fleet:
    """The shipped inventory."""
    return load(Path(__file__).parents[3] / "inventory.yaml")
