"""Shared by the unit tests: the shipped fleet, and facts of machines as a probe would see them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleetctl.commands import paths, units
from fleetctl.commands.docker import Topology
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.load import load
from fleetctl.observe.facts import Container, Disk, Facts, Health, Image, ModelState, Unit
from fleetctl.observe.npu_smi import Npu, NpuProcess, NpuReport
from fleetctl.plan.desired import sha256

ROOT = Path(__file__).parents[2]
KEY = "sk-unit-test-0123456789"
IMAGE = Image("sha256:" + "a" * 64, "c" * 64, 300 << 20)
TOPOLOGY = Topology(("0-15", "16-31"))


@pytest.fixture
def fleet() -> Fleet:
    return load(ROOT / "inventory.yaml")


def npus(processes: dict[int, tuple[NpuProcess, ...]] | None = None) -> NpuReport:
    held = processes or {}
    return NpuReport("26.0.rc1", tuple(Npu(i, 0, "910B4", "OK", 3000, 65536, None, held.get(i, ())) for i in range(8)))


def bare(machine: int, *, flavour: str | None = "distribution") -> Facts:
    """A machine that is ready and has nothing of ours; the source holds image and model."""
    source = machine == 69
    return Facts(
        machine=machine,
        units={"docker": Unit("active", "running", "enabled", "success", 0, "/lib/systemd/system/docker.service")},
        containers=(),
        image=IMAGE if source else None,
        npu=npus(),
        listeners=(),
        disks={name: Disk("/", "/dev/sda", 1 << 40, 1 << 41) for name in ("model", "docker", "state")},
        model=ModelState(True, "l" * 64, "m" * 64, "l" * 64, 300 << 20)
        if source
        else ModelState(False, None, None, None, None),
        topology=TOPOLOGY,
        driver="26.0.rc1",
        flavour=flavour if source else None,
        host_keys=("ssh-ed25519 AAAA root@69",) if source else (),
    )


def serving(fleet: Fleet, machine: int) -> Facts:
    """A machine whose instances are as desired."""
    base = bare(machine)
    instances = fleet.on(machine)
    texts = {i.name: units.instance(fleet, i, TOPOLOGY) for i in instances}
    containers = tuple(
        Container(
            i.name,
            f"{i.index:064x}",
            IMAGE.id,
            "running",
            {"fleetctl.fleet": fleet.name, "fleetctl.spec": texts[i.name][1], "fleetctl.tokens": str(fleet.tokens)},
            (i.port,),
        )
        for i in instances
    )
    active = Unit("active", "running", "enabled", "success", 0, "/etc/systemd/system/x.service")
    watchdog = units.watchdog(fleet, machine)
    timer = Unit("active", "waiting", "enabled", "success", 0, "")
    files = {str(paths.unit(name)): sha256(text) for name, (text, _) in texts.items()}
    files[str(paths.api_key(fleet))] = sha256(KEY)
    files |= {path: sha256(text) for path, text in watchdog.items()}
    return replace(
        base,
        units={
            **base.units,
            **{i.name: active for i in instances},
            **({f"{paths.watchdog_unit(fleet)}.timer": timer} if watchdog else {}),
        },
        unit_texts={str(paths.unit(name)): text for name, (text, _) in texts.items()},
        containers=containers,
        image=IMAGE,
        files=files,
        health={i.index: Health(200, fleet.inventory.model.name) for i in instances},
        model=ModelState(True, "l" * 64, "m" * 64, "l" * 64, 300 << 20),
    )
