"""The step kinds that remove what ran before: only what the inventory lists, its definitions saved first. Pure."""

from __future__ import annotations

from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.plan import checks
from fleetctl.plan.build import HELD, op, unit_active
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Group, Run, sequence


def make_room(context: Context, machine: int) -> Group:
    """Clean before copying, on machines whose inventory says `clean: first` because their disk demands it."""
    if not context.fleet.machines[machine].clean.first:
        return sequence("make-room")
    return clean_now(context, machine, "make-room")


def clean(context: Context, machine: int) -> Group:
    """Only what the inventory lists, its definitions saved first; what ran before runs on while things are copied."""
    return sequence("clean") if context.fleet.machines[machine].clean.first else clean_now(context, machine)


def clean_now(context: Context, machine: int, step: str = "clean") -> Group:
    fleet, facts = context.fleet, context.facts[machine]
    units, containers = checks.to_clean(fleet.machines[machine], facts, fleet)
    folder = paths.saved(fleet, context.stamp)
    operations = [
        op(
            step,
            machine,
            f"stop, disable and remove {unit} (saved in {folder})",
            Run(Script("clean_unit", (folder, unit), fleet.name), timeout=HELD),
        )
        for unit in units
    ]
    operations += [
        op(
            step,
            machine,
            f"remove container {c.name} (saved in {folder})",
            Run(Script("clean_container", (folder, c.name), fleet.name), timeout=HELD),
        )
        for c in containers
    ]
    balancer = fleet.inventory.balancer
    for process in fleet.machines[machine].clean.processes:
        if not checks.cleanable_process(fleet.machines[machine], facts, process.port, process.executable):
            continue
        if process.port == balancer.listen and unit_active(context, machine, balancer.unit):
            continue
        script = Script("clean_process", (folder, process.port, process.executable), fleet.name)
        operations.append(
            op(
                step,
                machine,
                f"stop {process.executable} on port {process.port} by pid",
                Run(script, timeout=HELD),
            )
        )
    return sequence(step, *operations)
