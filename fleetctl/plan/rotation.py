"""The step kinds that change who takes requests: drain, undrain, join, and the proof that it is so. Pure."""

from __future__ import annotations

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.fleet.fleet import Instance
from fleetctl.plan import gate
from fleetctl.plan.build import comparisons_on, gate_operation, in_rotation, op
from fleetctl.plan.context import Context, set_state
from fleetctl.plan.desired import State
from fleetctl.plan.operation import Group, Operation, Wait, sequence, side_by_side

VERIFY_SECONDS = 60.0  # the balancer takes a peer that was away back after two good looks, seconds apart


def drain(context: Context, step: str, which: Instance) -> Group:
    """Out of rotation, then wait for what is in flight."""
    edit = context.edit(set_state(context.fleet, (which,), PeerState.DRAIN))
    cap = context.fleet.inventory.rollout.drain_timeout
    wait = Wait(Script("state_ask", (context.state_url,)), gate.drained(which), cap, 15, late_is_fine=context.plain)
    return sequence(
        "drain",
        Operation(step, context.balancer, which.id, "drain: no new requests", edit),
        Operation(step, context.balancer, which.id, "wait for requests in flight", wait),
    )


def undrain(context: Context, step: str, which: Instance) -> Group:
    """Back in the table, and the balancer has seen for itself that it is well."""
    edit = context.edit(set_state(context.fleet, (which,), PeerState.UP))
    wait = Wait(Script("state_ask", (context.state_url,)), gate.in_use((which,)), VERIFY_SECONDS, 15)
    return sequence(
        "undrain",
        Operation(step, context.balancer, which.id, "back in rotation", edit),
        Operation(step, context.balancer, which.id, "wait until the balancer sends to it", wait),
    )


def after_join(context: Context, machine: int) -> tuple[Peer, ...]:
    """The peers table once this machine has joined; an instance stopped on purpose is off."""
    table = context.peers
    for comparison in comparisons_on(context, machine):
        state = PeerState.OFF if comparison.state is State.STOPPED else PeerState.UP
        table = set_state(context.fleet, (comparison.desired.instance,), state)(table)
    return table


def join(context: Context, machine: int) -> Group:
    """All instances of a machine take their places in the table at once."""
    table = after_join(context, machine)
    loaded = context.facts[context.balancer].balancer
    if table == context.peers and loaded is not None and not context.peers_broken:
        return sequence("join")
    wanted = {peer.id: peer for peer in table if peer.id.startswith(f"{machine}/")}
    fleet = context.fleet

    def edit(peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
        for instance in fleet.on(machine):
            peers = set_state(fleet, (instance,), wanted[instance.id].state)(peers)
        return peers

    moved = routing.moved(context.peers, table, fleet.inventory.balancer.affinity) if context.peers else 0.0
    summary = f"join: {len(context.peers)} -> {len(table)} backends, {moved:.0%} of sessions move"
    # What serves but is not in rotation was not gated by this plan: an earlier run may have died in its gate.
    unproved = [
        c.desired.instance
        for c in comparisons_on(context, machine)
        if c.state is State.UP_TO_DATE and not in_rotation(context, c.desired.instance)
    ]
    gates = side_by_side("gate", *(gate_operation(context, "gate", which) for which in unproved))
    return sequence("join", gates, Operation("join", context.balancer, str(machine), summary, context.edit(edit)))


def verify(context: Context, machine: int) -> Group:
    """Every backend of this stage is hit, each by a session whose key computes to it."""
    table = after_join(context, machine)
    half_done = context.current is not None and not context.settled
    if table == context.peers and context.facts[context.balancer].balancer is not None and not half_done:
        return sequence("verify")
    up = [peer.address for peer in table if peer.state is PeerState.UP]
    if context.plain:
        # nginx's own hash is not computed here: enough sessions that each backend is hit, but for one in a million.
        sessions, judge = [f"verify-{n}" for n in range(30 * len(up))], gate.all_hit(set(up))
    else:
        homes = sessions_for(context, table)
        sessions, judge = list(homes), gate.answered_by(list(homes.values()))
    script = Script("balancer_verify", (context.listen_url, paths.api_key(context.fleet), *sessions))
    summary = f"{len(up)} backends answer{'' if context.plain else ' as computed'}"
    wait = Wait(script, judge, VERIFY_SECONDS, 120, 1.0)
    return sequence("verify", op("verify", context.balancer, summary, wait, str(machine)))


def sessions_for(context: Context, table: tuple[Peer, ...]) -> dict[str, str]:
    """One session id for each peer in rotation, with the address that has to answer it."""
    affinity = context.fleet.inventory.balancer.affinity
    wanted = {peer.address for peer in table if peer.state is PeerState.UP}
    found: dict[str, str] = {}
    for number in range(100_000):
        if len(found) == len(wanted):
            break
        home = routing.order(f"verify-{number}", table, affinity)[0]
        if home.address in wanted and home.address not in found.values():
            found[f"verify-{number}"] = home.address
    return found
