"""Plans of the commands that act on instances by name: restart, start, stop, drain, undrain. Pure.

Nothing that serves is stopped before it is drained, unless the person says --now (design, promise 5).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fleetctl.balancer.peers import PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, UsageError
from fleetctl.fleet.instance import Instance
from fleetctl.plan import drift, tally
from fleetctl.plan import instances as instance_steps
from fleetctl.plan import rotation as rotation_steps
from fleetctl.plan.build import enable, held, in_rotation, stays_drained, unit_active
from fleetctl.plan.context import Context, set_state
from fleetctl.plan.desired import State
from fleetctl.plan.operation import Group, Judgement, Operation, Plan, Run, Verdict, sequence


def _plan(context: Context, command: str, groups: Sequence[Group], notes: Sequence[str] = ()) -> Plan:
    root = sequence(command, *groups)
    return Plan(command, context.fleet.name, root, (*notes, *tally.notes(root, context.past_starts)))


def _known(context: Context, which: Instance) -> bool:
    return any(peer.id == which.id for peer in context.peers)


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
        return sequence("out", None if seen is PeerState.HELD else rotation_steps.take_out(context, step, which))
    return rotation_steps.drain(context, step, which)


def _back(context: Context, which: Instance) -> Group | None:
    """In rotation again, when it has joined."""
    if not _known(context, which):
        return None
    # Its machine's file may still be the old key's: a change of the key was cut short.
    new = context.facts[which.machine].files.get(str(paths.api_key(context.fleet))) == context.key_hash
    return rotation_steps.undrain(context, "undrain", which, started_with_key=new)


def _refuse_what_was_edited(context: Context, which: Instance) -> None:
    """Whoever types `restart` wants the instance that was there, not what somebody made of its unit meanwhile."""
    by_hand = context.comparisons[which.id].by_hand
    key = drift.key(context.fleet, context.facts[which.machine], context.facts.get(context.balancer))
    found = (
        (
            "units",
            by_hand,
            "it would start as something else than fleetctl wrote",
            "saves the edit and puts the unit right",
        ),
        ("key", key, "it would refuse what the others answer", "writes the key"),
    )
    for step, edited, then, mend in found:
        if edited is not None:
            raise CommandError(
                f"{which.id}: {edited}: {then}",
                machine=which.machine,
                step=step,
                state="nothing was changed",
                next_command=f"fleetctl rollout --resume, which {mend}",
            )


def restart(context: Context, instances: Sequence[Instance], *, now: bool = False) -> Plan:
    """One after the other: drain, stop, wait for free NPUs, start, gate, back in rotation."""
    groups = []
    for which in instances:
        comparison = context.comparisons[which.id]
        if comparison.state is State.STOPPED:
            raise UsageError(f"{which.id} was {comparison.reason}", next_command=f"fleetctl start {which.id}")
        if comparison.state is State.CREATE:
            raise UsageError(f"{which.id} has no unit yet", next_command=f"fleetctl add-machine {which.machine}")
        _refuse_what_was_edited(context, which)
        groups.append(
            sequence(
                which.id,
                _out(context, "drain", which, now=now),
                instance_steps.bring_up(context, "restart", comparison),
                _back(context, which),
            )
        )
    return _plan(context, "restart", groups, stays_drained(context, instances))


def start(context: Context, instances: Sequence[Instance]) -> Plan:
    """What was stopped on purpose, parked or down serves again; what serves is left alone."""
    groups = []
    for which in instances:
        facts = context.facts[which.machine]
        unit, health = facts.units.get(which.name), facts.health.get(which.index)
        if unit is None or unit.active == "absent":
            raise UsageError(f"{which.id} has no unit yet", next_command=f"fleetctl add-machine {which.machine}")
        serves = health is not None and health.http == 200 and unit.active == "active"
        disabled = unit.enabled != "enabled"
        marked = which.name in facts.stopped
        settled = in_rotation(context, which) or held(context, which) or not _known(context, which)
        if serves and not marked and settled and not disabled:
            continue
        if not serves:
            _refuse_what_was_edited(context, which)
        mark = Run(Script("remove_file", (paths.stopped(context.fleet, which),), context.fleet.name))
        groups.append(
            sequence(
                which.id,
                Operation("start", which.machine, which.id, "no longer stopped on purpose", mark) if marked else None,
                enable(context, "start", which) if serves and disabled else None,
                None if serves else instance_steps.bring_up(context, "start", context.comparisons[which.id]),
                _back(context, which),
            )
        )
    return _plan(context, "start", groups, stays_drained(context, instances))


def stop(
    context: Context, instances: Sequence[Instance], *, who: str, when: str, reason: str, now: bool = False
) -> Plan:
    """Drained, stopped and disabled, with a mark that says who and why: it stays stopped until `fleetctl start`."""
    groups, out = [], []
    for which in instances:
        facts = context.facts[which.machine]
        unit = facts.units.get(which.name)
        if in_rotation(context, which):
            out.append(which)
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
    return _plan(context, "stop", groups, _moves(context, out, PeerState.OFF) if out else ())


def rotation(context: Context, instances: Sequence[Instance], *, drain: bool) -> Plan:
    """`drain` and `undrain`: only the balancer's table changes. All are taken out before any is waited for."""
    command = "drain" if drain else "undrain"
    _refuse_when_none_can(context, instances)
    states = {peer.id: peer.state for peer in context.peers}
    stopped = [i for i in instances if context.comparisons[i.id].state is State.STOPPED]
    there = [i for i in instances if i.id in states and i not in stopped]
    due = [i for i in there if states[i.id] is not (PeerState.HELD if drain else PeerState.UP)]
    notes = [
        *(f"{i.id} stays stopped (fleetctl start {i.id})" for i in stopped),
        *(f"{i.id} has not joined (fleetctl add-machine {i.machine})" for i in instances if i.id not in states),
    ]
    if due:
        notes += _moves(context, due, PeerState.HELD if drain else PeerState.UP)
    if not drain:
        groups = [sequence(i.id, rotation_steps.undrain(context, "undrain", i, by_hand=True)) for i in due]
        return _plan(context, command, groups, notes)
    # One that is held already may still be busy: an earlier drain was cut short while it waited.
    live = context.facts[context.balancer].balancer
    busy = {peer.id for peer in live.peers if peer.inflight} if live else set()
    out = sequence("out", *(rotation_steps.take_out(context, "drain", i, by_hand=True) for i in due))
    waits = (rotation_steps.wait_drained(context, "drain", i) for i in there if i in due or i.id in busy)
    return _plan(context, command, [out, sequence("wait", *waits)], notes)


def _moves(context: Context, which: Sequence[Instance], state: PeerState) -> list[str]:
    """Notes on what users will see of it."""
    after = set_state(context.fleet, tuple(which), state, by_hand=True)(context.peers)
    notes = [f"{rotation_steps.share(context, after)} of sessions move"]
    if not any(peer.state is PeerState.UP for peer in after):
        notes.append("no backend is left: every request will be answered 503")
    return notes


def _refuse_when_none_can(context: Context, instances: Sequence[Instance]) -> None:
    """A usage error when none of these instances can be in rotation."""
    joined = [which for which in instances if _known(context, which)]
    if not joined:
        which = instances[0]
        raise UsageError(
            f"{which.id} has not joined the balancer", next_command=f"fleetctl add-machine {which.machine}"
        )
    if all(context.comparisons[which.id].state is State.STOPPED for which in joined):
        raise UsageError(f"{joined[0].id} was stopped on purpose", next_command=f"fleetctl start {joined[0].id}")


def balancer(context: Context, verb: str, command: str) -> Plan:
    """`restart|start|stop|reload balancer`: its unit; requests in flight end first (nginx quits gracefully).

    One that serves is not stopped for files that nginx would refuse; Lua, which nginx does not test, is run as applied.
    """
    serves = unit_active(context, context.balancer, context.fleet.inventory.balancer.unit)
    unit = f"{context.fleet.inventory.balancer.unit}.service"
    script = {"restart": "unit_restart", "start": "unit_start", "stop": "unit_disable", "reload": "unit_reload"}[verb]
    arguments = (unit, context.state_url) if verb == "reload" else (unit,)
    again = None if verb == "stop" else "fleetctl rollout --resume, which puts its files right"
    known = Script("balancer_test", (unit, verb, paths.applied(context.fleet)))
    state = "the balancer runs on" if serves else "nothing was changed"
    test = Run(known, judge=_accepted, state=state, next_command=again)
    tested = verb in ("restart", "start")
    uses = ("unit_up",) if tested else ()
    run = Run(Script(script, arguments, context.fleet.name, uses=uses), timeout=120, next_command=again)
    root = sequence(
        command,
        Operation(verb, context.balancer, "balancer", "test its configuration", test) if tested else None,
        Operation(verb, context.balancer, "balancer", f"{verb} {unit}", run),
    )
    return Plan(command, context.fleet.name, root)


def _accepted(said: str) -> Judgement:
    """Of what balancer_test printed."""
    words = said.strip()
    return Judgement(Verdict.DEAD if words else Verdict.PASS, f"its configuration is refused: {words}" if words else "")
