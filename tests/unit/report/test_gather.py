"""What is looked at for a report when something is missing: a key, a log, a machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fleetctl.balancer import peers
from fleetctl.balancer.peers import Peer
from fleetctl.errors import CommandError, FleetctlError, SecretError, UnreachableError
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Facts
from fleetctl.report.gather import gather
from fleetctl.verify import run
from tests.unit.conftest import serving


@dataclass
class Answers:
    """Connections that all say the same."""

    text: str

    def map(self, fn: object, ids: Iterable[int]) -> dict[int, str]:
        return dict.fromkeys(ids, self.text)


@dataclass
class Looked:
    """A session whose machines are as desired, but for those in `gone`; `asked`: whom it was told to look at."""

    fleet: Fleet
    errors: dict[int, FleetctlError] = field(default_factory=dict)
    gone: tuple[int, ...] = ()
    facts: dict[int, Facts] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    connections: Answers = field(default_factory=lambda: Answers("os\tUbuntu\n"))
    peers_problem: str | None = None
    release: None = None
    proved: dict[int, Any] = field(default_factory=dict)

    def say(self, target: str, words: str) -> None:
        pass

    def observe(self, machines: Iterable[int]) -> None:
        self.asked = list(machines)
        for machine in self.asked:
            if machine in self.gone:
                self.errors[machine] = UnreachableError("no route to host", machine=machine)
            else:
                self.facts[machine] = serving(self.fleet, machine)

    def inspect(self, machines: Iterable[int]) -> None:
        assert not set(machines) & set(self.errors)

    def peers(self) -> tuple[Peer, ...]:
        return peers.of(self.fleet, {}, self.fleet.machines)

    def lint_model(self) -> list[Any]:
        return []

    def lint_weights(self) -> list[Any]:
        raise CommandError("the weights could not be read")


def look(session: Looked, monkeypatch: pytest.MonkeyPatch, error: FleetctlError, *, verify: bool = True) -> Any:
    def conduct(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(run, "conduct", conduct)
    return gather(session, (), (), verify=verify, reload=False)  # type: ignore[arg-type]


def test_without_a_key_nothing_is_checked_and_the_rest_is_there(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    found = look(Looked(fleet), monkeypatch, SecretError("environment variable FLEET_API_KEY is not set"))
    assert found.unverified == "environment variable FLEET_API_KEY is not set"
    assert found.checks == ()
    assert found.serving == 16
    assert found.software[69].versions == {"os": "Ubuntu"}


def test_a_machine_that_stops_answering_during_the_checks_costs_the_checks_only(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = look(Looked(fleet), monkeypatch, UnreachableError("the connection was lost", machine=67))
    assert found.unverified == "the connection was lost"
    assert len(found.facts) == 4


def test_a_machine_without_an_answer_is_tried_once_and_is_an_error(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Looked(fleet, errors={67: UnreachableError("no route to host", machine=67)}, gone=(66,))
    found = look(session, monkeypatch, SecretError("none"))
    assert 67 not in session.asked
    assert set(found.errors) == {67, 66}
    assert set(found.facts) == {69, 68}


def test_a_log_that_cannot_be_read_makes_no_machine_one_that_does_not_answer(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Looked(fleet, errors={67: CommandError("permission denied")})
    found = look(session, monkeypatch, SecretError("none"))
    assert found.errors == {}
    assert 67 in found.facts


def test_checks_that_were_not_wanted_are_not_run(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    found = look(Looked(fleet), monkeypatch, AssertionError("it ran"), verify=False)  # type: ignore[arg-type]
    assert found.unverified == "--no-verify"


def test_where_nobody_answers_nothing_is_asked(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = {m: UnreachableError("no route to host", machine=m) for m in fleet.machines}
    found = look(Looked(fleet, errors=dict(everybody)), monkeypatch, SecretError("it ran"))
    assert found.unverified == "no machine answered"
    assert replace(found, when="").status["verdict"] == "unknown"
