"""What a command leaves in the machines' audit logs is what `history` tells of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, FleetctlError, LockedError, UnreachableError
from fleetctl.fleet.fleet import Overrides
from fleetctl.observe import observe
from fleetctl.plan import audit, history
from fleetctl.plan.executor import Executor
from fleetctl.plan.history import Command
from fleetctl.plan.operation import Operation, Plan, Run, Status, StepResult, sequence
from fleetctl.plan.release import Release
from fleetctl.remote.connection import Result

NOON, LATER = "2026-08-29T12:00:00Z", "2026-08-29T12:05:00Z"
FIVE = Release(3, Overrides(tokens=5), NOON, "ops@laptop", "rollout --mtp 5", "running")


@dataclass
class Machines:
    """Logs in folders; writes of machines in `broken` fail."""

    folder: Path
    broken: dict[int, FleetctlError] = field(default_factory=dict)
    now: int = 0

    def __getitem__(self, machine: int) -> Machines:
        return Machines(self.folder, self.broken, machine)

    @property
    def target(self) -> object:
        return type("Target", (), {"id": self.now})

    def map(self, fn: object, ids: Iterable[int]) -> dict[int, object]:
        answers: dict[int, object] = {}
        for machine in ids:
            try:
                answers[machine] = fn(self[machine])  # type: ignore[operator]
            except FleetctlError as error:
                answers[machine] = error
        return answers

    def run(self, script: str, *, timeout: float, stdin: bytes = b"") -> Result:
        if self.now in self.broken:
            raise self.broken[self.now]
        text = script.replace("/log/", f"{self.folder}/{self.now}/")
        done = subprocess.run(["sh", "-c", text], input=stdin, capture_output=True, check=False)
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode(), 0)

    def logs(self, *machines: int) -> dict[int, str]:
        read = Script("audit_read", ("/log/audit.log",)).text
        return {machine: self[machine].run(read, timeout=5).stdout for machine in machines}


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def operation(machine: int, step: str = "start") -> Operation:
    return Operation(step, machine, f"{machine}/0", "start it", Run(Script("settle")))


PLAN = Plan("rollout --mtp 5", "f", sequence("r", operation(69), operation(69, "gate"), operation(67)))


def trail(machines: Machines, run: str = "aaaa0000") -> audit.Trail:
    said: list[str] = []
    made = audit.Trail(machines, "/log/audit.log", run, lambda target, words: said.append(words))  # type: ignore[arg-type]
    made.said = said  # type: ignore[attr-defined]
    return made


def results(*outcomes: FleetctlError | None) -> list[StepResult]:
    found, failed = [], False
    for op, error in zip(PLAN.operations, outcomes, strict=True):
        status = Status.NOT_REACHED if failed else Status.FAILED if error else Status.DONE
        failed = failed or error is not None
        found.append(StepResult(op, status, 1.0, error))
    return found


def one(machines: Machines, running: Iterable[str] = ()) -> Command:
    found = history.commands(machines.logs(69, 67), running)
    assert len(found) == 1
    return found[0]


def test_a_command_that_worked(machines: Machines) -> None:
    log = trail(machines)
    log.begin(PLAN, "ops@laptop", NOON, release=FIVE)
    log.end(results(None, None, None), LATER)
    found = one(machines)
    assert (found.when, found.who, found.command, found.plan) == (NOON, "ops@laptop", "rollout --mtp 5", PLAN.id)
    assert (found.release, found.overrides, found.outcome) == (3, "mtp 5", "done")
    assert {m: (o.operations, o.done, o.outcome) for m, o in found.machines.items()} == {
        69: (2, 2, "done"),
        67: (1, 1, "done"),
    }
    assert json.loads(json.dumps(found.document()))["machines"][0]["id"] == 69


def test_how_long_engines_took_to_start_is_noted_where_they_did(machines: Machines) -> None:
    start = Operation("start", 69, "69/0", "start it", Run(Script("unit_start", ("u", "c"))))
    gate = Operation("gate", 69, "69/0", "wait", Run(Script("settle")))
    again = Operation("gate", 69, "69/1", "wait", Run(Script("settle")))
    done = [StepResult(op, Status.DONE, seconds) for op, seconds in ((start, 1.0), (gate, 33.33), (again, 0.2))]
    assert audit.starts(done) == [33.3], "a gate before which nothing was started says nothing"
    assert audit.starts([done[0], StepResult(gate, Status.FAILED, 90.0, CommandError("no"))]) == []
    log = trail(machines)
    log.begin(Plan("rollout", "f", sequence("r", start, gate, again)), "ops@laptop", NOON)
    log.end(done, LATER)
    assert observe.starts(machines.logs(69)[69]) == (33.3,)
    assert observe.starts('{"starts": ["x", 1, null]}\nno json {\n{"starts": 7}') == (1.0,)


def test_a_failure_names_machine_step_and_cause(machines: Machines) -> None:
    log = trail(machines)
    log.begin(PLAN, "ops@laptop", NOON)
    log.end(results(None, CommandError("unit failed\nmore words"), None), LATER)
    found = one(machines)
    assert found.outcome == "failed"
    assert (found.machines[69].failed, found.machines[69].error) == ("69/0 gate", "unit failed")
    assert found.machines[67].outcome == "not reached"


def test_an_interrupted_command_says_so(machines: Machines) -> None:
    log = trail(machines)
    log.begin(PLAN, "ops@laptop", NOON)
    log.interrupted(LATER)
    assert one(machines).outcome == "interrupted"


def test_a_killed_command_was_cut_short_and_one_that_holds_the_lock_is_running(machines: Machines) -> None:
    trail(machines).begin(PLAN, "ops@laptop", NOON)
    assert one(machines).outcome == "cut short"
    assert one(machines, ["aaaa0000"]).outcome == "running"
    assert one(machines).seconds is None


def test_a_machine_that_stopped_answering_is_not_asked_again(machines: Machines) -> None:
    log = trail(machines)
    log.begin(PLAN, "ops@laptop", NOON)
    log.end(results(UnreachableError("gone"), None, None), LATER)
    assert machines.logs(69)[69].count("\n") == 1
    assert one(machines).outcome == "failed"


def test_a_full_disk_is_said_and_stops_nothing(machines: Machines) -> None:
    machines.broken[67] = CommandError("No space left on device")
    log = trail(machines)
    log.begin(PLAN, "ops@laptop", NOON)
    assert "no line in /log/audit.log on 67: No space left on device" in log.said[0]  # type: ignore[attr-defined]
    log.end(results(None, None, None), LATER)
    machines.broken.clear()
    assert one(machines).outcome == "done"


def test_commands_are_listed_oldest_first_and_half_a_line_is_passed_over(machines: Machines) -> None:
    for run, when in (("b", LATER), ("a", NOON)):
        log = trail(machines, run)
        log.begin(PLAN, "ops@laptop", when)
        log.end(results(None, None, None), when)
    logs = machines.logs(69, 67)
    logs[67] += '{"schema": 1, "run": "c", "ev'
    assert [command.run for command in history.commands(logs)] == ["a", "b"]


def test_the_line_after_one_that_a_full_disk_cut_stands_alone(machines: Machines) -> None:
    trail(machines).begin(PLAN, "ops@laptop", NOON)
    log = machines.folder / "69/audit.log"
    log.write_text(log.read_text()[:40])
    trail(machines, "bbbb0000").begin(PLAN, "ops@laptop", LATER)
    assert [command.run for command in history.commands(machines.logs(69))] == ["bbbb0000"]


def test_the_second_plan_of_a_command_is_an_entry_of_its_own_and_runs_as_long_as_its_lock_is_held() -> None:
    text = b"".join(
        [
            audit.line("aaaa0000", "begin", {"when": NOON, "command": "rollout --mtp 5"}),
            audit.line("aaaa0000", "end", {"when": NOON, "outcome": "failed"}),
            audit.line("aaaa0000-2", "begin", {"when": LATER, "command": "rollback 1"}),
        ]
    ).decode()
    assert [c.outcome for c in history.commands({69: text}, ["aaaa0000"])] == ["failed", "running"]
    assert [c.outcome for c in history.commands({69: text})] == ["failed", "cut short"]


def test_a_broken_lock_is_a_command_of_its_own() -> None:
    entry = {"when": NOON, "who": "ops@desk", "command": "lock break", "lock_taken_from": "night@desk ..."}
    text = (audit.line("x", "begin", entry) + audit.line("x", "end", {"outcome": "done"})).decode()
    found = history.commands({69: text})[0]
    assert (found.command, found.outcome, found.lock_taken_from) == ("lock break", "done", "night@desk ...")


def test_a_long_log_keeps_its_latest_two_parts(machines: Machines, tmp_path: Path) -> None:
    folder = tmp_path / "69"
    folder.mkdir()
    add = Script("audit_add", ("/log/audit.log",)).text
    (folder / "audit.log").write_text("old\n" * 300_000)
    machines[69].run(add, timeout=5, stdin=b"new\n")
    assert (folder / "audit.log").read_text() == "new\n"
    assert machines.logs(69)[69] == "old\n" * 300_000 + "new\n"


def test_once_the_lock_is_lost_no_operation_is_begun() -> None:
    def gone() -> None:
        raise LockedError("the lock is no longer ours")

    executor = Executor("f", {}, lambda: None, lambda target, words: None)  # type: ignore[arg-type, return-value]
    executor.guard = gone
    found = executor.execute(PLAN)
    assert [result.status for result in found] == [Status.FAILED, Status.NOT_REACHED, Status.NOT_REACHED]
    assert isinstance(found[0].error, LockedError)
