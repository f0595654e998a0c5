"""The step kinds that start and change instances; nothing that serves is touched before it is drained. Pure."""

from __future__ import annotations

from fleetctl.balancer.config import max_num_seqs
from fleetctl.balancer.peers import PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.fleet.instance import Instance
from fleetctl.plan import adopt, canary, desired, gate
from fleetctl.plan.build import HELD, comparisons_on, gate_operation, in_rotation, op, unit_active, unproved
from fleetctl.plan.context import Context
from fleetctl.plan.desired import State
from fleetctl.plan.operation import Group, Node, Operation, Run, Wait, sequence, side_by_side
from fleetctl.plan.removal import GONE
from fleetctl.plan.rotation import drain, undrain


def _serves(context: Context, comparison: desired.Comparison) -> bool:
    """It takes requests now, so that it has to be drained before it is touched."""
    which = comparison.desired.instance
    health = context.facts[which.machine].health.get(which.index)
    # A peer that is draining may have requests in flight: an earlier run was cut short there.
    peer = next((peer for peer in context.peers if peer.id == which.id and peer.state is not PeerState.OFF), None)
    if peer is None:
        return False
    container = context.facts[which.machine].container(which.name)
    running = container is not None and container.state == "running"
    if peer.address != which.address:  # it was asked where it will be: what runs is taken to serve where it is
        return running
    if health is not None and health.http == 200:
        return True
    # One look of ours may find a busy server slow; whom the balancer finds well it sends users to.
    live = context.facts[context.balancer].balancer
    found_well = live is not None and any(row.id == which.id and row.health == "ok" for row in live.peers)
    return running and found_well and comparison.state is not State.LOADING


def serving_unseen(context: Context) -> list[str]:
    """Instances that answer and would be changed, though no table says who sends to them."""
    return [
        c.desired.instance.id
        for c in context.comparisons.values()
        if c.state is State.RECREATE
        and (health := context.facts[c.desired.instance.machine].health.get(c.desired.instance.index)) is not None
        and health.http == 200
    ]


def start(context: Context, machine: int) -> Group:
    """Start what does not serve: the first instance alone (it warms the page cache), then the rest side by side."""
    due = [
        c
        for c in comparisons_on(context, machine)
        if c.state in (State.CREATE, State.START, State.RECREATE, State.LOADING) and not _serves(context, c)
    ]
    first, rest = due[:1], due[1:]
    return sequence(
        "start",
        *(bring_up(context, "start", c) for c in first),
        side_by_side("start the rest", *(bring_up(context, "start", c) for c in rest)),
    )


def bring_up(context: Context, step: str, comparison: desired.Comparison) -> Group:
    """Start or restart one instance that takes no requests, and wait until it answers a real completion."""
    fleet, which = context.fleet, comparison.desired.instance
    container = context.facts[which.machine].container(which.name)
    running = container if container is not None and container.state == "running" else None
    # systemd may be about to start it by itself, with the unit as it will be written: then it would hold its own NPUs.
    active = unit_active(context, which.machine, which.name)
    replace_it = running is not None or active
    unit = f"{which.name}.service"
    wait_free = Wait(Script("npu_info"), gate.devices_free(which), 120, 20)
    verb = "restart" if replace_it else "start"
    marks = paths.stopped(fleet, which), paths.parked(fleet, which)
    reason = f" ({comparison.reason})" if comparison.reason else ""
    if comparison.state is State.LOADING:
        return sequence(which.id, gate_operation(context, "gate", which))
    operations: list[Node] = []
    if adopt.taken_over(context, which):
        operations.append(adopt.replace_instance(context, step, which))
        verb = "start"
    elif replace_it:
        operations.append(
            op(
                step,
                which.machine,
                f"stop {unit}{reason}",
                Run(Script("unit_stop", (unit,), fleet.name), timeout=240),
                which.id,
            )
        )
        if running is not None and not active:  # typed by hand, or left by a client that was killed
            remove = Run(Script("remove_container", (running.id, fleet.name), fleet.name), timeout=HELD)
            words = f"remove container {which.name}, which runs without its unit"
            operations.append(op(step, which.machine, words, remove, which.id))
    operations += [
        op(step, which.machine, f"wait for free NPUs {_devices(which)}", wait_free, which.id),
        op(
            step,
            which.machine,
            f"{verb} {unit}{'' if replace_it and verb == 'restart' else reason}",
            Run(Script("unit_start", (unit, *marks), fleet.name, uses=("unit_up",)), timeout=HELD),
            which.id,
        ),
        gate_operation(context, "gate", which),
    ]
    return sequence(which.id, *operations)


def _devices(which: Instance) -> str:
    return ",".join(map(str, which.devices))


def roll(context: Context, machine: int) -> Group:
    """Change what serves: drain, restart, gate, back in rotation, at most `max_unavailable` at a time."""
    due = [
        c for c in comparisons_on(context, machine) if c.state in (State.RECREATE, State.START) and _serves(context, c)
    ]
    chosen = canary_of(context)
    first = [c for c in due if c.desired.instance.id == chosen]
    rest = [c for c in due if c.desired.instance.id != chosen]
    size = batch_size(context)
    batches = [rest[i : i + size] for i in range(0, len(rest), size)]
    sibling = next((c.desired.instance for c in rest), None)
    return sequence(
        "roll",
        side_by_side("unproved", *(_asked_again(context, c.desired.instance) for c in unproved(context, machine))),
        *(
            replace_serving(context, "roll", c, asked=canary.operation(context, "canary", c.desired.instance, sibling))
            for c in first
        ),
        *(side_by_side("batch", *(replace_serving(context, "roll", c) for c in batch)) for batch in batches),
    )


def _asked_again(context: Context, which: Instance) -> Group:
    """Before it takes requests it answers what the canary is asked: nobody knows at what an earlier run ended."""
    sibling = next((one for one in context.fleet.on(which.machine) if in_rotation(context, one)), None)
    return sequence(
        which.id,
        gate_operation(context, "gate", which),
        canary.operation(context, "canary", which, sibling),
        undrain(context, "roll", which),
    )


def canary_of(context: Context) -> str | None:
    """The id of the instance that is changed before all others of this plan: the one asked for, or the first due.

    None when at most one instance is due: there is nobody to be spared.
    """
    due = [
        c.desired.instance.id
        for c in context.comparisons.values()
        if c.state in (State.RECREATE, State.START) and _serves(context, c)
    ]
    if len(due) < 2:
        return None
    return context.canary if context.canary in due else due[0]


def too_busy(context: Context) -> str | None:
    """Why the instances that stay could not take the load that the balancer sees now; None when they can."""
    return no_room(context) if canary_of(context) is not None else None


def no_room(context: Context) -> str | None:
    """The same of any change that takes a batch of instances out."""
    state = context.facts[context.balancer].balancer
    if state is None:
        return None
    load, out = sum(peer.inflight or 0 for peer in state.peers if peer.state == "up"), batch_size(context)
    up = [peer for peer in state.peers if peer.state == "up" and peer.health not in GONE]
    room = max(0, len(up) - out) * max_num_seqs(context.fleet)
    if load <= room:
        return None
    return (
        f"{load} requests are in flight; with {out} of {len(up)} instances out the others take {room}: "
        "a smaller --max-unavailable, or later"
    )


def batch_size(context: Context) -> int:
    """How many instances may be out of rotation at once; at least one."""
    text, total = context.max_unavailable or context.fleet.inventory.rollout.max_unavailable, len(context.peers)
    return max(1, total * int(text[:-1]) // 100 if text.endswith("%") else int(text))


def replace_serving(
    context: Context, step: str, comparison: desired.Comparison, asked: Operation | None = None
) -> Group:
    """`asked`: what it has to answer before it is back in rotation."""
    which = comparison.desired.instance
    return sequence(
        which.id,
        drain(context, step, which),
        bring_up(context, step, comparison),
        asked,
        undrain(context, step, which, started_with_key=True),
    )
