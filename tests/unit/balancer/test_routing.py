"""The routing function: the report's table, and what rendezvous promises."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.balancer.routing import Bound, Why, key_of, moved, rank, route
from fleetctl.fleet.schema import Affinity

KEYS = st.one_of(st.text(max_size=40), st.binary(max_size=40))


def table(count: int, **weights: int) -> tuple[Peer, ...]:
    ids = [(machine, index) for machine in range(69, 69 - (count + 3) // 4, -1) for index in range(4)]
    return tuple(Peer(f"{m}/{i}", f"10.255.254.{m}:{8000 + i}", weights.get(f"w{m}_{i}", 1)) for m, i in ids[:count])


def place(key: str | bytes, peers: tuple[Peer, ...], affinity: Affinity = Affinity.MD5_MOD) -> str:
    decision = route(key, peers, affinity)
    assert decision is not None
    return decision.peer.id


@pytest.mark.parametrize(
    ("key", "indexes"),
    [
        ("abc", (0, 0, 8, 8)),
        ("user-1", (3, 3, 3, 3)),
        ("张三", (2, 2, 10, 10)),
        ("10.255.254.1", (2, 2, 6, 2)),
    ],
)
def test_md5_mod_is_the_report_s_table_at_every_stage(key: str, indexes: tuple[int, ...]) -> None:
    for count, index in zip((4, 8, 12, 16), indexes, strict=True):
        assert place(key, table(count)) == table(count)[index].id


@given(KEYS)
def test_md5_mod_is_the_expression_of_the_report(key: str | bytes) -> None:
    raw = key.encode() if isinstance(key, str) else key
    peers = table(16)
    assert place(key, peers) == peers[int(hashlib.md5(raw).hexdigest()[:8], 16) % 16].id


def test_the_key_is_session_then_bearer_in_any_case_then_client() -> None:
    assert key_of("s", "Bearer t", "10.0.0.1") == b"s"
    assert key_of("", "bearer   t u", "10.0.0.1") == b"t u"
    assert key_of("", "BEARER t", "10.0.0.1") == b"t"
    assert key_of("", "Basic t", "10.0.0.1") == b"10.0.0.1"
    assert key_of("", "Bearer", "::1") == b"::1"


@given(KEYS, st.permutations(table(8)))
def test_for_rendezvous_the_order_of_the_table_means_nothing(key: str | bytes, mixed: list[Peer]) -> None:
    assert rank(key, mixed) == rank(key, table(8))


@given(KEYS, st.integers(0, 15), st.sampled_from([Affinity.MD5_MOD, Affinity.RENDEZVOUS]))
def test_a_lost_backend_moves_only_its_own_sessions(key: str | bytes, lost: int, affinity: Affinity) -> None:
    peers = table(16)
    gone = peers[lost]
    home = place(key, peers, affinity)
    for after in (
        route(key, peers, affinity, healthy=lambda peer: peer is not gone),
        route(key, [replace(p, state=PeerState.DRAIN) if p is gone else p for p in peers], affinity),
    ):
        assert after is not None
        if home == gone.id:
            assert after.peer.id != gone.id
            assert after.why is Why.FAILOVER
        else:
            assert after.peer.id == home
            assert after.why is Why.PRIMARY


def test_removing_a_peer_from_the_table_moves_only_its_sessions_with_rendezvous() -> None:
    peers = table(16)
    for number in range(2000):
        home = place(f"k{number}", peers, Affinity.RENDEZVOUS)
        now = place(f"k{number}", peers[:5] + peers[6:], Affinity.RENDEZVOUS)
        assert now == home or home == peers[5].id


def test_weights_give_their_shares() -> None:
    peers = tuple(replace(p, weight=w) for p, w in zip(table(4), (1, 1, 2, 4), strict=True))
    hits = {p.id: 0 for p in peers}
    for number in range(8000):
        hits[place(f"w{number}", peers, Affinity.RENDEZVOUS)] += 1
    for peer in peers:
        assert hits[peer.id] == pytest.approx(8000 * peer.weight / 8, rel=0.1)


@pytest.mark.parametrize(
    ("affinity", "shares"),
    [(Affinity.MD5_MOD, (0.5, 0.669, 0.751)), (Affinity.RENDEZVOUS, (0.5, 0.333, 0.25))],
)
def test_the_share_that_moves_when_the_fleet_grows(affinity: Affinity, shares: tuple[float, ...]) -> None:
    for (before, after), share in zip(((4, 8), (8, 12), (12, 16)), shares, strict=True):
        assert moved(table(before), table(after), affinity) == pytest.approx(share, abs=0.03)


def test_below_the_floor_nobody_leaves_home_and_above_it_sessions_spill_in_order() -> None:
    peers = table(4)
    home = place("s", peers)
    calm = route("s", peers, inflight={home: 31})
    assert calm is not None
    assert calm.why is Why.PRIMARY
    busy = route("s", peers, inflight={home: 32})
    assert busy is not None
    assert busy.why is Why.SPILL
    assert busy.peer is busy.order[1]
    everywhere = route("s", peers, inflight={p.id: 40 for p in peers})
    assert everywhere is not None
    assert everywhere.why is Why.PRIMARY, "bounded by the fair share, not by the floor"


def test_never_ejects_everything() -> None:
    peers = (replace(table(4)[0], state=PeerState.DRAIN), *table(4)[1:])
    decision = route("abc", peers, healthy=lambda _: False)
    assert decision is not None
    assert decision.why is Why.PANIC
    assert decision.peer.state is PeerState.UP


def test_no_peer_and_all_drained_are_nowhere() -> None:
    assert route("s", ()) is None
    assert route("s", [replace(p, state=PeerState.DRAIN) for p in table(4)]) is None


def test_least_conn_takes_the_least_loaded_by_weight() -> None:
    peers = tuple(replace(p, weight=w) for p, w in zip(table(4), (1, 1, 1, 4), strict=True))
    load = {"69/0": 2, "69/1": 1, "69/2": 3, "69/3": 3}
    decision = route("request", peers, Affinity.LEAST_CONN, inflight=load, bound=Bound(floor=1000))
    assert decision is not None
    assert decision.peer.id == "69/3"


def test_a_key_is_logged_as_twelve_hex_digits() -> None:
    assert routing.sid("abc") == "900150983cd2"
