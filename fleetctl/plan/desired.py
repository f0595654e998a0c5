"""What a machine should look like, and whether it does: the comparison every plan and `status` are made from. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath

from fleetctl.balancer import config, plain
from fleetctl.balancer.peers import Peer
from fleetctl.commands import paths, units
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.observe.facts import Container, Facts
from fleetctl.plan import differences, drift


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


APPLIED = "applied.sha256"  # the list of the balancer's files, in the tar that brings them


def applied(folder: PurePosixPath, files: Mapping[str, str]) -> str:
    """What `sha256sum -c` reads: the balancer's files by their paths, as they are meant to be."""
    return "".join(f"{sha256(text)}  {folder / name}\n" for name, text in sorted(files.items()))


@dataclass(frozen=True)
class DesiredInstance:
    instance: Instance
    unit_text: str
    spec: str


def instance(fleet: Fleet, which: Instance, facts: Facts) -> DesiredInstance:
    text, spec = units.instance(fleet, which, facts.topology)
    return DesiredInstance(which, text, spec)


class State(str, Enum):
    UP_TO_DATE = "up to date"
    CREATE = "create"
    RECREATE = "recreate"
    START = "start"
    LOADING = "loading"
    STOPPED = "stopped on purpose"


@dataclass(frozen=True)
class Comparison:
    """Of one instance: what has to happen and why. `write_unit`: the unit file has another text.

    `by_hand`: what somebody changed about the unit, in words. `enable`: that is all it takes.
    """

    desired: DesiredInstance
    state: State
    reason: str
    write_unit: bool
    by_hand: str | None = None
    enable: bool = False


def compare(
    fleet: Fleet, which: Instance, facts: Facts, *, new_image: bool, new_key: bool = False, new_model: bool = False
) -> Comparison:
    """Desired against observed for one instance. `new_image`, ...: this plan changes those of the machine."""
    desired = instance(fleet, which, facts)
    seen = facts.files.get(str(paths.unit(which.name)))
    write_unit = seen != sha256(desired.unit_text)
    state, reason = _state(fleet, desired, facts, seen, write_unit, new_image)
    by_hand, unit = drift.by_hand(which, facts), facts.units.get(which.name)
    if by_hand is not None and state in (State.UP_TO_DATE, State.RECREATE, State.LOADING):
        state, reason = State.RECREATE, by_hand
    health = facts.health.get(which.index)
    if state is State.UP_TO_DATE and (new_key or (health is not None and health.accepts_key is False)):
        state, reason = State.RECREATE, "it was started with another API key"
    if state is State.UP_TO_DATE and (new_model or _older_than_model(facts, which)):
        state, reason = State.RECREATE, "it loaded another version of the model"
    disabled = unit is not None and unit.enabled != "enabled"
    enable = disabled and state in (State.UP_TO_DATE, State.LOADING)
    return Comparison(desired, state, reason, write_unit, by_hand, enable)


def _older_than_model(facts: Facts, which: Instance) -> bool:
    """It was started before the files that are there now were put there."""
    container = facts.container(which.name)
    if container is None or container.created is None or facts.model is None or facts.model.since is None:
        return False
    return facts.model.verified is not None and container.created < facts.model.since


def _state(
    fleet: Fleet, desired: DesiredInstance, facts: Facts, seen: str | None, write_unit: bool, new_image: bool
) -> tuple[State, str]:
    which = desired.instance
    if which.name in facts.stopped:
        note = facts.stopped[which.name]
        return State.STOPPED, f"stopped by {note.who} {note.when}".rstrip()
    container, unit = facts.container(which.name), facts.units.get(which.name)
    signed = units.edited(facts.unit_texts.get(str(paths.unit(which.name)), "")) is not None
    if container is not None and container.state == "running" and container.label("fleet") != fleet.name:
        return State.RECREATE, "its container is not this fleet's"
    if seen is None:
        runs = container is not None and container.state == "running"
        return (State.RECREATE, drift.GONE) if runs else (State.CREATE, "it has no unit")
    if container is None or container.state != "running" or unit is None or unit.active != "active":
        if which.name in facts.parked and unit is not None and unit.active in ("inactive", "failed"):
            return State.START, f"parked by the watchdog: {facts.parked[which.name].reason}"
        return (
            State.START,
            f"unit {unit.active if unit else 'unknown'}, container {container.state if container else 'absent'}",
        )
    if container.label("spec") != desired.spec:
        return State.RECREATE, _difference(fleet, desired, container, facts)
    if new_image or (facts.image is not None and container.image_id != facts.image.id):
        return State.RECREATE, "it runs another image"
    header = facts.unit_texts.get(str(paths.unit(which.name)), "").partition("[Unit]")[0]
    if write_unit and not (signed and f" spec={desired.spec} " not in header):
        # What was written for other flags and never started, in a rollout that was cut short, is put right and no more.
        other = "its unit was written by another fleetctl"
        return State.RECREATE, other if signed else f"{other} or changed by hand"
    health = facts.health.get(which.index)
    if (health is None or not health.http) and _young(fleet, container, facts):
        return State.LOADING, "it is still loading"
    if health is None or health.http != 200:
        return State.START, f"/health answers {health.http if health and health.http else 'nothing'}"
    return State.UP_TO_DATE, ""


def _difference(fleet: Fleet, desired: DesiredInstance, container: Container, facts: Facts) -> str:
    """Between what runs and what is wanted: the tokens, and the flags as its unit has them, if that started it."""
    old, new = container.label("tokens"), str(fleet.tokens or 0)
    tokens = [f"mtp {old} -> {new}"] if old != new else []
    text = facts.unit_texts.get(str(paths.unit(desired.instance.name)), "")
    started_it = f" spec={container.label('spec')} " in text.partition("[Unit]")[0]
    flags = differences.options(text, desired.unit_text, tokens_said=bool(tokens)) if started_it else ""
    return ", ".join([*tokens, *([flags] if flags else [])]) or "its flags, mounts or devices differ"


def _young(fleet: Fleet, container: Container, facts: Facts) -> bool:
    """It may still be loading: to stop it now would throw minutes of work away."""
    if container.created is None or facts.now is None:
        return False
    return facts.now - container.created < fleet.inventory.rollout.start_timeout


@dataclass(frozen=True)
class DesiredBalancer:
    """`files` by path relative to `folder`, `beside` by absolute path (unit, log rotation).

    `hash` is what the running balancer has to say of itself.
    """

    flavour: config.Flavour
    folder: PurePosixPath
    files: dict[str, str]
    hash: str
    beside: dict[str, str]


def balancer(fleet: Fleet, facts: Facts, peers: Sequence[Peer]) -> DesiredBalancer | None:
    """None where the machine has no usable nginx (a preflight problem). `peers` are part of it only without Lua."""
    if fleet.inventory.balancer.mode == "plain":
        flavour = config.PLAIN if facts.flavour else None
    else:
        flavour = config.FLAVOURS.get(facts.flavour or "")
    if flavour is None:
        return None
    if flavour is config.PLAIN:
        files = plain.render(fleet, flavour, peers)
        loaded = plain.loaded_as(files)
    else:
        files = config.render(fleet, flavour)
        loaded = config.config_hash(files)
    unit = units.balancer(fleet, flavour.binary, config.open_files(fleet))
    # The condition of the unit before the unit.
    beside = {} if flavour is config.PLAIN else units.alone(fleet)
    beside |= {
        str(paths.unit(fleet.inventory.balancer.unit)): unit,
        str(paths.logrotate(fleet)): config.logrotate(fleet),
    }
    return DesiredBalancer(flavour, paths.balancer(fleet), files, loaded, beside)
