from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.balancer.peers import Peer
from tests.live import servers


def _has_lua() -> bool:
    return Path(servers.NGINX).exists() and Path("/usr/lib/nginx/modules/ngx_http_lua_module.so").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not _has_lua():
        missing = pytest.mark.skip(reason="needs nginx with the Lua module: nginx-light libnginx-mod-http-lua")
        for item in items:
            if Path(item.path).parent == Path(__file__).parent:
                item.add_marker(missing)


Start = Callable[..., servers.Balancer]


@pytest.fixture
def backends() -> Iterator[list[servers.Backend]]:
    """Four backends that answer."""
    four = [servers.Backend() for _ in range(4)]
    yield four
    for backend in four:
        backend.resume.set()
        backend.kill()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts balancers that are gone after the test."""
    running: list[tuple[servers.Balancer, Path]] = []

    def make(table: list[Peer], **settings: Any) -> servers.Balancer:
        folder = Path(tempfile.mkdtemp(prefix="fleetctl-live-"))
        balancer = servers.make(folder, table, **settings)
        running.append((balancer, folder))
        return balancer

    yield make
    for balancer, folder in running:
        try:
            balancer.stop()
        except subprocess.TimeoutExpired:
            assert balancer.process is not None
            balancer.process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def table(backends: list[servers.Backend]) -> list[Peer]:
    return [Peer(f"69/{index}", backend.address) for index, backend in enumerate(backends)]
