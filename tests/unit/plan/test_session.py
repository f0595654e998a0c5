"""One command against the fleet: what it knows of a machine is what that said last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.errors import FleetctlError, UnreachableError
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan import audit
from fleetctl.plan.operation import Plan, sequence
from fleetctl.plan.session import Session
from fleetctl.remote.connection import Result

UNITS = "@@fleetctl units\nId=docker.service\nActiveState=active\nLoadState=loaded\n"


@dataclass
class Machines:
    """What each machine answers to a probe."""

    answers: dict[int, str | FleetctlError] = field(default_factory=dict)

    def map(self, fn: Callable[[Any], Any], ids: Iterable[int]) -> dict[int, Any]:
        found = {}
        for machine in ids:
            run = lambda script, timeout, machine=machine: self._answer(machine)
            connection = SimpleNamespace(target=SimpleNamespace(id=machine), run=run)
            try:
                found[machine] = fn(connection)
            except FleetctlError as error:
                found[machine] = error
        return found

    def _answer(self, machine: int) -> Result:
        answer = self.answers[machine]
        if isinstance(answer, FleetctlError):
            raise answer
        return Result(0, answer, "", 0.1)


@pytest.fixture
def machines() -> Machines:
    return Machines({69: UNITS, 67: UNITS})


@pytest.fixture
def session(fleet: Fleet, machines: Machines) -> Session:
    return Session(fleet, machines, lambda target, words: None)  # type: ignore[arg-type]


def test_what_a_machine_said_before_it_fell_silent_is_not_known_any_more(session: Session, machines: Machines) -> None:
    session.look((69, 67), lambda _: "")
    machines.answers[67] = UnreachableError("no answer")
    session.look((69, 67), lambda _: "")
    assert (set(session.facts), set(session.errors)) == ({69}, {67})
    machines.answers[67] = UNITS
    session.look((67,), lambda _: "")
    assert (set(session.facts), set(session.errors)) == ({69, 67}, set())


@pytest.mark.parametrize("answer", ["", "@@fleetctl units\n\n@@fleetctl http\n"])
def test_a_machine_whose_systemd_gives_no_answer_has_not_lost_its_units(
    session: Session, machines: Machines, answer: str
) -> None:
    """Its instances would be called absent, or be restarted."""
    machines.answers[67] = answer
    session.look((69, 67), lambda _: "")
    assert set(session.facts) == {69}
    assert "systemd" in session.errors[67].cause
    assert session.errors[67].machine == 67


def test_every_plan_of_a_command_has_its_own_name_in_the_audit_log(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    class Trail:
        def __init__(self, connections: object, path: object, run: str, say: object) -> None:
            names.append(run)

        def begin(self, *args: object, **more: object) -> None: ...

        def end(self, *args: object) -> None: ...

    monkeypatch.setattr(audit, "Trail", Trail)
    session.lock = SimpleNamespace(wait=lambda: None, check=lambda: None, run="aaaa0000", taken_from=None)  # type: ignore[assignment]
    for _ in range(3):
        session.execute(Plan("rollout", "f", sequence("rollout")))
    assert names == ["aaaa0000", "aaaa0000-2", "aaaa0000-3"]
