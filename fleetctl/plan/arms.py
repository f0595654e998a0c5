"""The plan of a round of `bench ab`: instances change to their arm by the steps of a rollout. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.fleet.instance import Instance
from fleetctl.plan import canary, instances
from fleetctl.plan.build import in_rotation, op, write
from fleetctl.plan.context import Context
from fleetctl.plan.desired import State
from fleetctl.plan.experiment import Experiment
from fleetctl.plan.operation import Group, Operation, Plan, Run, sequence, side_by_side

STEP = "ab"


def candidates(context: Context, chosen: Sequence[Instance]) -> tuple[Instance, ...]:
    """Those that take requests now: what a person stopped or drained stays as it is."""
    return tuple(
        one for one in chosen if context.comparisons[one.id].state is State.UP_TO_DATE and in_rotation(context, one)
    )


def begin(context: Context, experiment: Experiment) -> Group:
    """The mark on every machine, before anything there is changed."""
    path = paths.experiment(context.fleet)
    own = {name.partition("/")[0] for name in experiment.instances}
    machines = [machine for machine in context.machines if str(machine) in own]
    return side_by_side("begin", *(write(context, STEP, machine, path, experiment.text()) for machine in machines))


def change(context: Context, arms: Mapping[str, int], command: str, mark: Experiment | None = None) -> Plan:
    """Every instance of `arms` (instance -> speculative tokens) gets its arm and a fresh start, drained before.

    At most max_unavailable at a time. `mark`: this is the first round; the mark is written, and of every arm that the
    release has not, the first instance goes alone and is asked what a canary is asked.
    """
    own = {tokens: _with_tokens(context, tokens) for tokens in set(arms.values())}
    chosen = [one for one in context.fleet.instances if one.id in arms]
    first = _canaries(context, chosen, arms) if mark is not None else []
    rest = [one for one in chosen if one not in first]
    alone = []
    for one in first:
        sibling = next((other for other in rest if other.machine == one.machine), None)
        alone.append(_give(own[arms[one.id]], one, arms[one.id], sibling=sibling, ask=True))
    size = instances.batch_size(context)
    batches = [
        side_by_side("batch", *(_give(own[arms[one.id]], one, arms[one.id]) for one in rest[start : start + size]))
        for start in range(0, len(rest), size)
    ]
    root = sequence(command, begin(context, mark) if mark is not None else None, *alone, *batches)
    return Plan(command, context.fleet.name, root)


def _with_tokens(context: Context, tokens: int) -> Context:
    """The same fleet, were this its number of speculative tokens."""
    overrides = replace(context.fleet.overrides, tokens=tokens)
    return replace(context, fleet=context.fleet.with_overrides(overrides))


def _canaries(context: Context, chosen: Sequence[Instance], arms: Mapping[str, int]) -> list[Instance]:
    """The first instance of every arm that does not run yet; nobody where there is nobody to be spared."""
    firsts = {arms[one.id]: one for one in reversed(chosen) if arms[one.id] != (context.fleet.tokens or 0)}
    return [one for one in chosen if one in firsts.values()] if len(chosen) > len(firsts) else []


def _give(
    context: Context, which: Instance, tokens: int, *, sibling: Instance | None = None, ask: bool = False
) -> Group:
    """`context` has the fleet with this arm. A start of its own also where nothing differs: a start is what is
    compared, and an engine that has run for weeks beside fresh ones is no fair arm."""
    seen = context.comparisons[which.id]
    due = replace(seen, state=State.RECREATE, reason=f"mtp {tokens}")
    asked: Operation | None = canary.operation(context, "canary", which, sibling) if ask else None
    unit = write(context, STEP, which.machine, paths.unit(which.name), seen.desired.unit_text)
    reload = op(STEP, which.machine, "daemon-reload", Run(Script("daemon_reload", (), context.fleet.name)))
    changed = (unit, reload) if seen.write_unit else ()
    return sequence(which.id, *changed, instances.replace_serving(context, STEP, due, asked))
