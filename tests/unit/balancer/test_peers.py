"""The peers file: whole or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.balancer.peers import LIMIT, Peer, PeersError, PeerState, parse, render, version

TABLE = (
    Peer("69/0", "10.255.254.69:8000"),
    Peer("68/1", "[fd00::68]:8001", weight=3, state=PeerState.DRAIN),
    Peer("67/2", "10.255.254.67:8002", state=PeerState.OFF),
)


def test_what_is_written_is_what_is_read() -> None:
    for peers in (TABLE, (), tuple(Peer(f"1/{n}", f"10.0.0.1:{n + 1}") for n in range(64))):
        assert parse(render(peers)) == peers


def test_the_version_names_the_content() -> None:
    assert version(render(TABLE)) == version(render(TABLE))
    assert version(render(TABLE)) != version(render(TABLE[:2]))
    assert version(render(TABLE)) in render(TABLE).splitlines()[0]


def test_a_file_cut_anywhere_is_refused() -> None:
    text = render(TABLE)
    for length in range(len(text)):
        with pytest.raises(PeersError):
            parse(text[:length])


@given(st.integers(0, len(render(TABLE)) - 1), st.characters(codec="ascii"))
def test_a_changed_character_is_refused(at: int, character: str) -> None:
    text = render(TABLE)
    changed = text[:at] + character + text[at + 1 :]
    if changed != text:
        with pytest.raises(PeersError):
            parse(changed)


@pytest.mark.parametrize(
    "peer",
    [
        Peer("69/0 up", "10.0.0.1:1"),
        Peer("69/0\n", "10.0.0.1:1"),
        Peer("", "10.0.0.1:1"),
        Peer("69/0", "10.0.0.1"),
        Peer("69/0", "10.0.0.1:70000"),
        Peer("69/0", "10.0.0.1:1; evil"),
        Peer("69/0", "fd00::1:8000"),
        Peer("69/0", "10.0.0.1:1", weight=0),
    ],
)
def test_a_peer_the_format_cannot_hold_is_refused(peer: Peer) -> None:
    with pytest.raises(PeersError):
        render([peer])


def test_a_peer_twice_is_refused() -> None:
    with pytest.raises(PeersError, match="id twice"):
        render([TABLE[0], Peer("69/0", "10.0.0.9:1")])
    with pytest.raises(PeersError, match="address twice"):
        render([TABLE[0], Peer("69/1", TABLE[0].address)])


def test_too_many_peers_are_refused() -> None:
    with pytest.raises(PeersError, match="at most"):
        render(Peer(f"1/{n}", f"10.0.0.1:{n + 1}") for n in range(LIMIT + 1))
