"""What a report is written from, made by hand: the shipped fleet, well, verified and partly measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleetctl.balancer import config, peers
from fleetctl.balancer.peers import Peer
from fleetctl.errors import FleetctlError, UnreachableError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.fleet.lint import lint
from fleetctl.observe.facts import BalancerState, Facts, PeerState
from fleetctl.plan import history, release, status
from fleetctl.report.material import Material, NamedRun, Software
from fleetctl.verify import judge
from tests.unit.bench.build import run as bench_run
from tests.unit.conftest import serving
from tests.unit.verify.world import World

WHEN = "2026-08-29T20:49:00Z"
ADDED = "2026-08-01T10:00:00Z"
SOFTWARE = Software(
    {
        "os": "Ubuntu 24.04.3 LTS",
        "kernel": "6.8.0-124-generic",
        "arch": "x86_64",
        "cpus": "192",
        "cpu": "Xeon",
        "memory": "1511 GiB",
        "docker": "29.6.1",
        "systemd": "255",
        "torch": "2.10.0",
        "python": "3.12.13",
        "cann": "9.1.0",
        "balancer": "openresty/1.31.1.1",
    },
    (("eth0", "10.255.254.69/20"), ("eth1", "114.114.114.114/24")),
)


def line(run: str, event: str, **rest: Any) -> str:
    return json.dumps({"schema": 1, "run": run, "event": event, **rest})


def logs() -> dict[int, str]:
    """69 joined; 68 failed once for a port that was taken, and joined at the second try."""
    common = {"who": "ops@laptop", "plan": "p"}
    first = [
        line("a", "begin", when=ADDED, command="add-machine 69", operations=20, release=1, **common),
        line("a", "end", when=ADDED, seconds=61.0, outcome="done", done=20),
    ]
    when, later = "2026-08-02T10:00:00Z", "2026-08-02T11:00:00Z"
    second = [
        line("b", "begin", when=when, command="add-machine 68", operations=18, **common),
        line(
            "b", "end", when=when, seconds=9.0, outcome="failed", done=3, failed="68/0 start", error="port 8000 taken"
        ),
        line("c", "begin", when=later, command="add-machine 68", operations=18, **common),
        line("c", "end", when=later, seconds=70.0, outcome="done", done=18),
    ]
    return {69: "\n".join(first), 68: "\n".join(second)}


def material(fleet: Fleet, *, errors: Mapping[int, FleetctlError] | None = None, **changes: Any) -> Material:
    """`errors`: machines that do not answer. `changes`: fields of the material."""
    gone = dict(errors or {})
    facts: dict[int, Facts] = {m: serving(fleet, m) for m in fleet.machines if m not in gone}
    table: tuple[Peer, ...] = peers.of(fleet, {}, fleet.machines)
    home = fleet.inventory.balancer.machine
    if home in facts:
        files = config.render(fleet, config.FLAVOURS["openresty"])
        live = BalancerState(
            "v", config.config_hash(files), tuple(PeerState(p.id, p.address, "up", 0, "ok") for p in table)
        )
        facts[home] = replace(facts[home], balancer=live, flavour="openresty")
    document = status.document(fleet, facts, gone, table)
    current = release.Release(1, Overrides(), ADDED, "ops@laptop", "add-machine 69", "good", release.whole(fleet))
    known: dict[str, Any] = {
        "fleet": fleet,
        "when": WHEN,
        "status": document,
        "facts": facts,
        "errors": {m: error.cause for m, error in gone.items()},
        "peers": table,
        "software": dict.fromkeys(facts, SOFTWARE),
        "engines": {one.id: "0.32.0" for one in fleet.instances},
        "release": current,
        "proved": {1: current},
        "history": tuple(history.commands(logs())),
        "checks": tuple(judge.everything(World(fleet).evidence())),
        "verified": WHEN,
        "runs": (NamedRun("one.jsonl", bench_run(fleet=fleet.name, started=WHEN)),),
        "lints": tuple(lint(fleet)),
        "problems": tuple(status.problems(document)),
        "fleetctl": "0.1.0",
    }
    return Material(**{**known, **changes})


def unreachable(*machines: int) -> dict[int, FleetctlError]:
    return {machine: UnreachableError("no route to host", machine=machine) for machine in machines}
