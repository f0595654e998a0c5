"""The machines of a lab: containers that run systemd, sshd and a Docker engine of their own.

The command line is the one that was measured to work where `--privileged` is refused (no CAP_SYS_RESOURCE);
CAP_SYS_TIME is dropped, so that nothing in a lab can ever set the box's clock.
"""

from __future__ import annotations

import io
import shlex
import shutil
import socket
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import FleetctlError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Machine
from fleetctl.lab import workloads
from fleetctl.lab.credentials import KeyPair
from fleetctl.lab.disks import Disk, attach
from fleetctl.lab.docker import docker, feed, inside
from fleetctl.lab.images import Images
from fleetctl.lab.layout import ENGINE, FOLDER_LABEL, LABEL, MACHINE_LABEL, Layout

BOOT_SECONDS = 90.0
SERVICE_SECONDS = 90.0
LOAD_SECONDS = 900.0
OPS = 1000
# Ready is: the nodes are there, ssh listens, the engine answers. What the box is slow at shows in the message.
READY = """
limit=$(( $(date +%s) + $1 ))
until [ "$(systemctl is-active lab-devices ssh docker | sort -u)" = active ] && [ -S /run/docker.sock ]; do
	if [ "$(date +%s)" -ge "$limit" ]; then
		systemctl is-active lab-devices ssh docker >&2 || true
		systemctl --no-pager --failed >&2 || true
		exit 1
	fi
	sleep 0.1
done
"""


@dataclass(frozen=True)
class Plan:
    """Everything that makes one machine, decided before the first container starts."""

    machine: Machine
    ssh_port: int
    balancer_port: int | None
    host_key: KeyPair
    disks: tuple[Disk, ...]
    old: tuple[workloads.Workload, ...]
    by_hand: tuple[workloads.HandStarted, ...]
    holds_image: bool
    holds_model: bool


def create(fleet: Fleet, layout: Layout, images: Images, plan: Plan, authorized: str) -> None:
    """Makes the disks and the container, puts its files in, starts it. Raises FleetctlError."""
    name, machine = layout.container(plan.machine.id), plan.machine
    folder = layout.machine(machine.id)
    folder.mkdir(parents=True, exist_ok=True)
    mounts = [f"{attach(disk, folder)}:{disk.inside}" for disk in plan.disks]
    if fleet.inventory.model.shared:
        mounts.append(f"{images.model}:{fleet.inventory.model.path}:ro")
    publish = [f"127.0.0.1:{plan.ssh_port}:22"]
    if plan.balancer_port is not None:
        publish.append(f"127.0.0.1:{plan.balancer_port}:{fleet.inventory.balancer.listen}")
    docker(
        *("create", "--name", name, "--hostname", layout.hostname(machine.id)),
        *("--label", f"{LABEL}={layout.fleet}", "--label", f"{FOLDER_LABEL}={layout.folder}"),
        *("--label", f"{MACHINE_LABEL}={machine.id}"),
        *("--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--cap-drop", "SYS_TIME"),
        *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
        *("--security-opt", "systempaths=unconfined", "--device-cgroup-rule", "a *:* rwm"),
        *("--cgroupns=private", "-e", "container=docker", "--stop-signal", "SIGRTMIN+3"),
        *("--tmpfs", "/run", "--tmpfs", "/tmp"),  # noqa: S108  the machine's, not ours
        *(argument for mount in mounts for argument in ("--volume", mount)),
        *("--network", layout.network, "--ip", machine.address),
        *(argument for port in publish for argument in ("--publish", port)),
        *(images.host, "/lib/systemd/systemd"),
        step=f"machine {machine.id}",
    )
    docker("cp", "-", f"{name}:/", stdin=files(fleet, plan, authorized), step=f"machine {machine.id}")
    docker("start", name, step=f"machine {machine.id}")


def wait_ready(container: str, machine: int, seconds: float = BOOT_SECONDS) -> None:
    """Returns when a machine has its devices, sshd and Docker engine. Raises FleetctlError after `seconds`."""
    script = f"set -- {int(seconds)}\n{READY}"
    try:
        inside(container, script, seconds=seconds + 10, step="boot")
    except FleetctlError as error:
        raise FleetctlError(
            f"not ready: {error.cause}",
            machine=machine,
            step="boot",
            next_command=f"docker exec {container} journalctl --no-pager -b -n 50",
        ) from error


def wait_ssh(port: int, machine: int, seconds: float = 20.0) -> None:
    """Returns when an ssh server greets on a published port."""

    def greets() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
                connection.settimeout(2)
                return connection.recv(4).startswith(b"SSH")
        except OSError:
            return False

    if not wait_until(greets, seconds):
        raise FleetctlError(f"no ssh server on 127.0.0.1:{port} within {seconds:g} s", machine=machine, step="boot")


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Asks ten times a second until it holds or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def furnish(fleet: Fleet, layout: Layout, images: Images, plan: Plan) -> None:
    """Brings a booted machine into the state that the first report found. Raises FleetctlError."""
    name, machine = layout.container(plan.machine.id), plan.machine.id
    if any(old.container for old in plan.old):
        _load(name, images.legacy_archive, images.legacy, workloads.IMAGE, machine)
    _start_old(name, plan)
    if plan.holds_model and not fleet.inventory.model.shared:
        path = fleet.inventory.model.path
        inside(name, f"mkdir -p {shlex.quote(str(path.parent))}", step="model")
        _copy_folder(images.model, name, str(path), layout.machine(machine), plan.disks)
    if plan.holds_image:
        _load(name, images.engine_archive, images.engine, fleet.inventory.image.reference, machine)


def _load(container: str, archive: Path, name: str, reference: str, machine: int) -> None:
    step = f"machine {machine}: loading {reference}"
    feed(container, ["docker", "load", "--quiet"], archive, seconds=LOAD_SECONDS, step=step)
    script = f"docker tag {shlex.quote(name)} {shlex.quote(reference)}; docker rmi {shlex.quote(name)} >/dev/null"
    inside(container, script, step="docker tag")


def _start_old(name: str, plan: Plan) -> None:
    units = [f"{old.name}.service" for old in plan.old if old.unit]
    lines = ["systemctl daemon-reload", f"systemctl enable --quiet --now {' '.join(units)}"] if units else []
    for old in plan.old:
        if old.container and not old.unit:
            arguments = shlex.join(workloads.run_arguments(old)[1:])
            lines.append(f"docker run --detach --restart unless-stopped {arguments} >/dev/null")
    for hand in plan.by_hand:
        program = "/usr/sbin/nginx"
        if hand.executable != "nginx":
            program = shlex.quote(f"/opt/by-hand/{hand.executable}")
            lines.append(f"cp /usr/sbin/nginx {program}")
        lines.append(f"{program} -c /opt/by-hand/{hand.port}.conf")
    # A unit is active before its container holds what it holds.
    seen = "docker ps --filter status=running --format '{{.Names}}'"
    for old in plan.old:
        if old.container:
            lines.append(f"until {seen} | grep -qx '{old.name}'; do sleep 0.1; done")
    for port in sorted({old.port for old in plan.old if old.port} | {hand.port for hand in plan.by_hand}):
        lines.append(f"until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.1; done")
    if lines:
        inside(name, "\n".join(lines), seconds=SERVICE_SECONDS, step=f"machine {plan.machine.id}: old services")


def _copy_folder(source: Path, container: str, target: str, folder: Path, disks: tuple[Disk, ...]) -> None:
    """Copies a folder into a machine: straight onto its disk where there is one, else through Docker."""
    for disk in disks:
        if target.startswith(disk.inside + "/"):
            shutil.copytree(source, disk.mountpoint(folder) / target[len(disk.inside) + 1 :])
            return
    docker("cp", f"{source}/.", f"{container}:{target}", seconds=300, step="model")


def files(fleet: Fleet, plan: Plan, authorized: str) -> bytes:
    """The files that make a machine this one, as a tar for `docker cp`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add(archive, "etc/ssh/ssh_host_ed25519_key", plan.host_key.private, 0o600)
        _add(archive, "etc/ssh/ssh_host_ed25519_key.pub", f"{plan.host_key.public}\n".encode(), 0o644)
        _add(archive, "root/.ssh/authorized_keys", authorized.encode(), 0o600)
        _add(archive, "home/ops/.ssh/authorized_keys", authorized.encode(), 0o600, owner=OPS)
        count = fleet.inventory.accelerator.devices
        _add(archive, "etc/fleetctl-lab/devices", f"{count}\n".encode(), 0o644)
        _add(archive, "usr/local/sbin/npu-smi", (ENGINE / "npu-smi").read_bytes(), 0o755)
        for old in plan.old:
            if old.unit:
                text = workloads.unit_text(old)
                _add(archive, f"etc/systemd/system/{old.name}.service", text.encode(), 0o644)
        for hand in plan.by_hand:
            _add(archive, f"opt/by-hand/{hand.port}.conf", workloads.hand_configuration(hand).encode(), 0o644)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int, owner: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uid, entry.gid, entry.mtime = len(content), mode, owner, owner, int(time.time())
    archive.addfile(entry, io.BytesIO(content))
