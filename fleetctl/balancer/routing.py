"""Which backend a request goes to. Pure, and the same function as units/lua/routing.lua, bit for bit.

A key (session id, else bearer token, else client address) is ranked over all peers of the table, healthy or
not: rendezvous hashing with the first eight hex digits of md5(key "|" id) as score. `md5-mod` puts the
report's choice first, md5(key)[:8] modulo the number of peers in table order. Out of that order comes the
first peer that can take the request, so that only the sessions of a lost backend move.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.fleet.schema import Affinity

BEARER = re.compile(rb"[ \t\n\v\f\r]*bearer[ \t\n\v\f\r]+(.+)", re.IGNORECASE | re.DOTALL)
SCORES = 2**32


class Why(str, Enum):
    """Why a request went where it went; a label of the metrics and a field of the access log."""

    PRIMARY = "primary"
    FAILOVER = "failover"
    SPILL = "spill"
    PANIC = "panic"
    RETRY = "retry"


@dataclass(frozen=True)
class Bound:
    """The load above which a peer passes new requests on: max(floor, ceil(factor * fair share)).

    `floor` is requests in flight, max_num_seqs by default: below it a vLLM server does not even queue.
    """

    floor: int = 32
    factor: float = 1.5


@dataclass(frozen=True)
class Decision:
    """Where a key goes now, why, and the order in which the others would be tried."""

    peer: Peer
    why: Why
    order: tuple[Peer, ...]


def hash32(text: bytes) -> int:
    """The first eight hex digits of the md5, as the report's nginx.conf takes them."""
    return int.from_bytes(hashlib.md5(text, usedforsecurity=False).digest()[:4], "big")


def sid(key: str | bytes) -> str:
    """The only form in which a key is ever logged: the first 12 hex digits of its md5."""
    return hashlib.md5(_bytes(key), usedforsecurity=False).hexdigest()[:12]


def bearer(authorization: str | bytes) -> bytes:
    """The token of an Authorization header, scheme in any case; empty when there is none."""
    match = BEARER.match(_bytes(authorization))
    return match[1] if match else b""


def key_of(session: str | bytes, authorization: str | bytes, client: str | bytes) -> bytes:
    """The affinity key in the report's order: session id, else bearer token, else client address."""
    return _bytes(session) or bearer(authorization) or _bytes(client)


def rank(key: str | bytes, peers: Sequence[Peer]) -> tuple[Peer, ...]:
    """All peers, best first, by rendezvous; weights give their shares; ties go to the smaller id."""
    raw = _bytes(key)
    scored = [(hash32(raw + b"|" + peer.id.encode()), peer) for peer in peers]
    if len({peer.weight for peer in peers}) <= 1:
        return tuple(peer for _, peer in sorted(scored, key=lambda pair: (-pair[0], pair[1].id)))
    weighted = [(-math.log((score + 1) / SCORES) / peer.weight, peer) for score, peer in scored]
    return tuple(peer for _, peer in sorted(weighted, key=lambda pair: (pair[0], pair[1].id)))


def order(
    key: str | bytes, peers: Sequence[Peer], affinity: Affinity, inflight: Mapping[str, int] | None = None
) -> tuple[Peer, ...]:
    """The order in which peers are tried for this key.

    For `least_conn` the key only breaks ties: the balancer passes the request id, so that equals rotate.
    """
    ranked = rank(key, peers)
    if affinity is Affinity.MD5_MOD and peers:
        home = peers[hash32(_bytes(key)) % len(peers)]
        return (home, *(peer for peer in ranked if peer is not home))
    if affinity is Affinity.LEAST_CONN:
        load = inflight or {}
        return tuple(sorted(ranked, key=lambda peer: load.get(peer.id, 0) / peer.weight))
    return ranked


def route(
    key: str | bytes,
    peers: Sequence[Peer],
    affinity: Affinity = Affinity.MD5_MOD,
    *,
    inflight: Mapping[str, int] | None = None,
    healthy: Callable[[Peer], bool] = lambda _: True,
    bound: Bound | None = None,
) -> Decision | None:
    """Where this key goes now; None when no peer may take a request (none there, or all drained or off).

    Never ejects everything: when no peer is healthy, the order stands as if all were (`Why.PANIC`).
    """
    load, limit = inflight or {}, bound or Bound()
    tried = order(key, peers, affinity, load)
    up = [peer for peer in tried if peer.state is PeerState.UP]
    candidates = [peer for peer in up if healthy(peer)]
    panic = not candidates
    candidates = candidates or up
    if not candidates:
        return None
    chosen = _least_bound(candidates, load, limit)
    if panic:
        return Decision(chosen, Why.PANIC, tried)
    if chosen is not candidates[0]:
        return Decision(chosen, Why.SPILL, tried)
    return Decision(chosen, Why.PRIMARY if chosen is tried[0] else Why.FAILOVER, tried)


def moved(before: Sequence[Peer], after: Sequence[Peer], affinity: Affinity, samples: int = 4096) -> float:
    """The share (0..1) of sessions whose backend changes between two tables, from fixed sample keys.

    Always 0 for `least_conn`, which holds no session anywhere.
    """
    if affinity is Affinity.LEAST_CONN:
        return 0.0
    changed = 0
    for number in range(samples):
        old, new = (route(f"sample-{number}", table, affinity) for table in (before, after))
        changed += (old and old.peer.id) != (new and new.peer.id)
    return changed / samples


def _least_bound(candidates: Sequence[Peer], load: Mapping[str, int], bound: Bound) -> Peer:
    total = sum(load.get(peer.id, 0) for peer in candidates) + 1
    weights = sum(peer.weight for peer in candidates)
    for peer in candidates:
        share = math.ceil(bound.factor * total * peer.weight / weights)
        if load.get(peer.id, 0) < max(bound.floor, share):
            return peer
    return candidates[0]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
