"""How a command that changes something shows what it would do and what became of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from fleetctl.cli.change import carry_out
from fleetctl.cli.options import Options
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan.operation import Operation, Plan, Run, Status, StepResult, sequence
from fleetctl.plan.session import Session

START = Operation("start", 67, "67/0", "start x.service", Run(Script("unit_start", ("x.service",))))


class FailingSession:
    """Executes nothing: the operation has failed."""

    progress: object = None
    executor = None

    def execute(self, plan: Plan, release: object) -> list[StepResult]:
        error = CommandError("67/1 is in the way: fleetctl stop 67/1", machine=67)
        return [StepResult(operation, Status.FAILED, 1.0, error) for operation in plan.operations]


def plan(fleet: Fleet) -> Plan:
    return Plan("start 67/0", fleet.name, sequence("start", START), ("67/2 stays stopped (fleetctl start 67/2)",))


def test_a_plan_says_whose_it_is_and_its_notes_can_be_pasted(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(inventory=Path("prod.yaml"), dry_run=True)
    assert carry_out(options, cast(Session, None), plan(fleet)) == 0
    shown = capsys.readouterr()
    assert shown.err == f"fleet {fleet.name}, of prod.yaml (-i)\n"
    assert "note: 67/2 stays stopped (fleetctl start -i prod.yaml 67/2)\n" in shown.out
    assert shown.out.endswith("in all: 1 machine, 1 instance to start\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_what_failed_names_commands_that_can_be_pasted(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    options = Options(inventory=Path("prod.yaml"), yes=True, json=as_json, quiet=True)
    assert carry_out(options, cast(Session, FailingSession()), plan(fleet)) == 1
    shown = capsys.readouterr()
    said: list[Any] = [shown.err, *([json.loads(shown.out)["results"][0]["error"]] if as_json else [])]
    for text in said:
        assert "67/1 is in the way: fleetctl stop -i prod.yaml 67/1" in text
        assert "`fleetctl start -i prod.yaml 67/0` again" in text
