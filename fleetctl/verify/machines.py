"""Judgements about the machines: units, and everything that has to be the same on all of them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fleetctl.balancer.peers import PeerState
from fleetctl.commands import docker, paths
from fleetctl.errors import UnreachableError
from fleetctl.fleet import flags
from fleetctl.fleet.instance import Instance
from fleetctl.fleet.schema import DeviceMode
from fleetctl.observe.facts import Facts
from fleetctl.observe.npu_smi import parse_info
from fleetctl.observe.observe import driver
from fleetctl.verify.check import SHOWN, Check, Look, Status, Where, settle
from fleetctl.verify.evidence import Evidence

M = Where.MACHINES


def checks(evidence: Evidence) -> Iterator[Check]:
    yield reachable(evidence)
    yield joined(evidence)
    yield units(evidence)
    yield npu_smi(evidence)
    yield image(evidence)
    yield serve_flags(evidence)
    yield model(evidence)
    yield driver_version(evidence)
    yield key(evidence)


def reachable(evidence: Evidence) -> Check:
    looks = [
        Look(str(machine), evidence.errors[machine].cause if machine in evidence.errors else None)
        for machine in evidence.fleet.machines
    ]
    again = "fleetctl check {who}"
    return settle(
        "reachable",
        M,
        "every machine answers over SSH",
        looks,
        sampled=False,
        next_command=again,
        unreachable=all(isinstance(error, UnreachableError) for error in evidence.errors.values()),
    )


def joined(evidence: Evidence) -> Check:
    """Instances that the balancer knows and sends to, of those that should be in rotation; all is worth a look only.

    What is out on purpose is named and not counted.
    """
    table = {peer.id: peer for peer in evidence.peers}
    stopped = {id: why.removeprefix("was stopped on purpose ") for id, why in evidence.where_stopped.items()}
    drained = {id: "" for id, peer in table.items() if peer.state is PeerState.HELD and id not in stopped}
    looks = []
    for instance in evidence.fleet.instances:
        why = evidence.drained.get(instance.id) if instance.id in table else "has not joined the balancer"
        if instance.id not in stopped and instance.id not in drained:
            looks.append(Look(instance.id, why, soft=True))
    total = len(evidence.fleet.instances)
    if len(looks) == total:
        expected = f"all {total} instances of the inventory in rotation"
        return settle("joined", M, expected, looks, sampled=False, soft_counts=True)
    expected = f"{len(looks)} of the inventory's {total} instances in rotation"
    found = settle("joined", M, expected, looks, sampled=False, soft_counts=True)
    aside = {"stopped on purpose": stopped, "drained on purpose": drained}
    seen = [found.seen if looks else "0 of 0", *(_aside(what, who) for what, who in aside.items() if who)]
    said = [f"{id}: {what} {why}".rstrip() for what, who in aside.items() for id, why in who.items()]
    return replace(found, status=Status.WARN, seen="; ".join(seen), problems=(*found.problems, *said))


def _aside(what: str, who: Mapping[str, str]) -> str:
    """`1 stopped on purpose: 67/2 by ops (fan)`."""
    listed = [f"{id} {why}".rstrip() for id, why in who.items()]
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"{len(listed)} {what}: {', '.join(listed[:SHOWN])}{more}"


def units(evidence: Evidence) -> Check:
    """Enabled and running: back after a crash and after a reboot."""
    looks = []
    balancer = evidence.fleet.inventory.balancer
    for machine, facts in evidence.facts.items():
        names = [instance.name for instance in evidence.asked if instance.machine == machine] + ["docker"]
        names += [balancer.unit] if machine == balancer.machine else []
        for name in names:
            unit = facts.units.get(name)
            seen = f"{unit.active}/{unit.enabled}" if unit else "absent"
            looks.append(Look(f"{machine} {name}", None if seen == "active/enabled" else f"is {seen}"))
    return settle(
        "units",
        M,
        "active and enabled",
        looks,
        sampled=False,
        next_command="fleetctl status; fleetctl rollout --resume",
    )


def npu_smi(evidence: Evidence) -> Check:
    """The first report's first problem: the engine asks npu-smi for the architecture, in its container."""
    mapped = evidence.fleet.inventory.accelerator.device_mode is DeviceMode.MAPPED
    looks = []
    for instance in evidence.asked:
        text = evidence.seen[instance.machine].npu.get(instance.name, "") if instance.machine in evidence.seen else ""
        found = {npu.id for npu in parse_info(text).npus}
        # A container with mapped devices may number them from 0.
        missing = len(found) < len(instance.devices) if mapped else not set(instance.devices) <= found
        problem = None
        if not found:
            problem = f"npu-smi says: {' '.join(text.split())[-120:] or 'nothing'}"
        elif missing:
            problem = f"npu-smi shows NPUs {_list(found)}, {_list(instance.devices)} were due"
        looks.append(Look(instance.id, problem))
    return settle(
        "npu-smi",
        M,
        "runs in every container and shows its NPUs",
        looks,
        sampled=False,
        next_command="fleetctl logs {who}",
    )


def image(evidence: Evidence) -> Check:
    """The same content on all machines, and every container runs the image of its machine."""
    contents = {m: facts.image.content if facts.image else None for m, facts in _hosts(evidence)}
    looks = list(_odd_ones(contents, "its image has another content", "it has no image"))
    for instance in evidence.asked:
        facts = evidence.facts[instance.machine]
        container = facts.container(instance.name)
        if container is None:
            looks.append(Look(instance.id, "no container"))
        elif facts.image is not None:
            other = container.image_id != facts.image.id
            looks.append(Look(instance.id, "its container runs another image" if other else None))
    return settle("image", M, "one content, run by every container", looks, sampled=False, next_command="fleetctl plan")


def serve_flags(evidence: Evidence) -> Check:
    """What Docker says the container was started with, against the desired state; that makes it the same on all."""
    looks = []
    for instance in evidence.asked:
        text = (
            evidence.seen[instance.machine].containers.get(instance.name, "")
            if instance.machine in evidence.seen
            else ""
        )
        looks.append(Look(instance.id, _flags_problem(evidence, instance, text)))
    return settle(
        "flags",
        M,
        "every container runs the desired `vllm serve` line",
        looks,
        sampled=False,
        next_command="fleetctl plan; fleetctl rollout --resume",
    )


def _flags_problem(evidence: Evidence, instance: Instance, inspected: str) -> str | None:
    _, _, listed = inspected.strip().partition(" ")
    try:
        argv = json.loads(listed)
    except ValueError:
        return f"docker inspect says: {inspected.strip()[:80] or 'nothing'}"
    wanted = ["-c", docker.READ_KEY, str(paths.KEY_IN_CONTAINER), *flags.engine_argv(evidence.fleet, instance)]
    if argv != wanted:
        return _difference(wanted, argv)
    facts = evidence.facts[instance.machine]
    container = facts.container(instance.name)
    spec = docker.spec(docker.run_arguments(evidence.fleet, instance, facts.topology))
    if container is not None and container.label("spec") != spec:
        return "its mounts, devices or environment are not the desired ones"
    return None


def _difference(wanted: list[str], seen: list[str]) -> str:
    """`--max-num-seqs 16 instead of 32`, of the first word that differs."""
    for position, (due, got) in enumerate(zip(wanted, seen, strict=False)):
        if due != got:
            name = f"{wanted[position - 1]} " if position and wanted[position - 1].startswith("--") else ""
            return f"{name}{got[:80]} instead of {due[:80]}"
    extra = seen[len(wanted) :]
    return f"also {' '.join(extra)[:80]}" if extra else f"without {' '.join(wanted[len(seen) :])[:80]}"


def model(evidence: Evidence) -> Check:
    """Files that were checked against one manifest and have not changed since."""
    manifests = {m: facts.model.verified if facts.model else None for m, facts in _hosts(evidence)}
    looks = _odd_ones(manifests, "its model has another manifest", "its files changed since they were verified")
    return settle(
        "model-files",
        M,
        "one manifest, verified everywhere",
        looks,
        sampled=False,
        next_command="fleetctl rollout --resume",
    )


def driver_version(evidence: Evidence) -> Check:
    texts = {machine: evidence.seen[machine].driver for machine in evidence.hosts if machine in evidence.seen}
    versions = {machine: driver(text) if text else None for machine, text in texts.items()}
    looks = list(_odd_ones(versions, "driver {value}", "its version.info cannot be read"))
    common = _most(versions.values())
    return settle("driver", M, "one version everywhere", looks, good=common or "", sampled=False)


def key(evidence: Evidence) -> Check:
    """The key files of all machines hold the key of this shell: compared by hash."""
    wanted = hashlib.sha256(evidence.key.encode()).hexdigest()
    looks = []
    for machine in dict.fromkeys((*evidence.hosts, evidence.fleet.inventory.balancer.machine)):
        seen = evidence.seen.get(machine)
        if seen is None:
            continue
        problem = "has no key file" if seen.key_hash is None else None
        if seen.key_hash is not None and seen.key_hash != wanted:
            problem = "its key file holds another key than secrets.api_key gives here"
        looks.append(Look(str(machine), problem))
    return settle(
        "key-files",
        M,
        "the same key on all machines",
        looks,
        sampled=False,
        next_command="fleetctl plan; fleetctl rollout --resume",
    )


def _hosts(evidence: Evidence) -> Iterator[tuple[int, Facts]]:
    yield from ((machine, evidence.facts[machine]) for machine in evidence.hosts)


def _most(values: Iterable[str | None]) -> str | None:
    counted = Counter(value for value in values if value is not None)
    return counted.most_common(1)[0][0] if counted else None


def _odd_ones(values: Mapping[int, str | None], differs: str, unknown: str) -> Iterator[Look]:
    """A look a machine: the value that most machines have is the right one. `{value}` is the odd one's."""
    common = _most(values.values())
    for machine, value in values.items():
        problem = unknown if value is None else None if value == common else differs.format(value=value)
        yield Look(str(machine), problem)


def _list(devices: Iterable[int]) -> str:
    return ",".join(map(str, sorted(devices))) or "none"
