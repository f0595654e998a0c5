"""`fleetctl bench` on two machines: real balancer, simulated engines. Counts and order, never seconds."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.conftest import Lab, a_lab

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for lab in a_lab(tmp_path_factory, "bench", "10.255.234", [69, 67]):
        lab.run("rollout", "--yes")
        lab.wait_serving()
        yield lab


def measure(lab: Lab, *words: str, code: int | None = None) -> dict[str, object]:
    """The document of a run; its times may be the loaded box's, its counts may not."""
    done = lab.run("bench", *words, "-o", "json", "--yes", code=code)
    document: dict[str, object] = json.loads(done.out)
    return document


def checks(document: dict[str, object]) -> dict[str, str]:
    listed = document["checks"]
    assert isinstance(listed, list)
    return {one["what"]: one["verdict"] for one in listed}


def test_every_backend_is_reached_and_every_session_lands_where_it_computes_to(fleet: Lab) -> None:
    found = checks(measure(fleet, "distribution", "--keys", "160", "--out", "one.jsonl", code=0))
    assert found["answered by the computed backend"] == "ok"
    assert found["every backend reached"] == "ok"
    assert found["no foreign traffic"] == "ok"
    assert fleet.key not in (fleet.folder / "one.jsonl").read_text()


def test_a_drained_instance_is_left_out_and_its_sessions_are_computed_elsewhere(fleet: Lab) -> None:
    fleet.run("drain", "67/1")
    try:
        document = measure(fleet, "affinity", "--sessions", "20", code=0)
        assert checks(document)["answered by the computed backend"] == "ok"
        assert "67/1" not in json.dumps(document["header"]["backends"])  # type: ignore[index]
    finally:
        fleet.run("undrain", "67/1")


def test_load_is_aimed_at_one_instance(fleet: Lab) -> None:
    words = ("instance", "--backend", "67/2", "--users", "1,2", "--tokens", "20", "--seconds", "1")
    assert checks(measure(fleet, *words))["answered by the computed backend"] == "ok"


def test_a_killed_instance_is_replaced_and_comes_back(fleet: Lab) -> None:
    document = measure(fleet, "failover", "--backend", "67/3", "--after", "120")
    found = checks(document)
    assert found["its sessions are answered elsewhere"] == "ok"
    assert found["sessions of other instances unhurt"] == "ok"
    row = document["tables"][0]["rows"][0]  # type: ignore[index]
    assert row["itself back after"] is not None
    fleet.wait_serving()


def test_ctrl_c_leaves_a_valid_part_and_a_fleet_in_use_is_not_loaded_unasked(fleet: Lab) -> None:
    path: Path = fleet.folder / "soak.jsonl"
    soak = fleet.start("bench", "soak", "--rate", "20", "--tokens", "40", "--out", str(path), "--yes")
    fleet.wait("samples", lambda: path.exists() and path.read_text().count('"kind":"sample"') > 60)
    refused = fleet.run("bench", "affinity", code=2)
    assert "it is in use" in refused.err
    soak.send_signal(signal.SIGINT)
    assert soak.wait(60) == 130
    shown = fleet.run("bench", "show", str(path), "-o", "json", code=None)
    assert json.loads(shown.out)["partial"] == "interrupted"
