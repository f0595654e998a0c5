"""One command against the fleet: what it knows of a machine is what that said last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.balancer import peers
from fleetctl.errors import FleetctlError, UnreachableError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.fleet.secrets import Secret
from fleetctl.observe.facts import Facts
from fleetctl.plan import audit, expand
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Plan, sequence
from fleetctl.plan.release import Release, whole
from fleetctl.plan.session import Session
from fleetctl.remote.connection import Result

from .test_expand import context, plan
from .test_expand import whole as all_well

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


def knowing(session: Session, current: Release | None, past: Iterable[Release] = ()) -> Context:
    """What a rollout starts from when the machines know these."""
    releases = tuple(one.document for one in past)
    known = current.document if current is not None else None
    session.connections = {m: SimpleNamespace(target=SimpleNamespace(user="root")) for m in session.fleet.machines}  # type: ignore[assignment]
    session.facts = {m: Facts(m, release=known, releases=releases) for m in session.fleet.machines}
    return session.context(session.fleet.machines, "rollout", new_release=True)


def numbered(session: Session, number: int, **more: Any) -> Release:
    return Release(number, Overrides(), "", "", "rollout", "good", whole(session.fleet), **more)


def numbers(context: Context) -> tuple[int | None, int | None]:
    return tuple(one.number if one is not None else None for one in (context.current, context.release))  # type: ignore[return-value]


def test_a_new_release_is_numbered_above_all_that_were_recorded(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "key", Secret("k"))
    assert numbers(knowing(session, None)) == (None, 1)
    past = [numbered(session, n) for n in (1, 3)]
    lost = knowing(session, None, past)
    assert numbers(lost) == (None, 4), "releases/00001.json is what was rolled out as 1"
    assert any("up to 3 are there" in note for note in expand._notes(lost))
    assert numbers(knowing(session, past[0], past)) == (1, 4), "as old as it is, it is not release 1 that is in force"
    same = knowing(session, past[1], past)
    assert numbers(same) == (3, 3)
    assert not any("any more" in note for note in expand._notes(same))


def test_a_release_knows_which_machines_have_not_proved_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "key", Secret("k"))

    def left_out(machines: Iterable[int]) -> tuple[int, ...]:
        found = session.context(machines, "rollout", new_release=True).release
        assert found is not None
        return found.left_out

    knowing(session, None)
    assert left_out(session.fleet.machines) == ()
    assert left_out([67]) == (69, 68, 66)
    some = numbered(session, 3, left_out=(69, 68, 66))
    knowing(session, some, [some])
    assert left_out([66]) == (69, 68), "67 has proved this very release"
    assert left_out([69, 68, 66]) == ()
    knowing(session, replace(some, outcome="running"))
    assert left_out([66]) == (69, 68, 67), "it never came to its end on 67"
    joined = numbered(session, 3)
    knowing(session, joined, [joined])
    assert left_out([66]) == (), "a machine that joins leaves nobody out"


def test_a_trial_goes_with_its_machine_by_a_way_back_that_rollback_knows_as_one(
    session: Session, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare rollback would lead forward to what somebody had gone back from, and a rollout would need no --forward."""
    monkeypatch.setattr(Session, "key", Secret("k"))
    past = [numbered(session, 2), numbered(session, 3, back_to=1)]
    trial = Release(4, Overrides(tokens=8), "", "", "rollout --mtp 8", "running", left_out=(69, 68))
    # 67 is listed and has not joined yet: who serves counts.
    knowing(session, trial, past)
    table = tuple(one for one in peers.of(fleet, {}, fleet.machines) if not one.id.startswith("67/"))
    monkeypatch.setattr(Session, "peers", lambda self: table)
    found = session.removing([66], "remove-machine 66")
    assert numbers(found) == (4, 5)
    assert found.release is not None
    assert (found.release.back_to, found.release.outcome, found.release.whole) == (3, "good", past[1].whole)
    assert session.removing([67], "remove-machine 67").release is None, "66 has it still"
    session.facts[69] = replace(session.facts[69], broken_releases={"00003.json": "it is empty"})
    assert session.removing([66], "remove-machine 66").release is None, "what proved good before may be what is broken"


def test_a_table_that_is_broken_is_put_right_by_the_release_in_force(session: Session) -> None:
    facts = Facts(69, peers="rubbish\n")
    session.facts = {69: facts}
    assert session.peers_problem is not None
    assert session.peers_problem.endswith(": fleetctl rollout")
    session.facts = {69: replace(facts, release=numbered(session, 3).document)}
    assert session.peers_problem.endswith(": fleetctl rollout --resume")


def test_a_record_that_is_none_any_more_is_said_in_the_plan_that_writes_it_anew(fleet: Fleet) -> None:
    now = Release(3, Overrides(), "", "", "rollout", "good", whole(fleet))
    facts = {m: replace(f, release=now.document) for m, f in all_well(fleet).items()}
    table = peers.of(fleet, {}, fleet.machines)
    given = {"peers": table, "current": now, "release": replace(now, outcome="running")}
    assert not plan("rollout", context(fleet, facts, tuple(fleet.machines), **given)).operations
    facts[68] = replace(facts[68], release=None, failed={"release": "it has another form"})
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), **given))
    assert {"release", "record"} <= {op.step for op in found.operations if op.machine == 68}
    path = f"/var/lib/fleetctl/{fleet.name}/release.json"
    assert f"68: {path} is no record of a release any more: a rollout writes it anew" in found.notes
