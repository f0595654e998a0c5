"""What machines ran before the fleet came: derived from what the inventory says is to be cleaned.

A pattern that ends in `-*` stands for one service a device (`sd35-npu-*` of the first report's machine 66), any
other for a single service that takes the fleet's first port and all devices (`minimax-h3*` of machines 68 and 67);
a process is a web server started by hand (the nginx on 2219 of machine 69).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.fleet.schema import Inventory, Machine

MEGABYTES = 20000
IMAGE = "legacy/workload:latest"


@dataclass(frozen=True)
class Workload:
    """One old service; `port` 0 listens nowhere."""

    name: str
    unit: bool
    container: bool
    port: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class HandStarted:
    """A process that nobody supervises, listening on a port."""

    port: int
    executable: str


def _sample(pattern: str) -> str:
    """A name that the shell pattern matches, without its trailing star."""
    text = re.sub(r"\[([^\]])[^\]]*\]", r"\1", pattern)
    return text.removesuffix(".service").rstrip("*").replace("*", "x").replace("?", "0")


def names(pattern: str, devices: int) -> tuple[str, ...]:
    """`sd35-npu-*` -> sd35-npu-0 .. sd35-npu-7, `minimax-h3*` -> minimax-h3, `redis` -> redis."""
    stem = _sample(pattern)
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*-", stem) and pattern.removesuffix(".service").endswith("*"):
        return tuple(f"{stem}{index}" for index in range(devices))
    stem = stem.rstrip("-")
    return (stem,) if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", stem) else ()


def of(inventory: Inventory, machine: Machine) -> tuple[Workload, ...]:
    """The old services of one machine, none where there is nothing to clean."""
    devices = inventory.accelerator.devices
    units = {name: p for p in machine.clean.units for name in names(p, devices)}
    containers = {name: p for p in machine.clean.containers for name in names(p, devices)}
    found: list[Workload] = []
    free_port = inventory.instances.port
    for name in dict.fromkeys((*containers, *units)):
        siblings = names((containers.get(name) or units[name]), devices)
        single = len(siblings) == 1
        own = tuple(range(devices)) if single and not found else () if single else (siblings.index(name),)
        port = free_port if single else 0
        free_port = 0 if single else free_port
        found.append(Workload(name, name in units, name in containers, port, own))
    return tuple(found)


def by_hand(machine: Machine) -> tuple[HandStarted, ...]:
    return tuple(HandStarted(process.port, process.executable) for process in machine.clean.processes)


def run_arguments(workload: Workload) -> list[str]:
    """The `docker run` of an old service, without `docker`; names hold no characters a shell minds."""
    publish = ["--publish", f"{workload.port}:{workload.port}"] if workload.port else []
    driver = "/usr/local/Ascend/driver"
    return [
        *("run", "--name", workload.name, "--privileged", "--volume", f"{driver}:{driver}:ro", *publish, IMAGE),
        *(workload.name, str(workload.port), str(MEGABYTES), *(str(device) for device in workload.devices)),
    ]


def unit_text(workload: Workload) -> str:
    """The systemd unit somebody once wrote for it; one without a container runs a program of the machine."""
    lines = ["[Unit]", f"Description={workload.name}", "After=docker.service", "Requires=docker.service"]
    lines += ["[Service]", "Restart=always", "RestartSec=5"]
    if workload.container:
        lines += [
            f"ExecStartPre=-/usr/bin/docker rm -f {workload.name}",
            f"ExecStart=/usr/bin/docker {' '.join(run_arguments(workload))}",
            f"ExecStop=-/usr/bin/docker stop -t 5 {workload.name}",
        ]
    else:
        lines.append("ExecStart=/usr/bin/sleep infinity")
    lines += ["[Install]", "WantedBy=multi-user.target", ""]
    return "\n".join(lines)


def hand_configuration(process: HandStarted) -> str:
    """The nginx.conf of a server that was started by hand; its pid file is its own."""
    return f"""\
worker_processes 1;
pid /run/by-hand-{process.port}.pid;
error_log /var/log/by-hand-{process.port}.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    server {{
        listen 0.0.0.0:{process.port};
        location / {{ default_type text/plain; return 200 "started by hand\\n"; }}
    }}
}}
"""
