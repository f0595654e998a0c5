"""Which samples belong into a report, what a machine says of itself, and what is refused before anything is asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fleetctl.bench.samples import Writer, encode
from fleetctl.cli import report as command
from fleetctl.cli.options import Options
from fleetctl.commands.script import Script
from fleetctl.errors import UsageError
from fleetctl.report.material import software
from fleetctl.report.runs import read
from tests.unit.bench.build import header, run, sample
from tests.unit.conftest import ROOT


def write(path: Path, **changes: str) -> Path:
    writer = Writer(path, header(**changes))
    writer.sample(sample(0))
    writer.end({"partial": False})
    return path


def test_runs_of_a_folder_are_those_of_the_fleet_oldest_first(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", fleet="ours", started="2026-01-02T00:00:00Z")
    write(tmp_path / "a.jsonl", fleet="ours", started="2026-01-03T00:00:00Z")
    write(tmp_path / "c.jsonl", fleet="theirs", started="2026-01-01T00:00:00Z")
    (tmp_path / "d.jsonl").write_text("no run\n")
    assert [one.name for one in read("ours", [tmp_path])] == ["b.jsonl", "a.jsonl"]


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", fleet="ours", started="2026-01-03T00:00:00Z")
    assert len(read("ours", [path, tmp_path])) == 1


def test_a_named_file_of_another_fleet_or_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="theirs"):
        read("ours", [write(tmp_path / "c.jsonl", fleet="theirs")])
    (tmp_path / "d.jsonl").write_text("no run\n")
    with pytest.raises(UsageError, match=r"d\.jsonl"):
        read("ours", [tmp_path / "d.jsonl"])
    with pytest.raises(UsageError, match="nowhere"):
        read("ours", [tmp_path / "nowhere.jsonl"])


def test_without_a_folder_there_are_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read("ours", []) == ()


def test_a_run_that_was_killed_is_read_as_partial(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(header(fleet="ours").encode()), json.dumps(encode(run().samples[0])), '{"kind": "sam']
    path.write_text("\n".join(lines))
    (one,) = read("ours", [path])
    assert one.run.partial is not None


@pytest.mark.parametrize(
    ("out", "language", "says"),
    [("x.pdf", "en", ".md or .html"), ("x.md", "fr", "--lang fr"), ("nowhere/x.md", "zh", "no folder")],
)
def test_what_cannot_be_written_is_said_before_any_connection(
    tmp_path: Path, out: str, language: str, says: str
) -> None:
    options = Options(inventory=ROOT / "inventory.yaml")
    with pytest.raises(UsageError, match=says):
        command.report(options, tmp_path / out, language, [], verify=True, reload=False)


def test_what_a_machine_says_of_itself_is_read_and_the_rest_is_absent() -> None:
    said = software("os\tUbuntu 24.04.3 LTS\naddress\teth0 10.0.0.1/24\naddress\teth1 10.0.1.1/24\ndocker\t\nbroken\n")
    assert said.versions == {"os": "Ubuntu 24.04.3 LTS"}
    assert said.addresses == (("eth0", "10.0.0.1/24"), ("eth1", "10.0.1.1/24"))


def test_the_script_runs_on_a_machine_that_has_nothing_of_ours() -> None:
    done = subprocess.run(
        ["sh", "-c", Script("report_versions", ("", "")).text], capture_output=True, text=True, check=True, timeout=60
    )
    said = software(done.stdout)
    assert said.versions["kernel"]
    assert said.versions["arch"]
