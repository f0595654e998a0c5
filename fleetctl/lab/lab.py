"""A lab: every machine of an inventory as a container on this box that really runs systemd, sshd and Docker."""

from __future__ import annotations

import ipaddress
import os
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fleetctl.errors import FleetctlError, UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.lab import credentials, disks, docker, images, inventory, machines, workloads
from fleetctl.lab.engines import CHANGES, DOCKER_SIZE, GIB, Engine
from fleetctl.lab.layout import FOLDER_LABEL, LABEL, Layout, Record, subnet

Progress = Callable[[str], None]
FIRST_SSH_PORT = 22000
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """How a lab is built; sizes in bytes. `bare`: no old services, nothing of what the first report found.

    `engine`: None is what a lab that is up has, else the simulated one. `docker_size`: None is what the engine needs.
    """

    bare: bool = False
    fresh: bool = False
    engine: Engine | None = None
    data_size: int = 2 * GIB
    docker_size: int | None = None


@dataclass(frozen=True)
class MachineStatus:
    """One machine of a lab: `state` is Docker's word (running, paused, exited) or `absent`."""

    id: int
    container: str
    state: str
    address: str
    ssh_port: int | None


@dataclass(frozen=True)
class Status:
    """What there is of a lab: `up` only when it was built to the end and every machine runs."""

    fleet: str
    folder: Path
    up: bool
    built: bool
    machines: tuple[MachineStatus, ...]
    inventory: Path
    balancer_port: int | None


def up(fleet: Fleet, *, state_dir: Path, progress: Progress, options: Options | None = None) -> Status:
    """Builds the lab and returns when every machine is ready; one that is built already only gets its power back.

    With `options.fresh` it is taken down and built anew. Raises UsageError when this box lacks what a lab takes or the
    lab that is up has another engine, FleetctlError when a machine did not come up (what was built stays, for a look;
    `down` removes it).
    """
    options = options or Options()
    images.require_root()
    docker.require_engine()
    layout = Layout(fleet.name, state_dir.absolute())
    network = subnet(fleet)
    _refuse_foreign(layout)
    now = status(fleet, state_dir=state_dir)
    if not options.fresh and _whole(layout, now):
        _refuse_other_engine(layout, options.engine)
        _power_on(layout, now, progress)
        return status(fleet, state_dir=state_dir)
    source = _source(fleet, layout)
    _refuse_taken(layout, network.network)
    engine = _engine(layout, options)
    built = images.ensure(fleet.inventory.model.name, progress, engine)
    down(fleet, state_dir=state_dir, progress=progress)
    pair, began = credentials.key_pair(), time.monotonic()

    def create(plan: machines.Plan) -> None:
        machines.create(fleet, layout, built, plan, f"{pair.public} fleetctl-lab-{fleet.name}\n")

    def furnish(plan: machines.Plan) -> None:
        machines.wait_ready(layout.container(plan.machine.id), plan.machine.id)
        machines.furnish(fleet, layout, built, plan)
        machines.wait_ssh(plan.ssh_port, plan.machine.id)
        progress(f"machine {plan.machine.id} is ready after {time.monotonic() - began:.1f} s")

    # A port is another lab's only once its container listens there.
    with images.locked("ports.lock"):
        plans, record = _plan(fleet, layout, options, source, engine)
        record.write(layout.record)
        _write_credentials(layout, pair, plans)
        docker.docker(
            *("network", "create", "--label", layout.label, "--subnet", network.network, "--gateway", network.gateway),
            *("-o", "com.docker.network.bridge.enable_ip_masquerade=false", layout.network),
            step=f"network {network.network}",
        )
        progress(f"starting {len(plans)} machines")
        _together(create, plans)
    _together(furnish, plans)
    _write_inventories(fleet, layout, source, record)
    replace(record, complete=True).write(layout.record)
    return status(fleet, state_dir=state_dir)


def down(fleet: Fleet, *, state_dir: Path, progress: Progress) -> None:
    """Removes everything of the lab but cached images, also what an interrupted `up` left."""
    images.require_root()
    layout = Layout(fleet.name, state_dir.absolute())
    _refuse_foreign(layout, orphans=False)
    containers = docker.labelled("container", layout.label)
    if containers:
        progress(f"removing {len(containers)} machines")
        # A frozen machine cannot be killed.
        _together(_remove, containers)
    for network in docker.labelled("network", layout.label):
        docker.docker("network", "rm", network)
    disks.detach(layout.folder)
    _remove_folder(layout.folder)


def status(fleet: Fleet, *, state_dir: Path) -> Status:
    """What Docker knows of the lab now; changes nothing."""
    layout = Layout(fleet.name, state_dir.absolute())
    record = Record.read(layout.record)
    names = {machine.id: layout.container(machine.id) for machine in fleet.inventory.machines}
    known = {
        item["Name"].lstrip("/"): str(item["State"]["Status"])
        for item in docker.inspect("container", list(names.values()))
    }
    rows = tuple(
        MachineStatus(
            id=machine.id,
            container=names[machine.id],
            state=known.get(names[machine.id], "absent"),
            address=machine.address,
            ssh_port=record.ssh_ports.get(machine.id) if record else None,
        )
        for machine in fleet.inventory.machines
    )
    built = record is not None and record.complete
    return Status(
        fleet=fleet.name,
        folder=layout.folder,
        up=built and all(row.state == "running" for row in rows),
        built=built,
        machines=rows,
        inventory=layout.inventory,
        balancer_port=record.balancer_port if record else None,
    )


def env(fleet: Fleet, *, state_dir: Path) -> str:
    """Lines for `eval` in sh: where the lab's inventory is, its API key, its URL. Raises UsageError without a lab."""
    layout = Layout(fleet.name, state_dir.absolute())
    record = Record.read(layout.record)
    if record is None or not record.complete:
        raise UsageError(f"lab {fleet.name} is not up", next_command="fleetctl lab up")
    values = {
        "FLEETCTL_INVENTORY": str(layout.inventory),
        inventory.KEY_VARIABLE: layout.api_key.read_text(encoding="utf-8").strip(),
        "FLEET_URL": f"http://127.0.0.1:{record.balancer_port}",
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def free_port(wanted: int, taken: Iterable[int] = ()) -> int:
    """`wanted` when nobody listens there on loopback, else a free one."""
    for port in (wanted, 0):
        if port in taken or port > 65535:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise FleetctlError(f"no free port on 127.0.0.1 in place of {wanted}", step="lab up")


def _promised() -> set[int]:
    """Ports of this box that machines of labs have, also of those that are off just now: they want them back."""
    bound = [
        item["HostConfig"].get("PortBindings") or {}
        for item in docker.inspect("container", docker.labelled("container", LABEL))
    ]
    return {int(one["HostPort"]) for ports in bound for ones in ports.values() for one in ones or () if one["HostPort"]}


def _plan(
    fleet: Fleet, layout: Layout, options: Options, source: Path, engine: Engine
) -> tuple[list[machines.Plan], Record]:
    ports: dict[int, int] = {}
    promised = _promised()
    for machine in fleet.inventory.machines:
        ports[machine.id] = free_port(FIRST_SSH_PORT + machine.id, {*ports.values(), *promised})
    balancer = free_port(fleet.inventory.balancer.listen, {*ports.values(), *promised})
    sizes = (
        disks.Disk("data", "/data", options.data_size),
        disks.Disk("docker", "/var/lib/docker", options.docker_size or DOCKER_SIZE[engine]),
    )
    plans = [
        machines.Plan(
            machine=machine,
            ssh_port=ports[machine.id],
            balancer_port=balancer if machine.id == fleet.inventory.balancer.machine else None,
            host_key=credentials.key_pair(),
            disks=sizes,
            old=() if options.bare else workloads.of(fleet.inventory, machine),
            by_hand=() if options.bare else workloads.by_hand(machine),
            holds_image=machine.id == fleet.inventory.source,
            holds_model=machine.id == fleet.inventory.source,
        )
        for machine in fleet.inventory.machines
    ]
    return plans, Record(fleet.name, str(source), ports, balancer, complete=False, engine=engine)


def _source(fleet: Fleet, layout: Layout) -> Path:
    """The fleet's own inventory, also when the one given is the lab's (which `down` removes)."""
    path = fleet.path.absolute()
    if path.parent != layout.folder:
        return path
    record = Record.read(layout.record)
    if record is None or not record.source or not Path(record.source).is_file():
        raise UsageError(
            f"{path} belongs to the lab itself, and the inventory it was made from is gone",
            next_command="fleetctl lab up -i INVENTORY",
        )
    return Path(record.source)


def _whole(layout: Layout, now: Status) -> bool:
    """Nothing of the lab is lost: all containers and all disks are there, whether or not the machines run."""
    mounted = {point.parent for point in disks.mounted(layout.folder)}
    return now.built and all(m.state != "absent" and layout.machine(m.id) in mounted for m in now.machines)


def _power_on(layout: Layout, now: Status, progress: Progress) -> None:
    """Starts what is off and thaws what is frozen; a machine that runs is not touched."""

    def wake(machine: MachineStatus) -> None:
        progress(f"machine {machine.id} was {machine.state}: starting it")
        docker.docker("unpause" if machine.state == "paused" else "start", machine.container)
        machines.wait_ready(machine.container, machine.id)

    asleep = [machine for machine in now.machines if machine.state != "running"]
    if not asleep:
        progress(f"lab {layout.fleet} is up")
    _together(wake, asleep)


def _engine(layout: Layout, options: Options) -> Engine:
    """The one asked for; a lab that lost something gets the one it had."""
    record = None if options.fresh else Record.read(layout.record)
    return options.engine or (record.engine if record is not None else Engine.SIMULATED)


def _refuse_other_engine(layout: Layout, wanted: Engine | None) -> None:
    record = Record.read(layout.record)
    if record is not None and wanted not in (None, record.engine):
        raise UsageError(
            f"lab {layout.fleet} is up with the engine {record.engine.value}",
            next_command=f"fleetctl lab up --engine {wanted.value} --fresh" if wanted else None,
        )


def _refuse_taken(layout: Layout, wanted: str) -> None:
    """The addresses of another network of this box cannot be had twice."""
    every = docker.docker("network", "ls", "--format", "{{.Name}}").split()
    for network in docker.inspect("network", [name for name in every if name != layout.network]):
        for pool in network["IPAM"]["Config"] or ():
            if ipaddress.ip_network(pool["Subnet"]).overlaps(ipaddress.ip_network(wanted)):
                raise UsageError(
                    f"the cluster addresses {wanted} are in use by Docker network {network['Name']} of this box",
                    next_command="take that lab down, or give this inventory other addresses",
                )


def _write_credentials(layout: Layout, pair: credentials.KeyPair, plans: Sequence[machines.Plan]) -> None:
    credentials.write_private(layout.key, pair.private)
    layout.key.with_suffix(".pub").write_text(f"{pair.public}\n", encoding="utf-8")
    credentials.write_private(layout.api_key, f"{credentials.api_key()}\n".encode())
    entries = {plan.machine.id: (plan.ssh_port, plan.machine.address, plan.host_key.public) for plan in plans}
    layout.known_hosts.parent.mkdir(parents=True, exist_ok=True)
    layout.known_hosts.write_text(credentials.known_hosts(entries), encoding="utf-8")


def _write_inventories(fleet: Fleet, layout: Layout, source: Path, record: Record) -> None:
    """inventory.yaml logs in as root; inventory-ops.yaml as the sudo user, through the balancer's machine."""
    text = source.read_text(encoding="utf-8")
    root = inventory.Access(record.ssh_ports, layout.key)
    ops = inventory.Access(record.ssh_ports, layout.key, user="ops", jump=fleet.inventory.balancer.machine)
    for path, access in ((layout.inventory, root), (layout.folder / "inventory-ops.yaml", ops)):
        lines = inventory.render(text, source, access, record.balancer_port, CHANGES[record.engine])
        path.write_text(lines, encoding="utf-8")
    for kind in ("playbooks", "units"):
        beside, link = source.parent / kind, layout.folder / kind
        if beside.is_dir() and not link.is_symlink():
            link.symlink_to(os.path.relpath(beside, layout.folder))


def _refuse_foreign(layout: Layout, *, orphans: bool = True) -> None:
    """A lab of this fleet name that lives in another folder is somebody else's; `orphans`: also when that is gone."""
    found = docker.inspect("container", docker.labelled("container", layout.label))
    folders = {str(item["Config"]["Labels"].get(FOLDER_LABEL)) for item in found} - {str(layout.folder)}
    alive = {folder for folder in folders if Path(folder).is_dir()}
    if alive:
        raise UsageError(
            f"a lab of fleet {layout.fleet} is up already, from {', '.join(sorted(alive))}",
            next_command=f"fleetctl lab down -i {shlex.quote(str(Path(min(alive)) / 'inventory.yaml'))}",
        )
    if folders and orphans:
        raise UsageError(
            f"a lab of fleet {layout.fleet} is up, and its folder is gone: {', '.join(sorted(folders))}",
            next_command="fleetctl lab down, which removes what is left of it",
        )


def _remove(container: str) -> None:
    docker.run(["docker", "unpause", container], check=False)
    docker.docker("rm", "--force", "--volumes", container, step=f"removing {container}")


def _remove_folder(folder: Path) -> None:
    if not folder.exists():
        return
    left = disks.mounted(folder)
    if left:
        raise FleetctlError(f"still mounted: {', '.join(map(str, left))}", step="lab down")
    shutil.rmtree(folder)
    if folder.parent.name == ".lab" and not any(folder.parent.iterdir()):
        folder.parent.rmdir()


def _together(work: Callable[[T], None], items: Sequence[T]) -> None:
    """Does the work for all items at once; raises one error that names everything that failed."""
    if not items:
        return
    with ThreadPoolExecutor(max_workers=len(items)) as pool:
        futures = [pool.submit(work, item) for item in items]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, FleetctlError):
            raise error
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise FleetctlError("\n".join(str(error) for error in errors), next_command="fleetctl lab down")
