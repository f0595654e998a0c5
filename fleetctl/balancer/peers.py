"""The peers file: the one piece of data that the balancer re-reads while it runs.

    fleetctl-peers 1 <version>
    <id> <address> <weight> <state>
    ...
    end <number of peers>

The version is the md5 of the lines between header and trailer, so that a truncated or mixed file is
recognised by whoever reads it: `parse` here, units/lua/peers.lua on the machine. The order of the lines
is the affinity table of the report; a peer that takes no requests keeps its line, so that nobody else moves.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from fleetctl.errors import FleetctlError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance

FORMAT = "fleetctl-peers 1"
LIMIT = 1024
ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._/-]{0,63}\Z")
ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+):[1-9][0-9]{0,4}\Z")


class PeersError(FleetctlError):
    """A peers file that is not whole, or a peer that cannot be written into one."""


class PeerState(str, Enum):
    """What fleetctl wants of a peer; whether it is alive is the balancer's own observation.

    `drain` is a step of a command that takes it back itself; `held` is drained by a person and stays so until
    `fleetctl undrain`. The balancer sends new requests to neither.
    """

    UP = "up"
    DRAIN = "drain"
    HELD = "held"
    OFF = "off"


@dataclass(frozen=True)
class Peer:
    """One backend: `67/2` at `10.255.254.67:8002`; IPv6 addresses in brackets; weight 1..1000."""

    id: str
    address: str
    weight: int = 1
    state: PeerState = PeerState.UP


def of(fleet: Fleet, states: Mapping[str, PeerState], machines: Iterable[int]) -> tuple[Peer, ...]:
    """The peers of the machines that have joined, in the order of the affinity table.

    An instance without an entry in `states` is up. Weights come from `balancer.weights`.
    """
    joined = set(machines)
    return tuple(
        of_instance(fleet, instance, states.get(instance.id, PeerState.UP))
        for instance in fleet.instances
        if instance.machine in joined
    )


def of_instance(fleet: Fleet, which: Instance, state: PeerState) -> Peer:
    """One instance as a peer, with the weight that the inventory gives it or its machine."""
    weights = fleet.inventory.balancer.weights
    weight = weights.get(which.id, weights.get(str(which.machine), 1))
    return Peer(which.id, which.address, weight, state)


def render(peers: Iterable[Peer]) -> str:
    """The text of the peers file. Raises PeersError for a peer that the format cannot hold."""
    table = tuple(peers)
    _check(table)
    body = "".join(f"{peer.id} {peer.address} {peer.weight} {peer.state.value}\n" for peer in table)
    return f"{FORMAT} {_digest(body)}\n{body}end {len(table)}\n"


def parse(text: str) -> tuple[Peer, ...]:
    """The peers of a whole file. Raises PeersError when it is truncated, mixed or malformed."""
    body, _ = _split(text)
    peers = tuple(_peer(line) for line in body.splitlines())
    _check(peers)
    return peers


def version(text: str) -> str:
    """The version that /state answers once this text is loaded. Raises PeersError as `parse` does."""
    return _split(text)[1]


def _digest(body: str) -> str:
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def _split(text: str) -> tuple[str, str]:
    match = re.fullmatch(rf"{FORMAT} ([0-9a-f]{{32}})\n((?:.*\n)*)end ([0-9]+)\n", text)
    if match is None:
        raise PeersError("the peers file is not whole: header or trailer missing")
    digest, body, count = match[1], match[2], int(match[3])
    if _digest(body) != digest or body.count("\n") != count:
        raise PeersError("the peers file is not whole: its content does not match its header")
    return body, digest


def _peer(line: str) -> Peer:
    try:
        identifier, address, weight, state = line.split(" ")
        return Peer(identifier, address, int(weight), PeerState(state))
    except ValueError:
        raise PeersError(f"malformed line in the peers file: {line!r}") from None


def _check(peers: tuple[Peer, ...]) -> None:
    if len(peers) > LIMIT:
        raise PeersError(f"{len(peers)} peers, at most {LIMIT} fit")
    for peer in peers:
        if not ID.match(peer.id) or not ADDRESS.match(peer.address):
            raise PeersError(f"not a peer: {peer.id!r} at {peer.address!r}")
        if int(peer.address.rpartition(":")[2]) > 65535 or not 1 <= peer.weight <= 1000:
            raise PeersError(f"peer {peer.id}: port or weight out of range")
    for what, values in (("id", [peer.id for peer in peers]), ("address", [peer.address for peer in peers])):
        if len(set(values)) != len(values):
            raise PeersError(f"the same {what} twice among the peers")
