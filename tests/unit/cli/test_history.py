"""`fleetctl history`: its script against real files, and what it says about releases."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.cli import history
from fleetctl.cli.options import Options
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.plan.release import Release, whole
from fleetctl.remote.connection import Result

BEGIN = {"run": "aaaa0000", "event": "begin", "when": "2026-08-29T12:00:00Z", "who": "ops", "release": 2}


class Machines:
    """Folders in place of machines, asked by the shell."""

    def __init__(self, root: Path, fleet: Fleet) -> None:
        self.root, self.fleet = root, fleet
        self.errors: dict[int, Exception] = {}
        self.connections = self

    def folder(self, machine: int) -> Path:
        place = self.root / str(machine) / "lib" / self.fleet.name
        (place / "releases").mkdir(parents=True, exist_ok=True)
        return place

    def map(self, one: Callable[[Any], str], machines: Iterable[int]) -> dict[int, str]:
        return {machine: one(SimpleNamespace(run=self._run(machine))) for machine in machines}

    def _run(self, machine: int) -> Callable[..., Result]:
        def run(text: str, *, timeout: float) -> Result:
            here = self.folder(machine).parent
            local = text.replace("/var/lib/fleetctl", str(here)).replace("/run/fleetctl", str(here / "run"))
            done = subprocess.run(["sh", "-c", local], capture_output=True, text=True, timeout=timeout, check=False)
            return Result(done.returncode, done.stdout, done.stderr, 0.0)

        return run


@pytest.fixture
def machines(tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Release 2 is on 67 only; 68 has half of its file before a whole one, and nothing in a third."""
    found = Machines(tmp_path, fleet)
    monkeypatch.setattr(history, "with_session", lambda options, machines, look: look(found))
    one = Release(1, Overrides(), "", "", "rollout", "good", whole(fleet))
    two = Release(
        2, Overrides(tokens=5), "", "", "rollout --mtp 5 --machines 67", "good", whole(fleet), None, (69, 68, 66)
    )
    for machine in fleet.machines:
        (found.folder(machine) / "releases/00001.json").write_text(json.dumps(one.document) + "\n")
    for machine in (69, 67):
        (found.folder(machine) / "releases/00002.json").write_text(json.dumps(two.document) + "\n")
    (found.folder(67) / "audit.log").write_text(
        json.dumps({**BEGIN, "command": "rollout --mtp 5 --machines 67", "operations": 1}) + "\n"
        + json.dumps({"run": "aaaa0000", "event": "end", "outcome": "done", "done": 1, "seconds": 3}) + "\n"
    )  # fmt: skip
    (found.folder(68) / "releases/00000.json").write_text(json.dumps(one.document)[:40])
    (found.folder(68) / "releases/00003.json").write_text("")
    return found


def test_history_names_files_that_are_no_release_and_where_a_release_proved_good(
    machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history.history(Options(), 20) == 0
    out = capsys.readouterr().out
    kept = machines.folder(68) / "releases"
    left = "left out, the other machines' copies count; remove it, or copy theirs"
    assert f"68: {kept}/00000.json: it is no JSON, or half of it: {left}\n" in out
    assert f"68: {kept}/00003.json: it is empty: {left}\n" in out
    assert "release 2 proved good on 67, and not on 69,68,66: fleetctl rollback 2 --machines 67" in out
    assert "rollout --mtp 5 --machines 67  2 " in out
    assert "release 1 " not in out


def test_history_as_json_has_them_too(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    history.history(Options(json=True), 20)
    document = json.loads(capsys.readouterr().out)
    assert document["releases"] == [
        {"number": 1, "outcome": "good", "left_out": []},
        {"number": 2, "outcome": "good", "left_out": [69, 68, 66]},
    ]
    assert [(one["machine"], one["reason"]) for one in document["broken_releases"]] == [
        (68, "it is no JSON, or half of it"),
        (68, "it is empty"),
    ]
    assert [one["outcome"] for one in document["commands"]] == ["done"]
