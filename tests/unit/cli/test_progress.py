"""Bars in a terminal, lines without one, JSON lines beside JSON."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import PurePosixPath

import pytest

from fleetctl.cli.output import Voice
from fleetctl.cli.progress import Bars, Lines, shown
from fleetctl.commands.script import Script
from fleetctl.plan.meter import Progress
from fleetctl.plan.operation import Job, Operation

JOB = Job("fleetctl-f-model", Script("job_model"), PurePosixPath("/p"), 60)
OPERATION = Operation("model", 67, "67", "copy it", JOB)
HALF = Progress(500, 1000, 100.0, 5.0, "copying")


def test_without_a_terminal_there_is_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(Voice(), as_json=False) as told:
        assert isinstance(told, Lines)
        for _ in range(50):
            told(OPERATION, HALF)
    assert capsys.readouterr().err == "[67] model: copying, 50 % of 1000 B, 100 B/s, 5 s left\n"


def test_beside_json_the_progress_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(Voice(), as_json=True) as told:
        told(OPERATION, HALF)
    assert json.loads(capsys.readouterr().err)["progress"] == {
        "machine": 67,
        "step": "model",
        "done": 500,
        "total": 1000,
        "rate": 100,
        "left": 5,
        "words": "copying",
    }


def test_what_is_unknown_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(Voice(), as_json=True) as told:
        told(OPERATION, Progress(0, 0, None, None, "loading"))
    seen = json.loads(capsys.readouterr().err)["progress"]
    assert (seen["done"], seen["total"], seen["rate"], seen["left"]) == (None, None, None, None)


SCRIPT = """
import time
from fleetctl.cli.output import Voice
from fleetctl.cli.progress import shown
from tests.unit.cli.test_progress import HALF, OPERATION
voice = Voice()
with shown(voice, as_json=False) as told:
    assert type(told).__name__ == "Bars"
    told(OPERATION, HALF)
    time.sleep(0.3)
    voice("68", "image: something else [with brackets]")
    time.sleep(0.3)
"""


def test_in_a_terminal_there_is_a_bar_and_lines_stand_above_it() -> None:
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    seen = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            part = os.read(parent, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    assert process.wait(30) == 0, seen
    text = seen.decode()
    assert "50 %" in text
    assert "100 B/s" in text
    assert "[68] image: something else [with brackets]" in text
    assert Bars is not None
