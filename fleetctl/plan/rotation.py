"""The step kinds that change who takes requests: drain, undrain, join, and the proof that it is so. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer, PeerState, of_instance
from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.fleet.instance import Instance
from fleetctl.fleet.schema import Affinity
from fleetctl.plan import gate
from fleetctl.plan.build import comparisons_on, gate_operation, held, in_rotation, op, unproved
from fleetctl.plan.context import Context, set_state
from fleetctl.plan.desired import State
from fleetctl.plan.operation import Group, Operation, Wait, sequence, side_by_side

VERIFY_SECONDS = 60.0  # the balancer takes a peer that was away back after two good looks, seconds apart


def drain(context: Context, step: str, which: Instance) -> Group:
    """Out of rotation, then wait for what is in flight."""
    out = None if held(context, which) else take_out(context, step, which)
    return sequence("drain", out, wait_drained(context, step, which))


def take_out(context: Context, step: str, which: Instance, *, by_hand: bool = False) -> Operation:
    """No new requests. `by_hand`: a person wants it so, no later plan takes it back."""
    state = PeerState.HELD if by_hand else PeerState.DRAIN
    edit = context.edit(set_state(context.fleet, (which,), state, by_hand=by_hand))
    return Operation(step, context.balancer, which.id, "drain: no new requests", edit)


def wait_drained(context: Context, step: str, which: Instance) -> Operation:
    cap = context.fleet.inventory.rollout.drain_timeout
    wait = Wait(Script("state_ask", (context.state_url,)), gate.drained(which), cap, 15, late_is_fine=context.plain)
    return Operation(step, context.balancer, which.id, "wait for requests in flight", wait)


def undrain(
    context: Context, step: str, which: Instance, *, by_hand: bool = False, started_with_key: bool = False
) -> Group:
    """Back in the table, and the balancer has seen for itself that it is well; not what a person drained.

    `started_with_key`: its engine was started with the fleet's key by this plan.
    """
    if held(context, which) and not by_hand:
        return sequence("undrain")
    edit = context.edit(set_state(context.fleet, (which,), PeerState.UP, by_hand=by_hand))
    ask = Script("state_ask", (context.state_url,))
    wait = Wait(ask, gate.in_use((which,)), VERIFY_SECONDS, 15)
    known = Wait(ask, gate.knows_key(which), VERIFY_SECONDS, 15)
    return sequence(
        "undrain",
        Operation(step, context.balancer, which.id, "wait until the balancer sends it the new key", known)
        if context.two_keys and started_with_key
        else None,
        Operation(step, context.balancer, which.id, "back in rotation", edit),
        Operation(step, context.balancer, which.id, "wait until the balancer sends to it", wait),
    )


def after_join(context: Context, machine: int) -> tuple[Peer, ...]:
    """The peers table once this machine has joined."""
    return _joined(context, machine)(context.peers)


def after_roll(context: Context, machine: int) -> tuple[Peer, ...]:
    """The peers table once what serves on this machine was changed: that is where the inventory says."""
    changed = (State.RECREATE, State.START)
    here = {c.desired.instance.id: c.desired.instance for c in comparisons_on(context, machine) if c.state in changed}
    table = tuple(of_instance(context.fleet, here[p.id], p.state) if p.id in here else p for p in context.peers)
    back = {c.desired.instance.id for c in unproved(context, machine)}
    return tuple(replace(p, state=PeerState.UP) if p.id in back else p for p in table)


def _joined(context: Context, machine: int) -> Callable[[tuple[Peer, ...]], tuple[Peer, ...]]:
    """Its instances take their places: off those stopped on purpose, still drained those a person drained."""
    edits = [
        set_state(context.fleet, (c.desired.instance,), PeerState.OFF if c.state is State.STOPPED else PeerState.UP)
        for c in comparisons_on(context, machine)
    ]
    return lambda peers: reduce(lambda table, edit: edit(table), edits, peers)


def join(context: Context, machine: int) -> Group:
    """All instances of a machine take their places in the table at once."""
    table = after_join(context, machine)
    loaded = context.facts[context.balancer].balancer
    if table == context.peers and loaded is not None and not context.peers_broken:
        return sequence("join")
    summary = f"join: {len(context.peers)} -> {len(table)} backends, {share(context, table)} of sessions move"
    # What serves but is not in rotation was not gated by this plan: an earlier run may have died in its gate.
    unproved = [
        c.desired.instance
        for c in comparisons_on(context, machine)
        if c.state is State.UP_TO_DATE
        and not in_rotation(context, c.desired.instance)
        and not held(context, c.desired.instance)
    ]
    gates = side_by_side("gate", *(gate_operation(context, "gate", which) for which in unproved))
    return sequence(
        "join",
        gates,
        Operation("join", context.balancer, str(machine), summary, context.edit(_joined(context, machine))),
    )


def share(context: Context, table: tuple[Peer, ...]) -> str:
    """How many sessions leave their backend when the table becomes this one, such as `25%`.

    nginx's own consistent hash (the mode without Lua) moves about as many as rendezvous does.
    """
    affinity = context.fleet.inventory.balancer.affinity
    if not context.peers:
        return "0%"
    if context.plain and affinity is not Affinity.LEAST_CONN:
        return f"about {routing.moved(context.peers, table, Affinity.RENDEZVOUS):.0%}"
    return f"{routing.moved(context.peers, table, affinity):.0%}"


def verify(context: Context, machine: int) -> Group:
    """Every backend of this stage is hit, each by a session whose key computes to it."""
    table = after_join(context, machine)
    half_done = context.current is not None and not context.settled
    if table == context.peers and context.facts[context.balancer].balancer is not None and not half_done:
        return sequence("verify")
    # What the inventory no longer lists need not answer: it leaves next.
    known = {instance.id for instance in context.fleet.instances}
    up = [peer.address for peer in table if peer.state is PeerState.UP and peer.id in known]
    if context.plain:
        # nginx's own hash is not computed here: enough sessions that each backend is hit, but for one in a million.
        sessions, judge = [f"verify-{n}" for n in range(30 * len(up))], gate.all_hit(set(up))
    else:
        homes = {key: home for key, home in sessions_for(context, table).items() if home in up}
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
