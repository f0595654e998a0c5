"""`rollout --adopt`: a fleet that was built by hand is taken over while it serves, an instance at a time. Pure.

By hand is a container that has an instance's name and not this fleet's label, with or without a unit of that name, and
an nginx that runs as the unit that the balancer is to be (docs/decisions/adopt.md).
"""

from __future__ import annotations

from dataclasses import replace

from fleetctl.balancer.peers import Peer, PeerState, of_instance, render
from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.observe.facts import Container, Facts
from fleetctl.plan import desired, gate
from fleetctl.plan.build import HELD, op, unit_active, write
from fleetctl.plan.context import Context, archive
from fleetctl.plan.operation import Group, Operation, Run, Wait, sequence


def found(fleet: Fleet, which: Instance, facts: Facts) -> Container | None:
    """The container that somebody made with this instance's name."""
    container = facts.container(which.name)
    return container if container is not None and container.label("fleet") != fleet.name else None


def names(context: Context, machine: int) -> frozenset[str]:
    """Containers of a machine that are taken over by this plan; none without --adopt."""
    if not context.adopt:
        return frozenset()
    fleet, facts = context.fleet, context.facts[machine]
    return frozenset(one.name for one in fleet.on(machine) if found(fleet, one, facts) is not None)


def taken_over(context: Context, which: Instance) -> bool:
    return which.name in names(context, which.machine)


def begun(context: Context) -> Context:
    """The same, with the table to begin with where there is none: whoever answers now, in the inventory's order."""
    return context if context.peers else replace(context, peers=_serving(context), peers_broken=True)


def _serving(context: Context) -> tuple[Peer, ...]:
    fleet = context.fleet
    return tuple(
        of_instance(fleet, one, PeerState.UP)
        for one in fleet.instances
        if one.machine in context.facts
        and found(fleet, one, context.facts[one.machine]) is not None
        and (health := context.facts[one.machine].health.get(one.index)) is not None
        and health.http == 200
    )


def notes(context: Context) -> tuple[str, ...]:
    """For the plan."""
    taken = [
        f"{machine}: {', '.join(sorted(found))}" for machine in context.machines if (found := names(context, machine))
    ]
    return (f"taken over: {'; '.join(taken)}",) if taken else ()


def replace_instance(context: Context, step: str, which: Instance) -> Group:
    """What was built by hand is saved and removed, and the unit takes its place; it takes no requests any more."""
    fleet, machine, folder = context.fleet, which.machine, paths.saved(context.fleet, context.stamp)
    facts, unit = context.facts[machine], f"{which.name}.service"
    has_unit = str(paths.unit(which.name)) in facts.files
    text = context.comparisons[which.id].desired.unit_text
    remove_unit = Run(Script("clean_unit", (folder, unit), fleet.name), timeout=HELD)
    remove_container = Run(Script("clean_container", (folder, which.name), fleet.name), timeout=HELD)
    folders = Run(Script("make_folders", (paths.cache(fleet, which),), fleet.name))
    reload = Run(Script("daemon_reload", (), fleet.name))
    return sequence(
        "adopt",
        op(step, machine, f"stop and remove {unit} (saved in {folder})", remove_unit, which.id) if has_unit else None,
        op(step, machine, f"remove container {which.name} (saved in {folder})", remove_container, which.id),
        op(step, machine, f"make the cache folder of {which.name}", folders, which.id),
        write(context, step, machine, paths.unit(which.name), text),
        op(step, machine, "daemon-reload", reload, which.id),
    )


def foreign_balancer(context: Context) -> bool:
    """What runs as the balancer's unit was not started from ours: a restart would refuse and cut connections."""
    where, unit = context.balancer, context.fleet.inventory.balancer.unit
    wanted = desired.balancer(context.fleet, context.facts[where], context.peers)
    if not context.adopt or context.plain or wanted is None or not unit_active(context, where, unit):
        return False
    path = str(paths.unit(unit))
    return context.facts[where].files.get(path) != desired.sha256(wanted.beside[path])


def balancer(context: Context, wanted: desired.DesiredBalancer, shadow: tuple[Operation, ...]) -> Group:
    """The running nginx takes our configuration with a reload, so that no connection is refused and none is cut.

    Requests that its old workers have are not counted by the new ones: nothing is drained before they are through.
    """
    fleet, where = context.fleet, context.balancer
    name = fleet.inventory.balancer.unit
    unit, folder = f"{name}.service", paths.saved(fleet, context.stamp)
    args = (wanted.folder, unit, folder, fleet.name, context.state_url)
    take = Run(Script("balancer_adopt", args, fleet.name), archive(wanted.files), HELD)
    through = Wait(
        Script("old_workers", (unit,)), gate.nobody_left, fleet.inventory.rollout.drain_timeout, 15, interval=1.0
    )
    saved = Run(Script("unit_by_hand", (folder, unit), fleet.name))
    listed = (paths.applied(fleet), desired.applied(wanted.folder, wanted.files))
    return sequence(
        "balancer",
        *shadow,
        op("balancer", where, f"save {unit} in {folder}", saved, "balancer"),
        write(context, "balancer", where, paths.peers(fleet), render(context.peers))
        if context.facts[where].peers is None
        else None,
        op("balancer", where, f"the running nginx takes the configuration of {wanted.folder}", take, "balancer"),
        *(write(context, "balancer", where, path, text) for path, text in (*wanted.beside.items(), listed)),
        op(
            "balancer",
            where,
            f"daemon-reload, enable {unit}",
            Run(Script("unit_enable", (unit,), fleet.name)),
            "balancer",
        ),
        op("balancer", where, "wait for requests of its old workers", through, "balancer"),
    )
