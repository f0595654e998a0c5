"""Scripts about images, with a `docker` that says what it was asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fleetctl.commands.script import Script

ID = "sha256:" + "1" * 64
DIGEST = "sha256:" + "2" * 64


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What docker was asked, a line each; it says ID to every question."""
    (tmp_path / "docker").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\necho {ID}\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "asked"


def run(name: str, *args: str) -> None:
    text = Script(name, args, uses=("brought",)).text
    subprocess.run(["sh", "-c", text], check=True, stdout=subprocess.DEVNULL)


def test_a_pull_notes_what_it_brought_whether_or_not_anybody_watches(asked: Path) -> None:
    record = asked.parent / "state/images"
    run("job_pull", "registry.example:5000/x:1", str(record), "")
    assert asked.read_text().splitlines()[0] == "pull --quiet registry.example:5000/x:1"
    assert record.read_text() == f"{ID} registry.example:5000/x:1\n"
    run("note_image", str(record), "registry.example:5000/x:1")
    assert record.read_text() == f"{ID} registry.example:5000/x:1\n"
    run("note_image", str(record), "other")
    run("note_image", str(record), "registry.example:5000/x:1")
    assert record.read_text() == f"{ID} other\n{ID} registry.example:5000/x:1\n"


@pytest.mark.parametrize(
    ("reference", "name"), [("registry.example:5000/x:1", "registry.example:5000/x"), ("host:5000/x", "host:5000/x")]
)
def test_what_is_pinned_is_pulled_by_content_and_named_as_the_fleet_does(
    asked: Path, reference: str, name: str
) -> None:
    run("job_pull", reference, str(asked.parent / "images"), DIGEST)
    assert asked.read_text().splitlines()[:2] == [f"pull --quiet {name}@{DIGEST}", f"tag {name}@{DIGEST} {reference}"]
