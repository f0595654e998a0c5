"""While a fleet changes to another API key, on a real nginx: both are good, and each backend is sent the one it knows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer
from tests.live.conftest import Start, table
from tests.live.servers import KEY, Answer, Backend, Balancer, eventually

OLD = "sk-old-0123456789"
STRANGER = "sk-nobody-0123456789"


@pytest.fixture
def rotating(start: Start, backends: list[Backend]) -> Balancer:
    """The first two backends run with the old key still, the others with the new one."""
    for backend, key in zip(backends, (OLD, OLD, KEY, KEY), strict=True):
        backend.behaviour.keys = (key,)
    balancer = start(table(backends))
    (balancer.folder / "api-key.old").write_text(OLD + "\n")
    balancer.reload()
    eventually(lambda: keys(balancer) == ["old", "old", "new", "new"], 10)
    return balancer


def keys(balancer: Balancer) -> list[str | None]:
    return [row.get("key") for row in balancer.state()["peers"]]


def ask(balancer: Balancer, session: str, key: str) -> Answer:
    return balancer.ask(session, headers={"Authorization": f"bearer {key}"})


def statuses(balancer: Balancer, key: str, sessions: Sequence[str]) -> set[int]:
    return {ask(balancer, session, key).status for session in sessions}


def test_either_key_is_good_everywhere_and_no_other_is(rotating: Balancer, backends: list[Backend]) -> None:
    sessions = [f"s{number}" for number in range(40)]
    assert statuses(rotating, OLD, sessions) == {200}
    assert statuses(rotating, KEY, sessions) == {200}
    for backend, key in zip(backends, (OLD, OLD, KEY, KEY), strict=True):
        assert {seen.headers["authorization"] for seen in backend.seen} == {f"Bearer {key}"}
    assert statuses(rotating, STRANGER, sessions) == {401}
    assert rotating.ask("abc").status == 401


def test_a_retry_is_sent_the_key_of_the_other_backend(rotating: Balancer, backends: list[Backend]) -> None:
    peers = table(backends)
    moved = 0
    backends[0].kill()
    for number in range(200):
        decision = routing.route(f"m{number}", peers)
        assert decision is not None
        if decision.peer is peers[0] and decision.order[1] in peers[2:]:
            moved += 1
            assert ask(rotating, f"m{number}", OLD).status == 200
        if moved == 3:
            return
    raise AssertionError


def test_an_engine_that_comes_back_with_the_new_key_is_found_out(rotating: Balancer, backends: list[Backend]) -> None:
    backends[1].behaviour.keys = (KEY,)
    eventually(lambda: keys(rotating) == ["old", "new", "new", "new"], 10)
    assert statuses(rotating, OLD, [f"s{number}" for number in range(40)]) == {200}


def test_who_joins_meanwhile_has_the_new_key(rotating: Balancer, backends: list[Backend]) -> None:
    fifth = Backend()
    fifth.behaviour.keys = (KEY,)
    try:
        rotating.set_peers([*table(backends), Peer("67/0", fifth.address)])
        assert statuses(rotating, OLD, [f"s{number}" for number in range(40)]) == {200}
    finally:
        fifth.kill()


def test_in_the_end_only_the_new_key_is_good(rotating: Balancer, backends: list[Backend]) -> None:
    for backend in backends:
        backend.behaviour.keys = (KEY,)
    eventually(lambda: keys(rotating) == ["new"] * 4, 10)
    (rotating.folder / "api-key.old").unlink()
    rotating.reload()
    eventually(lambda: keys(rotating) == [None] * 4, 10)
    sessions = [f"s{number}" for number in range(40)]
    assert statuses(rotating, KEY, sessions) == {200}
    assert statuses(rotating, OLD, sessions) == {401}
