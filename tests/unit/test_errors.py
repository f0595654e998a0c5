"""What is shown of foreign text: it cannot move the cursor, ring, or hide what stands beside it."""

from __future__ import annotations

import pytest

from fleetctl.cli import output
from fleetctl.cli.output import Voice, table
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, visible
from fleetctl.plan.operation import Operation, Plan, Run, sequence

HOSTILE = "ok\x1b[2J\x07\rgone\u202e\x9b1m"


def test_what_a_terminal_obeys_is_shown_as_a_mark_and_text_stays() -> None:
    assert visible(HOSTILE) == "ok\ufffd[2J\ufffd\ufffdgone\ufffd\ufffd1m"
    assert visible("two\nlines\tand 中文, é") == "two\nlines\tand 中文, é"


def test_neither_error_nor_table_nor_chatter_obeys_a_servers_answer(capsys: pytest.CaptureFixture[str]) -> None:
    Voice()("67", HOSTILE)
    shown = capsys.readouterr().err + str(CommandError(HOSTILE, machine=67)) + table(("SEEN",), [(HOSTILE,)])
    assert not set(shown) & set("\x1b\x07\r\u202e\x9b")


def test_a_plan_on_a_terminal_has_our_colours_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was once cleaned of its own."""
    monkeypatch.setattr(output, "colourful", lambda stream: True)
    run = Run(Script("unit_start", (HOSTILE,)))
    step = Operation("start", 67, "67/0", HOSTILE, run)
    shown = output.plan_text(Plan("restart", "demo", sequence("restart", step), notes=(HOSTILE,)), verbose=True)
    assert shown.startswith("\x1b[1mPlan ")
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown


def test_what_is_painted_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Voice().line("\x1b[1mPlan\x1b[0m")
    assert capsys.readouterr().err == "\x1b[1mPlan\x1b[0m\n"
