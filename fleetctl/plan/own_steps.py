"""The user's own `run:` steps and hooks as operations: ordinary scripts, with the facts of their place. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.balancer.peers import PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Inline, Script, Word
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Group, Operation, Run, sequence, side_by_side
from fleetctl.plan.playbook import RunStep

SLACK = 15.0  # seconds beyond its own limit, which the machine keeps
HELD = 600  # seconds that the machine's step lock may keep it waiting


def step(own: RunStep, context: Context, stage: str, machine: int, command: str) -> Operation:
    """One machine's turn of a `run:` step; `on: balancer` and `on: source` run there, about this machine."""
    where = place(own, context, machine)
    known = facts(context, stage, machine, command, own.name)
    limits: tuple[Word, ...] = (paths.state(context.fleet), own.timeout)
    text = Script("run_step", (*limits, *known), context.fleet.name, HELD).text
    script = Inline("run", known, source=text)  # the error names the step before it
    return Operation(own.name, where, str(machine), own.shown, Run(script, own.program, own.timeout + SLACK + HELD))


def place(own: RunStep, context: Context, machine: int) -> int:
    """The machine that it runs on."""
    return {"balancer": context.balancer, "source": context.source}.get(own.on, machine)


def hooks(own: Sequence[RunStep], context: Context, stage: str, when: str, command: str) -> Group:
    """Hooks one after the other, each side by side on the machines; on the balancer or the source once."""
    groups = []
    for one in own:
        where = {"balancer": (context.balancer,), "source": (context.source,)}.get(one.on, context.machines)
        there = [machine for machine in where if machine in context.facts]
        groups.append(side_by_side(one.name, *(step(one, context, stage, machine, command) for machine in there)))
    return sequence(f"{when} {stage}", *groups)


def facts(context: Context, stage: str, machine: int, command: str, name: str) -> tuple[str, ...]:
    """`NAME=VALUE`, what is unknown is empty. Never the key: it is in KEY_FILE, on the machine."""
    fleet, release = context.fleet, context.release or context.current
    instances = fleet.on(machine)
    up = [peer.address for peer in context.peers if peer.state is PeerState.UP]
    found = {
        "FLEET": fleet.name,
        "COMMAND": command,
        "STAGE": stage,
        "STEP": name,
        "MACHINE": str(machine),
        "ADDRESS": fleet.machines[machine].address,
        "MACHINES": " ".join(map(str, context.machines)),
        "INSTANCES": " ".join(one.id for one in instances),
        "UNITS": " ".join(f"{one.name}.service" for one in instances),
        "ADDRESSES": " ".join(one.address for one in instances),
        "BACKENDS": " ".join(up),
        "RELEASE": str(release.number) if release else "",
        "TOKENS": str(fleet.tokens) if fleet.tokens is not None else "",
        "IMAGE": fleet.image,
        "MODEL": fleet.inventory.model.name,
        "MODEL_PATH": str(fleet.inventory.model.path),
        "BALANCER": fleet.machines[context.balancer].address,
        "LISTEN": str(fleet.inventory.balancer.listen),
        "SOURCE": fleet.machines[context.source].address,
        "KEY_FILE": str(paths.api_key(fleet)),
    }
    return tuple(f"{key}={value}" for key, value in found.items())
