"""Checks before any change: everything that is wrong with a machine at once, from its facts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from fleetctl.balancer.config import FLAVOURS, INSTALL_HINT
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.fleet.schema import Machine
from fleetctl.observe.facts import Container, Facts, Listener

BUSY_MB = 1024  # a row below is a shared context, not ownership (facts/npu-smi)
GIB = 1 << 30
INODES = 1000  # a model has a few dozen files
NEVER = {f"{n}.service" for n in ("docker", "containerd", "ssh", "sshd", "dbus", "systemd-journald", "systemd-logind")}
NO_NGINX = f"no nginx with the Lua module: {INSTALL_HINT}, or install OpenResty, or say balancer.mode: plain"


def to_clean(machine: Machine, facts: Facts, fleet: Fleet) -> tuple[tuple[str, ...], tuple[Container, ...]]:
    """Units and containers that the inventory lists to clean and that are there; never ours."""
    ours = {f"{instance.name}.service" for instance in fleet.on(machine.id)} | NEVER
    ours |= {f"{fleet.inventory.balancer.unit}.service"} | {f"{job}.service" for job in facts.jobs}
    units = tuple(name for name in facts.foreign_units if name not in ours)
    containers = tuple(
        c
        for c in facts.containers or ()
        if c.label("fleet") != fleet.name and any(fnmatchcase(c.name, p) for p in machine.clean.containers)
    )
    return units, containers


def machine_problems(
    fleet: Fleet,
    machine: Machine,
    facts: Facts,
    instances: Sequence[Instance] | None = None,
    adopted: frozenset[str] = frozenset(),
) -> list[str]:
    """Why `machine` cannot take its instances (or those given): each holder and each missing thing by name.

    `adopted`: containers that this plan takes over.
    """
    chosen = fleet.on(machine.id) if instances is None else instances
    found = list(_software(fleet, facts))
    found += _npus(fleet, machine, facts, chosen, adopted)
    found += _ports(fleet, machine, facts, chosen, adopted)
    found += _names(fleet, facts, chosen, adopted)
    found += _of_another(fleet, facts, chosen)
    found += _renamed(facts, chosen)
    found += _disks(fleet, machine, facts)
    return found


def balancer_problems(fleet: Fleet, machine: Machine, facts: Facts) -> list[str]:
    """Why the balancer's machine cannot take new backends, when it is not itself the one to be prepared."""
    balancer = fleet.inventory.balancer
    found = []
    if not usable_nginx(fleet, facts):
        found.append(NO_NGINX)
    for port in (balancer.listen, balancer.state_listen):
        for listener in _holders(facts, port, None):
            if (words := foreign_holder(fleet, machine, facts, listener)) is not None:
                found.append(f"port {port} of the balancer is held by {words}")
    return found


def unreachable(fleet: Fleet, facts: Facts, machines: Iterable[int]) -> list[str]:
    """Ports of these machines, and of the source, that this one cannot open; others may be dead, it does not matter."""
    needed = {fleet.machines[machine].address for machine in (*machines, fleet.inventory.source)}
    found = [line for line in facts.unreachable_peers if line.partition(" ")[0].rpartition(":")[0] in needed]
    return [f"cannot reach {line}" for line in found]


def usable_nginx(fleet: Fleet, facts: Facts) -> bool:
    """One with Lua, or any in `mode: plain`."""
    return facts.flavour in FLAVOURS or (fleet.inventory.balancer.mode == "plain" and facts.flavour is not None)


def source_problems(fleet: Fleet, source: Facts, others: Iterable[Facts] = ()) -> Iterator[str]:
    """What the source has to hold before anything can be copied from it, or shared with `others`."""
    model = fleet.inventory.model
    if source.model is None or not source.model.present:
        yield f"the model {model.path} does not exist here, and this is the machine it is copied from"
    for other in others if model.shared else ():
        if other.model is None or source.model is None or other.model.listing != source.model.listing:
            yield f"model.shared: {other.machine} does not see the files of {model.path} that are here"
    if (pinned := fleet.pinned) is not None and source.image is not None:
        seen = (source.image.id, *source.image.digests)
        if pinned not in seen:
            yield f"{fleet.image} is {' or '.join(seen)} here, and image.digest says {pinned}"
    if not source.host_keys:
        yield "no readable /etc/ssh/ssh_host_*_key.pub: receivers could not pin this machine"


def _software(fleet: Fleet, facts: Facts) -> Iterator[str]:
    for tool in facts.missing_tools:
        yield f"{tool} is not installed"
    if facts.containers is None and "docker" not in facts.missing_tools:
        yield "the Docker engine does not answer (systemctl status docker)"
    for path in facts.missing_paths:
        yield f"{path} does not exist, and the containers need it"
    if facts.driver is None and str(fleet.inventory.accelerator.driver) not in facts.missing_paths:
        yield f"no driver version in {fleet.inventory.accelerator.driver}/version.info"
    if facts.machine == fleet.inventory.balancer.machine and not usable_nginx(fleet, facts):
        yield NO_NGINX


def _names(fleet: Fleet, facts: Facts, instances: Sequence[Instance], adopted: frozenset[str]) -> Iterator[str]:
    for instance in instances:
        container = facts.container(instance.name)
        if container is not None and container.label("fleet") != fleet.name and container.name not in adopted:
            yield (
                f"a container named {instance.name} is there and not this fleet's: "
                "`fleetctl rollout --adopt` takes it over; or docker rename or remove it"
            )


def _npus(
    fleet: Fleet, machine: Machine, facts: Facts, instances: Sequence[Instance], adopted: frozenset[str]
) -> Iterator[str]:
    if facts.npu is None or not facts.npu.npus:
        yield f"npu-smi: {facts.failed.get('npu', 'not read')}"
        return
    wanted = {device for instance in instances for device in instance.devices}
    seen = {npu.id: npu for npu in facts.npu.npus}
    _, cleaned = to_clean(machine, facts, fleet)
    for device in sorted(wanted):
        npu = seen.get(device)
        if npu is None:
            yield f"NPU {device} is not there (npu-smi lists {', '.join(map(str, sorted(seen))) or 'none'})"
            continue
        if npu.health != "OK":
            yield f"NPU {device} reports health {npu.health}"
        if npu.processes is None:
            yield f"NPU {device}: npu-smi does not say who holds it"
        for process in npu.processes or ():
            if process.memory_mb is not None and process.memory_mb < BUSY_MB:
                continue
            seen_owner = facts.npu_owners.get(process.pid or 0)
            holder = facts.container_of(seen_owner)
            if holder is None or not (
                holder.label("fleet") == fleet.name or holder in cleaned or holder.name in adopted
            ):
                owner = f"container {holder.name}" if holder else seen_owner or "a process"
                yield f"NPU {device} is held by {owner} (pid {process.pid}), which the inventory does not list to clean"


def _of_another(fleet: Fleet, facts: Facts, instances: Sequence[Instance]) -> Iterator[str]:
    """What another instance has, and would leave only after the one that waits for it: nobody would ever move."""
    moving = [instance for instance in instances if instance.name not in facts.stopped]
    known = {instance.id for instance in fleet.on(facts.machine)}
    npus: dict[tuple[str, str], list[int]] = {}
    ports: dict[tuple[str, str], list[int]] = {}
    held = {npu.id: npu.processes or () for npu in (facts.npu.npus if facts.npu else ())}
    for instance in moving:
        for device in instance.devices:
            busy = [p for p in held.get(device, ()) if p.memory_mb is None or p.memory_mb >= BUSY_MB]
            holders = {_instance_of(fleet, facts.container_of(facts.npu_owners.get(p.pid or 0))) for p in busy}
            for other in sorted(one for one in holders if one not in (None, instance.id)):
                npus.setdefault((instance.id, str(other)), []).append(device)
        for container in facts.containers or ():
            has = _instance_of(fleet, container)
            if container.state == "running" and instance.port in container.ports and has not in (None, instance.id):
                ports.setdefault((instance.id, str(has)), []).append(instance.port)
    if npus:
        ids = [one for one in sorted(known) if any(one in pair for pair in npus)]
        listed = " ".join(ids)
        way = f"first fleetctl stop {listed}, then fleetctl rollout --resume, then fleetctl start {listed}"
        yield f"{_wishes('NPU', npus)}: {way}"
    if ports:
        way = "give instances.port a range that nobody has; from there it can change again"
        yield f"{_wishes('port', ports)}: {way}"


def _renamed(facts: Facts, instances: Sequence[Instance]) -> Iterator[str]:
    """Units are found by name: under another one it would be a second instance on the same NPUs and port."""
    names = {instance.id: instance.name for instance in instances}
    other = {id: name for name, id in facts.own_units.items() if id in names and names[id] not in facts.own_units}
    if other:
        first, more = next(iter(sorted(other))), ", ..." if len(other) > 1 else ""
        yield (
            f"{', '.join(sorted(other))} {'are' if more else 'is'} {other[first]}.service{more} here and "
            f"{names[first]}.service{more} in the inventory: put instances.name back, or fleetctl remove-machine "
            f"{facts.machine} and then fleetctl add-machine {facts.machine}"
        )


def _wishes(what: str, wanted: dict[tuple[str, str], list[int]]) -> str:
    """`67/1 is to have NPU 4, which 67/2 has, 67/2 NPU 6, which 67/3 has`."""
    words = [f"{who} {what} {','.join(map(str, which))}, which {other} has" for (who, other), which in wanted.items()]
    return ", ".join(words).replace(f" {what} ", f" is to have {what} ", 1)


def _instance_of(fleet: Fleet, container: Container | None) -> str | None:
    """Of a container of this fleet, the instance that it is."""
    ours = container is not None and container.label("fleet") == fleet.name
    return container.label("instance") if container is not None and ours else None


def _ports(
    fleet: Fleet, machine: Machine, facts: Facts, instances: Sequence[Instance], adopted: frozenset[str]
) -> Iterator[str]:
    for instance in instances:
        for listener in _holders(facts, instance.port, instance.host):
            if (words := foreign_holder(fleet, machine, facts, listener, adopted)) is not None:
                yield f"port {instance.port} of {instance.id} is held by {words}"
    balancer = fleet.inventory.balancer
    if machine.id == balancer.machine:
        for port in (balancer.listen, balancer.state_listen):
            for listener in _holders(facts, port, None):
                if (words := foreign_holder(fleet, machine, facts, listener)) is not None:
                    yield f"port {port} of the balancer is held by {words}"


def _holders(facts: Facts, port: int, address: str | None) -> list[Listener]:
    """Listeners that would clash; one per process is enough to name it."""
    clash = {"0.0.0.0", "*", "::", address}  # noqa: S104
    found = [x for x in facts.listeners or () if x.port == port and (address is None or x.address in clash)]
    return found[:1]


def foreign_holder(
    fleet: Fleet, machine: Machine, facts: Facts, listener: Listener, adopted: frozenset[str] = frozenset()
) -> str | None:
    """None if the holder of a port is ours or listed to clean, else how to recognise it."""
    units, containers = to_clean(machine, facts, fleet)
    published = next((c for c in facts.containers or () if listener.port in c.ports and c.state == "running"), None)
    if published is not None:
        ours = published.label("fleet") == fleet.name
        return None if ours or published in containers or published.name in adopted else f"container {published.name}"
    if _is("docker-proxy", listener.process) and _in_transition(fleet, machine, facts, listener.port):
        return None
    if listener.owner == f"unit {fleet.inventory.balancer.unit}.service":
        return None
    if listener.owner is not None and listener.owner.removeprefix("unit ") in units:
        return None
    if (owner := facts.container_of(listener.owner)) is not None and owner.name in adopted:
        return None
    for process in machine.clean.processes:
        if process.port == listener.port and _is(process.executable, listener.process):
            return None
    where = f", {listener.owner}" if listener.owner else ""
    return f"{listener.process or 'an unknown process'} (pid {listener.pid}{where}), which is not listed to clean"


def _in_transition(fleet: Fleet, machine: Machine, facts: Facts, port: int) -> bool:
    """Our own container on this port is just starting or stopping: Docker lists it without its port then."""
    for instance in fleet.on(machine.id):
        container, unit = facts.container(instance.name), facts.units.get(instance.name)
        ours = container is not None and container.label("fleet") == fleet.name
        moving = unit is not None and unit.active in ("activating", "deactivating")
        if instance.port == port and (ours or moving):
            return True
    return False


def _is(executable: str, path: str | None) -> bool:
    return path is not None and (path == executable or path.endswith(f"/{executable}"))


def cleanable_process(machine: Machine, facts: Facts, port: int, executable: str) -> bool:
    """Whether the listed process is the one that holds the port right now, outside our own unit."""
    return any(x.port == port and _is(executable, x.process) for x in facts.listeners or ())


def _disks(fleet: Fleet, machine: Machine, facts: Facts) -> Iterator[str]:
    disk = facts.disks.get("state")
    if disk is not None and disk.free < 16 << 20:
        yield f"only {disk.free >> 20} MiB free on {disk.path}, where fleetctl keeps its state"


def space_problems(fleet: Fleet, source: Facts, facts: Facts, *, image: bool, model: bool) -> Iterator[str]:
    """Room for what will be copied: the image twice while it is loaded, the model once beside the old one.

    What an interrupted copy has brought already counts.
    """
    if image and source.image is not None and (disk := facts.disks.get("docker")) is not None:
        needed = source.image.size * 2
        if disk.free < needed:
            yield f"image: {disk.free / GIB:.1f} GiB free on {disk.path}, {needed / GIB:.1f} GiB needed"
    if model and source.model is not None and source.model.size and (disk := facts.disks.get("model")) is not None:
        partial = int(source.model.size * 1.02) - (facts.model.arrived if facts.model else 0)
        if disk.free < partial:
            yield f"model: {disk.free / GIB:.2f} GiB free on {disk.path}, {partial / GIB:.2f} GiB needed"
        if disk.inodes is not None and disk.inodes < INODES:
            yield f"model: only {disk.inodes} inodes free on {disk.path} (df -i)"


def equal_everywhere(facts: Iterable[Facts]) -> list[str]:
    """Driver versions that differ between machines."""
    versions: dict[str, list[int]] = {}
    for one in facts:
        if one.driver is not None:
            versions.setdefault(one.driver, []).append(one.machine)
    if len(versions) < 2:
        return []
    listed = "; ".join(f"{version} on {', '.join(map(str, ids))}" for version, ids in versions.items())
    return [f"driver versions differ between machines: {listed}"]


def api_key_shape(key: str) -> str | None:
    """A key that cannot travel in an HTTP header, or between quotes to curl, or is no key."""
    if not re.fullmatch(r"[\x21\x23-\x5b\x5d-\x7e]{8,512}", key):
        return "the API key has to be 8 to 512 printable characters without spaces, double quotes and backslashes"
    return None
