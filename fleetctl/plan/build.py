"""What every step kind needs to say an operation. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.balancer.peers import PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.fleet.instance import Instance
from fleetctl.plan import causes, desired, gate
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Action, Operation, Run, Wait

HELD = 120.0


def op(step: str, machine: int, summary: str, action: Action, target: str | None = None, id: str = "") -> Operation:
    return Operation(step, machine, target or str(machine), summary, action, id)


def write(context: Context, step: str, machine: int, path: object, text: str, mode: str = "0644") -> Operation:
    script = Script("write_file", (str(path), mode), context.fleet.name)
    return op(step, machine, f"write {path}", Run(script, text.encode()))


def enable(context: Context, step: str, which: Instance) -> Operation:
    """It serves, and would not come back after a reboot."""
    run = Run(Script("unit_enable", (f"{which.name}.service",), context.fleet.name))
    return op(step, which.machine, f"enable {which.name}.service: it was disabled by hand", run, which.id)


def unit_active(context: Context, machine: int, unit: str) -> bool:
    seen = context.facts[machine].units.get(unit)
    return seen is not None and seen.active in ("active", "activating", "reloading")


def in_rotation(context: Context, instance: Instance) -> bool:
    return any(peer.id == instance.id and peer.state is PeerState.UP for peer in context.peers)


def held(context: Context, instance: Instance) -> bool:
    """A person drained it: it stays so until `fleetctl undrain`."""
    return any(peer.id == instance.id and peer.state is PeerState.HELD for peer in context.peers)


def stays_drained(context: Context, instances: Iterable[Instance]) -> tuple[str, ...]:
    """Notes for the plan."""
    return tuple(
        f"{i.id} stays drained, as somebody asked (fleetctl undrain {i.id})" for i in instances if held(context, i)
    )


def comparisons_on(context: Context, machine: int) -> list[desired.Comparison]:
    return [context.comparisons[instance.id] for instance in context.fleet.on(machine)]


def unproved(context: Context, machine: int) -> list[desired.Comparison]:
    """Instances that a run of the release in force changed and left drained: one may be the canary that failed."""
    if context.current is None or context.current.outcome == "good":
        return []
    drained = {peer.id for peer in context.peers if peer.state is PeerState.DRAIN}
    return [
        c
        for c in comparisons_on(context, machine)
        if c.state is desired.State.UP_TO_DATE and c.desired.instance.id in drained
    ]


def gate_operation(context: Context, step: str, which: Instance) -> Operation:
    """Unit, container, own NPUs, /health, name, 401 without the key, one real completion with it."""
    fleet = context.fleet
    unit, model_name = f"{which.name}.service", fleet.inventory.model.name
    script = Script("gate", (unit, which.name, f"http://{which.address}", paths.api_key(fleet), model_name))
    wait = Wait(
        script,
        gate.serving(which, model_name),
        fleet.inventory.rollout.start_timeout,
        on_failure=Script("gate_log", (unit, 30)),
        explain=causes.known,
    )
    return op(step, which.machine, "wait until it answers a completion", wait, which.id)
