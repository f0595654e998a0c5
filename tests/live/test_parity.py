"""Issue 2, section I: Python and Lua hold the same function. The Lua side is a running nginx."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.fleet.schema import Affinity
from tests.live import servers
from tests.live.conftest import Start, table
from tests.live.servers import Backend, Balancer

SIXTEEN = tuple(
    Peer(f"{machine}/{index}", f"10.255.254.{machine}:{8000 + index}")
    for machine in (69, 68, 67, 66)
    for index in range(4)
)
STATES = tuple(
    replace(peer, state=state)
    for peer, state in zip(SIXTEEN, [PeerState.UP, PeerState.DRAIN, PeerState.HELD, PeerState.OFF] * 4, strict=True)
)
WEIGHTS = tuple(replace(peer, weight=1 + number % 5) for number, peer in enumerate(STATES))

HOSTILE = st.sampled_from(
    [b"", b"\0", b"\n", b'"', b"'", b"|", b"|69/0", b"%", b"\\", b"\xff\xfe", "张三".encode(), b"k" * 8192, b" a "]
)
KEYS = st.lists(
    st.one_of(st.binary(max_size=64), st.text(max_size=32).map(str.encode), HOSTILE), min_size=1, max_size=60
)
IN_NGINX = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=[Affinity.MD5_MOD, Affinity.RENDEZVOUS], ids=lambda a: a.value)
def running(request: pytest.FixtureRequest) -> Iterator[tuple[Balancer, Affinity]]:
    folder = Path(tempfile.mkdtemp(prefix="fleetctl-live-"))
    # Nobody listens at those addresses: were they probed, their health would change the answers.
    quiet = {"lua/health.lua": ("probe.tick(list)", "")}
    balancer = servers.make(folder, list(SIXTEEN), patches=quiet, affinity=request.param.value)
    yield balancer, request.param
    balancer.stop()
    shutil.rmtree(folder, ignore_errors=True)


def expected(keys: list[bytes], peers: tuple[Peer, ...], affinity: Affinity) -> list[tuple[str, str, str]]:
    found = []
    for key in keys:
        decision = routing.route(key, peers, affinity)
        assert decision is not None
        found.append((routing.sid(key), decision.peer.id, decision.why.value))
    return found


def asked(balancer: Balancer, keys: list[bytes]) -> list[tuple[str, str, str]]:
    return [(row["sid"], row["id"], row["why"]) for row in balancer.route(keys)]


@pytest.mark.parametrize("peers", [SIXTEEN, STATES, WEIGHTS], ids=["up", "states", "weights"])
def test_any_key_goes_where_python_says(running: tuple[Balancer, Affinity], peers: tuple[Peer, ...]) -> None:
    balancer, affinity = running
    balancer.set_peers(list(peers))

    @IN_NGINX
    @given(KEYS)
    def same(keys: list[bytes]) -> None:
        assert asked(balancer, keys) == expected(keys, peers, affinity)

    same()


@pytest.mark.parametrize("count", [1, 4, 8, 12, 16])
def test_every_stage_has_the_same_table(running: tuple[Balancer, Affinity], count: int) -> None:
    balancer, affinity = running
    balancer.set_peers(list(SIXTEEN[:count]))
    keys = [b"abc", b"user-1", "张三".encode(), b"10.255.254.1", *(b"stage-%d" % n for n in range(200))]
    assert asked(balancer, keys) == expected(keys, SIXTEEN[:count], affinity)


def test_ten_thousand_sessions_have_one_mapping_and_an_even_one(running: tuple[Balancer, Affinity]) -> None:
    balancer, affinity = running
    balancer.set_peers(list(SIXTEEN))
    keys = [b"session-%d" % number for number in range(10_000)]
    found = asked(balancer, keys)
    assert found == expected(keys, SIXTEEN, affinity)
    mean = len(keys) / 16
    chi = sum((count - mean) ** 2 / mean for count in Counter(row[1] for row in found).values())
    assert chi < 37.7, "chi-square over 15 degrees of freedom, 0.1 %"
    assert not math.isnan(chi)


def test_three_hundred_sessions_answer_from_where_python_says(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    for number in range(300):
        decision = routing.route(f"u{number}", table(backends))
        assert decision is not None
        assert balancer.ask(f"u{number}").headers["x-upstream-addr"] == decision.peer.address
