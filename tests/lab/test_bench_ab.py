"""`bench ab` on two machines: every instance runs every arm, users are served, and all is put back, killed or not."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import Lab, a_lab, kill

pytestmark = pytest.mark.matrix

SMALL = ("--arms", "3,5", "--tokens", "20", "--lengths", "600", "--times", "1", "--yes")
MARK = "/var/lib/fleetctl/ab/experiment.json"
MACHINES = (69, 67)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for lab in a_lab(tmp_path_factory, "ab", "10.255.231", list(MACHINES)):
        lab.run("rollout", "--yes")
        lab.wait_serving()
        yield lab


def tokens(lab: Lab) -> list[int]:
    return [one["mtp"] for machine in lab.status()["machines"] for one in machine["instances"]]


def marks(lab: Lab) -> list[int]:
    return [m for m in MACHINES if lab.on(m, f"[ -e {MARK} ] && echo there || true").strip() == "there"]


def is_back(lab: Lab, before: dict[str, Any]) -> None:
    """As if nothing had been: same release, same tokens, all in rotation, nothing left to say."""
    document = lab.status()
    assert tokens(lab) == [4] * 8
    assert marks(lab) == []
    assert document["experiment"] is None
    assert document["release"] == before
    assert document["balancer"]["up"] == 8
    assert set(lab.states().values()) == {"serving"}
    assert lab.run("plan", "rollout").out.count("nothing to do") == 1


def begin(lab: Lab, name: str, *words: str) -> tuple[subprocess.Popen[str], Path]:
    """One that runs on until it is killed; the samples of its first round."""
    process = lab.start("bench", "ab", *SMALL, "--out", name, *words)
    threading.Thread(target=lambda: process.stderr and process.stderr.read(), daemon=True).start()
    return process, lab.folder / f"{name}-round1.jsonl"


def measuring(lab: Lab, process: subprocess.Popen[str], samples: Path) -> None:
    def seen() -> bool:
        assert process.poll() is None, "it ended by itself"
        return samples.exists() and '"kind":"sample"' in samples.read_text()

    lab.wait("samples of round 1", seen, 300)


class Users:
    """Somebody who asks all the time, a session after the other."""

    def __init__(self, lab: Lab) -> None:
        self.codes: list[int] = []
        self._lab, self._over = lab, threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Users:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        number = 0
        while not self._over.wait(0.2):
            number += 1
            self.codes.append(self._lab.ask(f"user-{number}")[0])


def test_every_instance_runs_every_arm_nobody_is_refused_and_all_is_back(fleet: Lab) -> None:
    before = fleet.status()["release"]
    with Users(fleet) as users:
        done = fleet.run("bench", "ab", *SMALL, "--out", "whole", "-o", "json", code=None)
    assert set(users.codes) == {200}
    document = done.json
    rows = document["tables"][0]["rows"]
    assert {row["work"] for row in rows} == {"S0", "S1 stream", "S1 whole", "S5", "TTFT 600"}
    assert {row["pairs"] for row in rows} == {8}
    found = {check["what"]: check["verdict"] for check in document["checks"]}
    assert found["every request answered"] == "ok"
    assert found["answered by the computed backend"] == "ok"
    assert found["drafts as long as its arm says"] == "ok"
    assert document["partial"] is None
    headers = [json.loads((fleet.folder / f"whole-round{n}.jsonl").open().readline()) for n in (1, 2)]
    ran = [header["parameters"]["arms"] for header in headers]
    assert {one: {ran[0][one], ran[1][one]} for one in ran[0]} == {one: {3, 5} for one in fleet.states()}
    assert sorted(ran[0].values()) == [3] * 4 + [5] * 4
    assert fleet.key not in "".join((fleet.folder / f"whole-round{n}.jsonl").read_text() for n in (1, 2))
    is_back(fleet, before)
    shown = fleet.run("bench", "show", "whole-round1.jsonl", "whole-round2.jsonl", code=None)
    assert "B-A %" in shown.out


def test_killed_while_it_measures_it_is_seen_and_put_back(fleet: Lab) -> None:
    before = fleet.status()["release"]
    process, samples = begin(fleet, "killed", "--tokens", "400")
    measuring(fleet, process, samples)
    assert "is under way" in fleet.run("status", code=None).out
    kill(process)
    assert set(tokens(fleet)) == {3, 5}
    assert marks(fleet) == list(MACHINES)
    status = fleet.run("status", code=None).out
    assert "was left half way: fleetctl bench ab --restore" in status
    refused = fleet.run("bench", "ab", *SMALL, code=2)
    assert "fleetctl bench ab --restore" in refused.err
    with Users(fleet) as users:
        fleet.run("bench", "ab", "--restore", "--yes")
    assert set(users.codes) == {200}
    is_back(fleet, before)
    assert "nothing to restore" in fleet.run("bench", "ab", "--restore", "--yes").err


def test_killed_while_an_instance_changes_a_resumed_rollout_puts_it_back_too(fleet: Lab) -> None:
    before = fleet.status()["release"]
    process = fleet.start("bench", "ab", *SMALL, "--out", "early")
    assert process.stderr is not None
    for line in process.stderr:
        if "] ab: stop" in line:
            break
    kill(process)
    assert marks(fleet) == list(MACHINES)
    fleet.run("rollout", "--resume", "--yes")
    is_back(fleet, {**before, **{name: fleet.status()["release"][name] for name in ("when", "command")}})


def test_ctrl_c_puts_all_back_before_it_ends(fleet: Lab) -> None:
    before = fleet.status()["release"]
    process, samples = begin(fleet, "interrupted", "--tokens", "400")
    measuring(fleet, process, samples)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    is_back(fleet, before)


def containers(lab: Lab) -> dict[str, str]:
    return {one["id"]: one["container"]["id"] for machine in lab.status()["machines"] for one in machine["instances"]}


def test_an_arm_that_serves_rubbish_is_taken_back_before_any_other_instance_is_touched(fleet: Lab) -> None:
    before, ran = fleet.status()["release"], containers(fleet)
    fleet.run("lab", "fault", "engine", "69/0", "mtp0")
    try:
        done = fleet.run("bench", "ab", *SMALL, "--out", "broken", code=1)
    finally:
        fleet.run("lab", "fault", "engine", "69/0", "clear")
    assert "canary 69/0: none of" in done.err
    assert not (fleet.folder / "broken-round1.jsonl").exists()
    is_back(fleet, before)
    now = containers(fleet)
    assert {one for one in ran if ran[one] != now[one]} == {"69/0"}


def test_the_order_is_shown_and_nothing_changed_with_dry_run(fleet: Lab) -> None:
    before = fleet.status()["release"]
    rounds = fleet.run("bench", "ab", "--arms", "3,4,5", "--dry-run", "-o", "json").json["rounds"]
    assert len(rounds) == 3
    assert all(sorted(one[name] for one in rounds) == [3, 4, 5] for name in rounds[0])
    is_back(fleet, before)


def test_a_simulated_image_has_no_vllm_bench_serve_and_that_is_said(fleet: Lab) -> None:
    done = fleet.run("bench", "--cross-check", "--backend", "67/2", "--yes", code=1)
    assert "the image has no `vllm bench serve`" in done.err
    assert "67" in done.err
