"""Which instance gets which NPUs, port and name, and the proof that none is given twice.

Pure. `allocate` computes, `problems` proves; a fleet whose inventory has no problems holds every promise of
design section 4: no device, port or name twice, capacity respected, no backend that only its own machine
reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.fleet.instance import Instance
from fleetctl.fleet.schema import Affinity, Inventory, Machine, MachineOverride

HIGHEST_PORT = 65535

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """Two things in a well-typed inventory that contradict each other; `path` leads to the key to change."""

    path: Path
    message: str


def devices_of(inventory: Inventory, machine: Machine) -> tuple[int, ...]:
    """The NPU ids (host numbering) that this machine may use, in the order they are given out."""
    listed = machine.instances.devices
    return tuple(range(inventory.accelerator.devices)) if listed is None else listed


def count_on(inventory: Inventory, machine: Machine) -> int:
    """How many instances run on this machine.

    A machine that lists its living NPUs without saying how many instances it runs gets as many as fit.
    """
    if machine.instances.per_machine is not None:
        return machine.instances.per_machine
    if machine.instances.devices is None:
        return inventory.instances.per_machine
    return min(inventory.instances.per_machine, len(machine.instances.devices) // inventory.instances.devices)


def allocate(inventory: Inventory) -> tuple[Instance, ...]:
    """Every instance, machines in joining order, each with the next block of its machine's NPUs."""
    return tuple(instance for machine in inventory.machines for instance in _instances_of(inventory, machine))


def _instances_of(inventory: Inventory, machine: Machine) -> Iterator[Instance]:
    ids, size = devices_of(inventory, machine), inventory.instances.devices
    for index in range(count_on(inventory, machine)):
        yield Instance(
            machine=machine.id,
            index=index,
            name=inventory.instances.name.replace("{index}", str(index)),
            host=machine.address,
            port=inventory.instances.port + index,
            devices=ids[index * size : (index + 1) * size],
        )


def problems(inventory: Inventory) -> list[Problem]:
    """Everything that contradicts itself, in the order of the file."""
    return [
        *_references(inventory),
        *_twice(inventory),
        *_devices(inventory),
        *_ports(inventory),
        *_names(inventory),
        *_weights(inventory),
        *_networks(inventory),
    ]


def _references(inventory: Inventory) -> Iterator[Problem]:
    ids = [machine.id for machine in inventory.machines]
    known = ", ".join(map(str, ids))
    if inventory.source not in ids:
        yield Problem(("source",), f"machine {inventory.source} is not in machines ({known})")
    if inventory.balancer.machine not in ids:
        message = f"machine {inventory.balancer.machine} is not in machines ({known})"
        yield Problem(("balancer", "machine"), message)


def _twice(inventory: Inventory) -> Iterator[Problem]:
    ids: dict[int, int] = {}
    addresses: dict[str, Machine] = {}
    reached: dict[tuple[str, int], Machine] = {}
    for position, machine in enumerate(inventory.machines):
        if machine.id in ids:
            message = f"machine {machine.id} is listed twice (also machines[{ids[machine.id]}])"
            yield Problem(("machines", position, "id"), message)
        ids.setdefault(machine.id, position)
        other = addresses.setdefault(machine.address, machine)
        if other is not machine:
            message = f"{machine.address} is already the address of machine {other.id}"
            yield Problem(("machines", position, "address"), message)
        if machine.ssh.host is None or machine.ssh.jump is not None:
            continue
        other = reached.setdefault((machine.ssh.host, machine.ssh.port or 22), machine)
        if other is not machine:
            message = f"{machine.ssh.host} with this port already leads to machine {other.id}"
            yield Problem(("machines", position, "ssh", "host"), message)


def _devices(inventory: Inventory) -> Iterator[Problem]:
    short = []
    plain = inventory.machines[0]
    for position, machine in enumerate(inventory.machines):
        yield from _listed_devices(inventory, position, machine)
        needed = count_on(inventory, machine) * inventory.instances.devices
        if needed <= len(devices_of(inventory, machine)):
            continue
        if machine.instances == MachineOverride():
            short.append(str(machine.id))
            plain = machine
        else:
            message = _too_many(inventory, machine, f"machine {machine.id} would need")
            yield Problem(("machines", position, "instances"), message)
    if short:
        who = f"machine{'s' * (len(short) > 1)} {', '.join(short)} would need"
        message = _too_many(inventory, plain, who)
        yield Problem(("instances", "per_machine"), message)
    if not allocate(inventory):
        yield Problem(("instances",), "no machine runs an instance")


def _too_many(inventory: Inventory, machine: Machine, who: str) -> str:
    count, size = count_on(inventory, machine), inventory.instances.devices
    there = len(devices_of(inventory, machine))
    return f"{who} {count * size} devices ({count} instances of {size}) and there are {there}"


def _listed_devices(inventory: Inventory, position: int, machine: Machine) -> Iterator[Problem]:
    seen: set[int] = set()
    for place, device in enumerate(machine.instances.devices or ()):
        path = ("machines", position, "instances", "devices", place)
        if device in seen:
            yield Problem(path, f"NPU {device} is listed twice")
        if not 0 <= device < inventory.accelerator.devices:
            message = f"NPU {device} does not exist: a machine has NPUs 0 to {inventory.accelerator.devices - 1}"
            yield Problem(path, message)
        seen.add(device)


def _ports(inventory: Inventory) -> Iterator[Problem]:
    highest = max((instance.port for instance in allocate(inventory)), default=0)
    if highest > HIGHEST_PORT:
        message = f"the last instance would listen on {highest}; ports end at {HIGHEST_PORT}"
        yield Problem(("instances", "port"), message)
    balancer = inventory.balancer
    here = {i.port: i for i in allocate(inventory) if i.machine == balancer.machine}
    for key, port in (("listen", balancer.listen), ("state_listen", balancer.state_listen)):
        if port in here:
            yield Problem(("balancer", key), f"{port} is also the port of instance {here[port].id}")
    if balancer.listen == balancer.state_listen:
        yield Problem(("balancer", "state_listen"), f"{balancer.listen} is also balancer.listen")
    yield from _ssh_ports(inventory)


def _ssh_ports(inventory: Inventory) -> Iterator[Problem]:
    """sshd's own port on a machine we reach directly cannot be an instance's."""
    for position, machine in enumerate(inventory.machines):
        if machine.ssh.host not in (None, machine.address) or machine.ssh.port is None:
            continue
        for instance in _instances_of(inventory, machine):
            if instance.port == machine.ssh.port:
                message = f"{instance.port} is also the port of instance {instance.id}"
                yield Problem(("machines", position, "ssh", "port"), message)


def _names(inventory: Inventory) -> Iterator[Problem]:
    units = {i.name: i for i in allocate(inventory) if i.machine == inventory.balancer.machine}
    if inventory.balancer.unit in units:
        message = f"{inventory.balancer.unit} is also the name of instance {units[inventory.balancer.unit].id}"
        yield Problem(("balancer", "unit"), message)


def _weights(inventory: Inventory) -> Iterator[Problem]:
    weights = inventory.balancer.weights
    known = {str(machine.id) for machine in inventory.machines} | {one.id for one in allocate(inventory)}
    for name in weights.keys() - known:
        yield Problem(("balancer", "weights", name), f'"{name}" is neither a machine nor an instance of this fleet')
    if weights and inventory.balancer.affinity is Affinity.MD5_MOD:
        message = "md5-mod has no weights; use rendezvous or least_conn"
        yield Problem(("balancer", "weights"), message)


def _networks(inventory: Inventory) -> Iterator[Problem]:
    if not inventory.balancer.trusted_proxies:
        return
    import ipaddress

    for position, text in enumerate(inventory.balancer.trusted_proxies):
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            yield Problem(("balancer", "trusted_proxies", position), str(error))
