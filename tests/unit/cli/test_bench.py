"""`fleetctl bench` on the command line: what is refused before any connection, what is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.bench import scenarios
from fleetctl.bench.perform import Eyes
from fleetctl.bench.results import result
from fleetctl.bench.samples import Writer
from fleetctl.cli import bench_choice, bench_fleet, bench_text
from fleetctl.cli.output import Voice
from fleetctl.errors import UsageError
from tests.unit.bench.build import run as made

ROOT = Path(__file__).parents[3]
CHOICE = bench_choice.Choice("scaling", (), {}, None, 1, None, None, 60.0)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FLEET")}
    environment = {**clean, "FLEETCTL_INVENTORY": str(ROOT / "inventory.yaml")}
    return subprocess.run(
        [sys.executable, "-m", "fleetctl", "bench", *words],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )


def write(path: Path, seed: int, **changes: object) -> Path:
    one = made(seed=seed, **changes)  # type: ignore[arg-type]
    writer = Writer(path, one.header)
    for event in one.events:
        writer.event(0.0, str(event.pop("what")), **event)
    for sample in one.samples:
        writer.sample(sample)
    writer.end(one.end or {})
    return path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nothing",), "there are distribution, affinity"),
        (("soak", "--keys", "3"), "has no --keys; it has --rate"),
        (("soak", "file"), "takes no files"),
        (("scaling", "--users", "1,x"), "a whole number above zero"),
        (("sequential", "--no-stream"), "has no --no-stream"),
        (("compare", "one"), "takes two files"),
        (("show", "/nowhere"), "No such file"),
        (("soak", "-o", "xml"), "table, wide and json"),
    ],
)
def test_bad_words_are_a_usage_error_before_any_connection(words: tuple[str, ...], says: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_key_nothing_is_connected_to() -> None:
    done = run("soak")
    assert done.returncode == 2
    assert "FLEET_API_KEY is not set" in done.stderr


def test_options_are_the_scenarios_own_fields() -> None:
    given = {"users": "1,2,4", "tokens": 50, "stream": False}
    scenario = bench_choice.scenario_of(
        scenarios.Scaling, bench_choice.Choice("scaling", (), given, None, 1, None, None, 60.0)
    )
    assert scenario == scenarios.Scaling(users=(1, 2, 4), tokens=50, stream=False)
    lengths = bench_choice.Choice("longctx", (), {"lengths": "10K,240K"}, None, 1, None, None, 60.0)
    assert bench_choice.scenario_of(scenarios.LongContext, lengths) == scenarios.LongContext(lengths=(10_000, 240_000))
    with pytest.raises(UsageError, match="one number"):
        bench_choice.scenario_of(
            scenarios.Distribution, bench_choice.Choice("distribution", (), {"users": "1,2"}, None, 1, None, None, 1)
        )


def test_every_option_of_every_scenario_is_on_the_command_line() -> None:
    from dataclasses import fields

    named = {field.name for kind in scenarios.ALL.values() for field in fields(kind)}
    assert named - set(bench_choice.OPTIONS) == {"stream", "serial", "at_once", "before"}


def test_what_was_not_measured_often_enough_is_a_dash() -> None:
    text = bench_text.result_text(result(made()))
    row = next(line for line in text.splitlines() if line.startswith("69/0"))
    # Eight requests to one backend carry a median and nothing above it; the maximum stands beside it.
    assert row.split()[-3:-1] == ["-", "-"]
    assert text.startswith("sequential: OK")


def test_a_file_of_samples_can_be_looked_at_again(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", 1)
    done = run("show", str(path), "-o", "json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert (document["schema"], document["scenario"], document["verdict"]) == (1, "sequential", "ok")
    assert document["header"]["parameters"] == {"requests": 64, "tokens": 100}


def test_where_no_plot_can_be_written_the_tables_are_printed_all_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", 1, scenario="distribution")
    (tmp_path / "run-distribution.svg").mkdir()
    done = run("show", str(path))
    assert "spread like a fair hash" in done.stdout
    assert "no plot" in done.stderr


def test_two_files_are_compared_and_unlike_ones_refused(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", 1), write(tmp_path / "b.jsonl", 2, tokens=3)
    done = run("compare", str(first), str(second))
    assert done.returncode == 0
    assert "differs: speculative tokens: 4 -> 3" in done.stdout
    assert "no difference shown" in done.stdout
    other = write(tmp_path / "c.jsonl", 2, model="another")
    refused = run("compare", str(first), str(other), "-o", "json")
    assert refused.returncode == 1
    assert "other models" in json.loads(refused.stdout)["refused"][0]


def test_the_load_engine_is_imported_by_bench_alone() -> None:
    """`status` is a tenth of a second: aiohttp alone would double that."""
    code = (
        "import sys; from fleetctl.cli import app, read, change; app._add_groups(['--help']);"
        "print([m for m in ('aiohttp', 'uvloop', 'orjson', 'fleetctl.bench.load') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("requests", "in_flight", "seen"),
    [
        ((100, 103), (0, 0, 0), 3),
        ((100, 100), (0, 2, 1), 2),
        ((None, 150_000), (0, 0, 0), 0),
        ((150_000, 3), (0, 0, 0), 0),
        ((100, None), (None, None, None), None),
        ((None, None), (None, 1, 0), 1),
    ],
)
def test_a_fleet_is_in_use_by_what_was_seen_and_not_by_what_was_not(
    requests: tuple[int | None, ...],
    in_flight: tuple[int | None, ...],
    seen: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    counted, flying = iter(requests), iter(in_flight)
    assert bench_fleet.in_use(Eyes(lambda: next(flying), lambda: next(counted))) == seen


def test_while_it_runs_a_bar_says_how_much_is_done_where_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    load: Any = SimpleNamespace(
        now=lambda: 42.0, cell="keys", samples=[0] * 90, in_flight=8, errors=1, measured=75, begun=1
    )
    bench_text.Progress(Voice(), scenarios.Distribution(keys=300))(load)
    bench_text.Progress(Voice(), scenarios.Mixed())(load)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "    42 s  [#####...............]  25%  keys             90 done, 8 in flight, 1 failed"
    assert second == "    42 s  keys             90 done, 8 in flight, 1 failed"
