"""Plans of the commands that act on instances by name: restart, start, stop, drain, undrain. Pure.

Nothing that serves is stopped before it is drained, unless the person says --now (design, promise 5).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fleetctl.balancer.peers import PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Instance
from fleetctl.plan import instances as instance_steps
from fleetctl.plan import rotation as rotation_steps
from fleetctl.plan.context import Context, set_state
from fleetctl.plan.desired import State
from fleetctl.plan.operation import Group, Operation, Plan, Run, sequence


def _plan(context: Context, command: str, groups: Sequence[Group]) -> Plan:
    return Plan(command, context.fleet.name, sequence(command, *groups))


def _known(context: Context, which: Instance) -> bool:
    return any(peer.id == which.id for peer in context.peers)


def _in_rotation(context: Context, which: Instance) -> bool:
    return any(peer.id == which.id and peer.state is PeerState.UP for peer in context.peers)


def _peer(context: Context, step: str, which: Instance, state: PeerState, summary: str) -> Operation | None:
    """An edit of the peers file, for instances that have joined."""
    if not _known(context, which):
        return None
    edit = context.edit(set_state(context.fleet, (which,), state))
    return Operation(step, context.balancer, which.id, summary, edit)


def _balancer_answers(context: Context) -> bool:
    return context.facts[context.balancer].balancer is not None


def _out(context: Context, step: str, which: Instance, *, now: bool) -> Group | None:
    """Drain, or with `now` only out of rotation; nothing where the balancer does not send to it anyway."""
    seen = next((peer.state for peer in context.peers if peer.id == which.id), None)
    if seen in (None, PeerState.OFF) or not _balancer_answers(context):
        return None
    if now:
        return sequence("out", _peer(context, step, which, PeerState.DRAIN, "drain: no new requests"))
    return rotation_steps.drain(context, step, which)


def restart(context: Context, instances: Sequence[Instance], *, now: bool = False) -> Plan:
    """One after the other: drain, stop, wait for free NPUs, start, gate, back in rotation."""
    groups = []
    for which in instances:
        comparison = context.comparisons[which.id]
        if comparison.state is State.STOPPED:
            raise UsageError(f"{which.id} was {comparison.reason}", next_command=f"fleetctl start {which.id}")
        if comparison.state is State.CREATE:
            raise UsageError(f"{which.id} has no unit yet", next_command=f"fleetctl add-machine {which.machine}")
        groups.append(
            sequence(
                which.id,
                _out(context, "drain", which, now=now),
                instance_steps.bring_up(context, "restart", comparison),
                rotation_steps.undrain(context, "undrain", which) if _known(context, which) else None,
            )
        )
    return _plan(context, "restart", groups)


def start(context: Context, instances: Sequence[Instance]) -> Plan:
    """What was stopped on purpose, parked or down serves again; what serves is left alone."""
    groups = []
    for which in instances:
        facts = context.facts[which.machine]
        unit, health = facts.units.get(which.name), facts.health.get(which.index)
        if unit is None or unit.active == "absent":
            raise UsageError(f"{which.id} has no unit yet", next_command=f"fleetctl add-machine {which.machine}")
        serves = health is not None and health.http == 200 and unit.active == "active" and unit.enabled == "enabled"
        marked = which.name in facts.stopped
        if serves and not marked and (_in_rotation(context, which) or not _known(context, which)):
            continue
        mark = Run(Script("remove_file", (paths.stopped(context.fleet, which),), context.fleet.name))
        groups.append(
            sequence(
                which.id,
                Operation("start", which.machine, which.id, "no longer stopped on purpose", mark) if marked else None,
                None if serves else instance_steps.bring_up(context, "start", context.comparisons[which.id]),
                rotation_steps.undrain(context, "undrain", which) if _known(context, which) else None,
            )
        )
    return _plan(context, "start", groups)


def stop(
    context: Context, instances: Sequence[Instance], *, who: str, when: str, reason: str, now: bool = False
) -> Plan:
    """Drained, stopped and disabled, with a mark that says who and why: it stays stopped until `fleetctl start`."""
    groups = []
    for which in instances:
        facts = context.facts[which.machine]
        unit = facts.units.get(which.name)
        if which.name in facts.stopped and (unit is None or unit.active in ("inactive", "failed", "absent")):
            continue
        note = json.dumps({"who": who, "when": when, "reason": reason}).encode()
        mark = Run(Script("write_file", (paths.stopped(context.fleet, which), "0644"), context.fleet.name), note)
        disable = Run(Script("unit_disable", (f"{which.name}.service",), context.fleet.name), timeout=240)
        groups.append(
            sequence(
                which.id,
                Operation("stop", which.machine, which.id, f"mark as stopped by {who}", mark),
                _out(context, "drain", which, now=now),
                Operation("stop", which.machine, which.id, f"stop and disable {which.name}.service", disable),
                _peer(context, "stop", which, PeerState.OFF, "off in the balancer's table"),
            )
        )
    return _plan(context, "stop", groups)


def rotation(context: Context, instances: Sequence[Instance], *, drain: bool) -> Plan:
    """`drain` and `undrain`: only the balancer's table changes."""
    wanted = PeerState.DRAIN if drain else PeerState.UP
    due = [i for i in instances if any(p.id == i.id and p.state is not wanted for p in context.peers)]
    for which in instances:
        if not _known(context, which):
            raise UsageError(
                f"{which.id} has not joined the balancer",
                next_command=f"fleetctl add-machine {which.machine}",
            )
        if not drain and context.comparisons[which.id].state is State.STOPPED:
            raise UsageError(f"{which.id} was stopped on purpose", next_command=f"fleetctl start {which.id}")
    command = "drain" if drain else "undrain"
    groups = [
        rotation_steps.drain(context, "drain", i)
        if drain
        else sequence(i.id, rotation_steps.undrain(context, "undrain", i))
        for i in due
    ]
    return _plan(context, command, groups)


def balancer(context: Context, verb: str, command: str) -> Plan:
    """`restart|start|stop|reload balancer`: its unit; requests in flight end first (nginx quits gracefully)."""
    unit = f"{context.fleet.inventory.balancer.unit}.service"
    script = {"restart": "unit_restart", "start": "unit_start", "stop": "unit_disable", "reload": "unit_reload"}[verb]
    run = Run(Script(script, (unit,), context.fleet.name), timeout=120)
    operation = Operation(verb, context.balancer, "balancer", f"{verb} {unit}", run)
    return Plan(command, context.fleet.name, sequence(command, operation))
