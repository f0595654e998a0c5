"""expand(playbook, desired, observed) -> operations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from fleetctl.balancer.peers import Peer
from fleetctl.commands import paths
from fleetctl.observe.facts import Facts
from fleetctl.plan import adopt, build, checks, instances, own_steps, removal, rotation, steps, tally
from fleetctl.plan.context import Context
from fleetctl.plan.desired import State
from fleetctl.plan.operation import Group, Node, Plan, sequence
from fleetctl.plan.playbook import Playbook, RunStep, Stage
from fleetctl.plan.release import highest, partly


def expand(playbook: Playbook, context: Context, command: str) -> Plan:
    """The operations that bring the command's machines to the desired state, none when they are there."""
    started = context
    said = (*_notes_of(playbook, context), *playbook.left_out)
    groups: list[tuple[Stage, Group, Context, Context]] = []
    for stage in playbook.stages:
        before = context
        group, context = _stage(stage, context, command)
        groups.append((stage, group, before, context))
    own = {one.name for stage in playbook.stages for one in stage.steps if isinstance(one, RunStep)}
    idle = {"release", "record", *own}
    work = any(op.step not in idle for _, group, _, _ in groups for op in group.operations())
    if not work and (started.release is None or started.settled):
        return Plan(command, started.fleet.name, sequence(playbook.name), notes=said)
    root = sequence(playbook.name, *(node for one in groups for node in _with_hooks(*one, command)))
    return Plan(command, started.fleet.name, root, notes=(*said, *tally.notes(root, started.past_starts)))


def _with_hooks(stage: Stage, group: Group, before: Context, after: Context, command: str) -> tuple[Node, ...]:
    """A stage that has nothing to do has no hooks either; of one that is all the user's own, the steps are its work."""
    if not group:
        return ()
    return (
        own_steps.hooks(stage.before, before, stage.name, "before", command),
        group,
        own_steps.hooks(stage.after, after, stage.name, "after", command),
    )


def _stage(stage: Stage, context: Context, command: str) -> tuple[Group, Context]:
    machines: list[Node] = []
    kinds = [step for step in stage.steps if isinstance(step, str)]
    order = _order(stage, context)
    for machine in order:
        parts: list[Node] = [
            _step(step, context, machine, first=machine == order[0])
            if isinstance(step, str)
            else own_steps.step(step, context, stage.name, machine, command)
            for step in stage.steps
            if isinstance(step, str) or own_steps.place(step, context, machine) in context.facts
        ]
        # The user's own steps go with the work that they stand beside.
        if not kinds or any(isinstance(part, Group) and part for part in parts):
            machines.append(sequence(str(machine), *parts))
        if "roll" in kinds:
            context = _with_peers(context, rotation.after_roll(context, machine))
        if "join" in kinds:
            context = _with_peers(context, rotation.after_join(context, machine))
        if "orphans" in kinds:
            context = removal.after_orphans(context, machine)
        if "leave" in kinds:
            context = removal.after_leave(context, machine)
    group = Group(stage.name, sequence(stage.name, *machines).children, parallel=stage.parallel)
    return group, context


def _step(step: str, context: Context, machine: int, *, first: bool) -> Group:
    """The balancer's goes with whoever comes first: it is there before anybody is taken out of it."""
    if step == "balancer":
        return steps.STEPS[step](context, context.machines[0]) if first else sequence(step)
    return steps.STEPS[step](context, machine)


def _order(stage: Stage, context: Context) -> list[int]:
    """Joining order; where what serves is changed, first whose instances an earlier run left out, then the canary's."""
    if "roll" not in stage.steps:
        return list(context.machines)
    canary = None if context.canary is None else int(context.canary.split("/")[0])
    return sorted(
        context.machines,
        key=lambda machine: (not build.unproved(context, machine), canary is not None and machine != canary),
    )


def _with_peers(context: Context, peers: tuple[Peer, ...]) -> Context:
    """Later machines see the table as this one leaves it."""
    after = replace(context, peers=peers)
    object.__setattr__(after, "comparisons", context.comparisons)
    return after


def _notes_of(playbook: Playbook, context: Context) -> tuple[str, ...]:
    return removal.notes(context) if playbook.name == removal.PLAYBOOK else _notes(context)


def _notes(context: Context) -> tuple[str, ...]:
    notes = [
        f"{c.desired.instance.id} stays stopped: {c.reason} (fleetctl start {c.desired.instance.id})"
        for c in context.comparisons.values()
        if c.state is State.STOPPED
    ]
    if context.current is None and (past := highest(one for f in context.facts.values() for one in f.releases)):
        notes.append(
            f"no machine has the record of the release in force any more, past releases up to {past} are there: "
            "what it had over the inventory is not known here (fleetctl history)"
        )
    record = paths.release(context.fleet)
    notes += [f"{machine}: {words}" for machine, words in broken_records(context.facts, record)]
    notes += _partial(context)
    notes += build.stays_drained(context, (c.desired.instance for c in context.comparisons.values()))
    notes += removal.moving(context)
    notes += adopt.notes(context)
    folder = paths.saved(context.fleet, context.stamp)
    for machine in context.machines:
        units, containers = checks.to_clean(context.fleet.machines[machine], context.facts[machine], context.fleet)
        if units or containers:
            notes.append(
                f"what is cleaned on {machine} is saved there in {folder}; to restore a unit: "
                f"cp {folder}/NAME.service /etc/systemd/system/ && systemctl enable --now NAME"
            )
    return tuple(notes)


def _partial(context: Context) -> list[str]:
    """Machines that serve, and stay with what they run."""
    serve = {removal.machine_of(peer) for peer in context.peers}
    machines = [m for m in context.fleet.machines if m in context.machines or str(m) in serve]
    parts = partly(context.release, machines) if context.release is not None else None
    if context.release is None or parts is None:
        return []
    return [
        f"release {context.release.number} is then on {parts[0]}, and not on {parts[1]}: only the former can go back "
        "to it later (fleetctl rollout --resume brings it to all)"
    ]


def broken_records(seen: Mapping[int, Facts], path: PurePosixPath) -> list[tuple[int, str]]:
    """Machine and words of records of the release in force that are none any more: the next rollout writes them."""
    broken = [machine for machine, facts in seen.items() if "release" in facts.failed]
    return [(machine, f"{path} is no record of a release any more: a rollout writes it anew") for machine in broken]


def problems(context: Context) -> dict[int, list[str]]:
    """Everything that is wrong before any change, by machine."""
    fleet, source = context.fleet, context.facts[context.source]
    found: dict[int, list[str]] = {}
    for machine in sorted({*context.machines, context.balancer}):
        facts = context.facts[machine]
        listed = (
            checks.machine_problems(fleet, fleet.machines[machine], facts, adopted=adopt.names(context, machine))
            if machine in context.machines
            else checks.balancer_problems(fleet, fleet.machines[machine], facts)
        )
        listed += checks.unreachable(fleet, facts, context.machines)
        needs_image = machine in context.machines and context.new_image(machine)
        needs_model = machine in context.machines and context.new_model(machine)
        # A copy that goes on from an earlier run has its room already.
        needs_image = needs_image and facts.jobs.get(paths.job(fleet, "image")) != "running"
        needs_model = needs_model and facts.jobs.get(paths.job(fleet, "model")) != "running"
        if not fleet.machines[machine].clean.first:
            listed += checks.space_problems(fleet, source, facts, image=needs_image, model=needs_model)
        if listed:
            found[machine] = listed
    if (busy := instances.too_busy(context)) is not None:
        found.setdefault(context.balancer, []).append(busy)
    if context.adopt and context.plain:
        found.setdefault(context.balancer, []).append("--adopt needs an nginx with Lua: balancer.mode is plain")
    if context.third_key:
        half_done = (
            "a change to another API key is half done, and secrets.api_key gives a third one: first finish that one"
        )
        found.setdefault(context.balancer, []).append(half_done)
    if context.table_elsewhere and (blind := instances.serving_unseen(context)):
        found.setdefault(context.balancer, []).append(
            f"no balancer runs here yet, so {', '.join(blind)} could not be drained before they change: "
            "first move the balancer alone (fleetctl rollout --resume), then roll out what is new"
        )
    whole = [
        *checks.source_problems(fleet, source, [context.facts[m] for m in context.machines]),
        *checks.equal_everywhere(context.facts.values()),
    ]
    if whole:
        found.setdefault(context.source, []).extend(whole)
    return found


def needs_weights(context: Context) -> bool:
    """Whether the model is to be copied, to be hashed (on shared storage it never was), or loaded with other flags."""
    source = context.facts[context.source].model
    if source is None or not source.present:
        return False
    if source.verified is None or any(context.new_model(machine) for machine in context.machines):
        return True
    return any(one.state in (State.CREATE, State.RECREATE) for one in context.comparisons.values())
