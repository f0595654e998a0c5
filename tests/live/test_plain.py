"""Issue 2, section H: the mode without Lua, on an nginx that loads no module."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from fleetctl.balancer import config, lint, peers, plain
from fleetctl.balancer.peers import Peer, PeerState
from tests.live.conftest import table
from tests.live.servers import NGINX, Answer, Backend, eventually, fleet, free_port, request

Ask = Callable[..., Answer]


@pytest.fixture
def plain_balancer() -> Iterator[Callable[..., tuple[Ask, int, dict[str, str]]]]:
    folder = Path(tempfile.mkdtemp(prefix="fleetctl-plain-"))
    folder.chmod(0o755)
    running: list[subprocess.Popen[bytes]] = []

    def start(table: list[Peer], **settings: object) -> tuple[Ask, int, dict[str, str]]:
        port, state = free_port(), free_port()
        where = PurePosixPath(folder)
        places = config.Places(
            where, where, where / "pid", f"127.0.0.1:{port}", f"127.0.0.1:{state}", where / "api-key"
        )
        files = plain.render(fleet(mode="plain", **settings), config.PLAIN, table, places)
        (folder / "nginx.conf").write_text(files["nginx.conf"])
        running.append(subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]))

        def answers() -> bool:
            try:
                return request(state, "/state").status == 200
            except OSError:
                return False

        eventually(answers)
        return (lambda path="/v1/models", **more: request(port, path, **more)), state, files

    yield start
    for process in running:
        process.terminate()
        process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_session_stays_and_a_lost_backend_loses_no_request(
    plain_balancer: Callable[..., tuple[Ask, int, dict[str, str]]], backends: list[Backend]
) -> None:
    ask, _, _ = plain_balancer(table(backends))
    homes = {}
    for number in range(40):
        first, second = (ask(headers={"X-Session-ID": f"s{number}"}) for _ in range(2))
        assert first.headers["x-upstream-addr"] == second.headers["x-upstream-addr"]
        homes[number] = first.headers["x-upstream-addr"]
    assert len(set(homes.values())) == 4
    backends[0].kill()
    for number, home in homes.items():
        answer = ask(headers={"X-Session-ID": f"s{number}"})
        assert answer.status == 200
        assert (answer.headers["x-upstream-addr"] == home) == (home != backends[0].address)


def test_the_key_falls_back_to_bearer_in_any_case(
    plain_balancer: Callable[..., tuple[Ask, int, dict[str, str]]], backends: list[Backend]
) -> None:
    ask, _, _ = plain_balancer(table(backends))
    seen = {
        ask(headers={"Authorization": f"{scheme} token"}).headers["x-upstream-addr"]
        for scheme in ("Bearer", "bearer", "BEARER")
    }
    assert seen == {ask(headers={"X-Session-ID": "token"}).headers["x-upstream-addr"]}


def test_the_edge_is_the_same(
    plain_balancer: Callable[..., tuple[Ask, int, dict[str, str]]], backends: list[Backend]
) -> None:
    ask, state, files = plain_balancer(table(backends))
    answer = ask("/invocations")
    assert (answer.status, answer.json["error"]["code"]) == (404, 404)
    preflight = ask(
        "/v1/chat/completions", method="OPTIONS", headers={"Access-Control-Request-Headers": "x-stainless-os"}
    )
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-headers"] == "x-stainless-os"
    assert [v for n, v in ask().raw_headers if n.lower() == "access-control-allow-origin"] == ["*"]
    document = request(state, "/state").json
    assert document["config"] == plain.loaded_as(files)
    assert document["version"] == peers.version(peers.render(table(backends)))
    for backend in backends:
        backend.kill()
    assert ask().json["error"]["code"] == 502


def test_a_drained_backend_gets_nothing_and_zero_backends_load(
    plain_balancer: Callable[..., tuple[Ask, int, dict[str, str]]], backends: list[Backend]
) -> None:
    drained = [
        Peer(p.id, p.address, state=PeerState.DRAIN if p.id == "69/0" else PeerState.UP) for p in table(backends)
    ]
    ask, _, _ = plain_balancer(drained, affinity="least_conn")
    assert {ask().status for _ in range(12)} == {200}
    assert not backends[0].seen
    nowhere, _, _ = plain_balancer([])
    assert nowhere().status == 502


def test_it_passes_the_same_checks() -> None:
    made = plain.render(fleet(mode="plain"), config.PLAIN, [Peer("69/0", "[fd00::1]:8000")])
    assert lint.check(made).problems == ()
