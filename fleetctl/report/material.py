"""Everything that a report is written from: the pure input of all its sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetctl.balancer.peers import Peer
from fleetctl.bench.samples import Run
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.fleet.lint import Finding
from fleetctl.observe.facts import Facts
from fleetctl.plan.history import Command
from fleetctl.plan.release import Release
from fleetctl.verify.check import Check, Status, Where


@dataclass(frozen=True)
class Software:
    """What a machine and one of its containers said about themselves (report_versions.sh), by name.

    `addresses`: interface and address with its prefix length. What was not said is absent.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[tuple[str, str], ...] = ()


def software(text: str) -> Software:
    """Lines of key, tab, value; `address` may come several times."""
    pairs = [line.split("\t", 1) for line in text.splitlines() if "\t" in line]
    addresses = [value.split() for key, value in pairs if key == "address"]
    return Software(
        {key: value.strip() for key, value in pairs if key != "address" and value.strip()},
        tuple((one[0], one[1]) for one in addresses if len(one) == 2),
    )


@dataclass(frozen=True)
class NamedRun:
    """A run of `bench` and the name of its file, without folder."""

    name: str
    run: Run


@dataclass(frozen=True)
class Material:
    """`when`: RFC 3339, when the machines were looked at. `errors`: machines that did not answer, with the reason.

    `status`: the document of `fleetctl status`; `engines`: vLLM's version by instance, as it says itself. `checks`:
    those of verify, from `verified`; `unverified`: why there are none. `history`: None when no log could be read.
    """

    fleet: Fleet
    when: str
    status: Mapping[str, Any]
    facts: Mapping[int, Facts] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    peers: tuple[Peer, ...] = ()
    software: Mapping[int, Software] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)
    release: Release | None = None
    proved: Mapping[int, Release] = field(default_factory=dict)
    history: tuple[Command, ...] = ()
    checks: tuple[Check, ...] = ()
    verified: str | None = None
    unverified: str | None = None
    runs: tuple[NamedRun, ...] = ()
    lints: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    fleetctl: str = ""

    @property
    def instances(self) -> tuple[Instance, ...]:
        return self.fleet.instances

    def state(self, id: str) -> Mapping[str, Any]:
        """What status says of an instance; empty for one that it does not know."""
        for machine in self.status.get("machines", ()):
            for one in machine["instances"]:
                if one["id"] == id:
                    found: Mapping[str, Any] = one
                    return found
        return {}

    @property
    def serving(self) -> int:
        return sum(self.state(one.id).get("state") == "serving" for one in self.instances)

    def check(self, id: str, where: Where | None = None) -> Check | None:
        """The check of that name, at a door or at the first it was asked at."""
        return next((one for one in self.checks if one.id == id and where in (None, one.where)), None)

    def run(self, scenario: str) -> NamedRun | None:
        """The newest run of a scenario."""
        own = [one for one in self.runs if one.run.header.scenario == scenario]
        return max(own, key=lambda one: one.run.header.started, default=None)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(one for one in self.checks if one.status is Status.FAIL)
