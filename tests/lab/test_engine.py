"""A real vLLM, on the CPU and with a model that was never trained, behind two machines: `make test-engine`.

One lab, its tests in order. What the simulator cannot prove: that the image's own `vllm serve` takes our flags, reads the
key from its file, drains, dies and comes back as we expect, and that verify and bench read what it really answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .conftest import Lab, bring_up, take_down, write_inventory

pytestmark = pytest.mark.engine

NET = "10.255.230"
MODEL = "Qwen3.8-27B-W8A8"
FIRST_BUILD = 5400.0  # seconds: packages are fetched, the image is made
COPY = 1800.0  # and two gigabytes go to the second machine
# What only a trained model can pass, and nothing else.
NOT_APPLICABLE = {(id, where) for id in ("prompts", "tool-call") for where in ("direct", "balancer", "outside")}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("engine")
    policy = {"start_timeout": 900, "drain_timeout": 120}
    inventory = write_inventory(folder, "engine", NET, [69, 67], rollout=policy)
    try:
        yield bring_up(folder, inventory, "engine", "--engine", "vllm-cpu", "--bare", seconds=FIRST_BUILD)
    finally:
        if not os.environ.get("FLEETCTL_KEEP_LAB"):
            take_down(inventory)


def containers(lab: Lab) -> dict[int, str]:
    return {m: lab.on(m, "docker ps -q --no-trunc --filter label=fleetctl.fleet=engine").strip() for m in (69, 67)}


def session_of(lab: Lab, machine: int) -> str:
    """A session that the balancer sends to a machine."""
    return next(name for n in range(64) if lab.ask(name := f"s{n}")[1] == f"{NET}.{machine}:8000")


def test_two_machines_join_with_the_real_engine(fleet: Lab) -> None:
    fleet.run("add-machine", "69", "--yes", seconds=COPY)
    fleet.run("add-machine", "67", "--yes", seconds=COPY)
    assert fleet.states() == {"69/0": "serving", "67/0": "serving"}
    document = fleet.status()
    assert document["balancer"]["up"] == 2
    assert {one["health"]["model"] for m in document["machines"] for one in m["instances"]} == {MODEL}
    log = fleet.on(67, "docker logs qwen38-tp2-0 2>&1")
    assert "Application startup complete" in log
    assert fleet.key not in log
    assert "simulator" not in log


def test_the_images_own_help_was_asked_for_its_flags(fleet: Lab) -> None:
    """A flag that this vLLM does not have stops a rollout before anything is drained."""
    before = containers(fleet)
    done = fleet.run("rollout", "--set", "engine.swap-spice=4", "--yes", code=None)
    assert done.code in (1, 2)
    assert "swap-spice" in done.out + done.err
    assert containers(fleet) == before


def test_a_second_rollout_changes_nothing(fleet: Lab) -> None:
    before = containers(fleet)
    assert "nothing to do" in fleet.run("rollout", "--yes").out
    assert containers(fleet) == before


def test_every_check_passes_but_those_that_need_a_trained_model(fleet: Lab) -> None:
    document = fleet.run("verify", "--reload", "-o", "json", code=None).json
    judged = [one for one in document["checks"] if one["status"] != "skip"]
    bad = [one for one in judged if one["status"] not in ("pass", "warn")]
    assert not bad, "\n".join(map(str, bad))
    assert document["exit"] == 0
    skipped = {(one["id"], one["where"]): one["seen"] for one in document["checks"] if one["status"] == "skip"}
    random = {check for check, seen in skipped.items() if seen == "not applicable: random weights"}
    assert random == NOT_APPLICABLE
    assert skipped.keys() - random == {("mtp", "direct")}
    assert skipped[("mtp", "direct")] == "the fleet does not speculate"
    assert all(one["n"] for one in judged)


def test_a_restart_drains_first_and_loses_nothing(fleet: Lab) -> None:
    before = containers(fleet)
    streams: list[list[dict[str, Any]]] = []
    users = [threading.Thread(target=lambda: streams.append(stream(fleet, session_of(fleet, 67)))) for _ in range(2)]
    for user in users:
        user.start()
    fleet.wait("streams on 67/0", lambda: running(fleet, 67) >= 2, 60)
    fleet.run("restart", "67/0", "--yes", seconds=COPY)
    for user in users:
        user.join()
    for events in streams:
        assert events[-1]["usage"]["completion_tokens"] == TOKENS
        reasons = {one["finish_reason"] for event in events for one in event["choices"]}
        assert "length" in reasons
    after = containers(fleet)
    assert after[69] == before[69]
    assert after[67] != before[67]
    assert fleet.states() == {"69/0": "serving", "67/0": "serving"}


TOKENS = 1500


def stream(lab: Lab, session: str) -> list[dict[str, Any]]:
    """A long stream through the balancer, to its end: its events."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {lab.key}", "X-Session-ID": session}
    request = urllib.request.Request(f"{lab.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        lines = [line.decode()[5:].strip() for line in answer if line.startswith(b"data:")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def running(lab: Lab, machine: int) -> float:
    text = lab.on(machine, f"curl -s -m 5 http://{NET}.{machine}:8000/metrics | grep '^vllm:num_requests_running'")
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines())


def test_a_rollout_changes_both_one_after_the_other_behind_a_canary(fleet: Lab) -> None:
    before = containers(fleet)
    done = fleet.run("rollout", "--set", "engine.max-num-seqs=16", "--yes", seconds=COPY)
    assert "not judged (random weights)" in done.out + done.err
    after = containers(fleet)
    assert all(after[machine] not in ("", before[machine]) for machine in before)
    assert fleet.states() == {"69/0": "serving", "67/0": "serving"}
    assert "--max-num-seqs 16" in fleet.on(67, "cat /etc/systemd/system/qwen38-tp2-0.service")
    fleet.run("rollback", "--yes", seconds=COPY)
    assert "--max-num-seqs 32" in fleet.on(67, "cat /etc/systemd/system/qwen38-tp2-0.service")


def test_an_engine_core_that_is_killed_comes_back(fleet: Lab) -> None:
    """The API server then ends by itself, with whatever status: systemd starts the instance again."""
    before = containers(fleet)
    pid = fleet.on(67, "docker top qwen38-tp2-0 -eo pid,comm | awk '/VLLM::EngineCor/ { print $1; exit }'").strip()
    assert pid
    fleet.on(67, f"kill -9 {pid}")
    fleet.wait("another container on 67", lambda: containers(fleet)[67] not in ("", before[67]), 300)
    fleet.wait_serving(seconds=300)
    fleet.wait("the balancer sends to both", lambda: fleet.status()["balancer"]["up"] == 2, 120)


def test_a_short_bench_measures_it(fleet: Lab) -> None:
    words = ("instance", "--backend", "67/0", "--users", "1,2", "--tokens", "32", "--seconds", "5")
    document = bench(fleet, *words)
    assert verdicts(document)["every request answered"] == "ok"
    assert verdicts(document)["answered by the computed backend"] == "ok"
    assert verdicts(document)["output length as asked"] == "ok"
    spread = bench(fleet, "distribution", "--keys", "64")
    assert verdicts(spread)["every backend reached"] == "ok"


def test_vllms_own_client_measures_the_same(fleet: Lab) -> None:
    """In turn, twelve rounds; what is too wide to tell on a busy box is said, a difference beyond 10 % is none."""
    words = ("--backend", "67/0", "--users", "2", "--requests", "8", "--tokens", "256", "--times", "12")
    with clients_first():
        document = bench(fleet, "--cross-check", *words)
    seen = {one["what"]: (one["verdict"], one["seen"], one["n"]) for one in document["checks"]}
    print(document["verdict"], document["invalid"], seen, document["tables"])
    judged = {what: found for what, found in seen.items() if "vllm bench serve" in what}
    assert len(judged) == 3
    assert {n for _, _, n in judged.values()} == {12}
    assert {verdict for verdict, _, _ in judged.values()} <= {"ok", "warn"}, seen


@contextmanager
def clients_first() -> Iterator[None]:
    """Both clients want a core of a box that two engines fill; vLLM's own stands among the engine's processes, ours
    does not, and waited for up to a second where those had the same weight as everything else. The machine with the
    balancer, whose engine is idle, goes before the other: ours has its way through it.
    """
    changed: dict[Path, str] = {}
    argv = ["docker", "inspect", "-f", "{{.State.Pid}}", "fleetctl-lab-engine-67"]
    pid = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        own = Path(f"/sys/fs/cgroup/{controllers}{group}")
        for name, least in (("cpu.shares", "2"), ("cpu.weight", "1")):
            for file in (own / name, own.parent / name):
                # A group of Docker's machines alone; what else is in a slice of the system keeps its weight.
                if file.exists() and file not in changed and file.parent.name != "system.slice":
                    changed[file] = file.read_text()
                    file.write_text(least)
    try:
        yield
    finally:
        for file, before in changed.items():
            if file.exists():
                file.write_text(before)


def bench(lab: Lab, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = lab.run("bench", *words, "-o", "json", "--yes", code=None).json
    return document


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {one["what"]: one["verdict"] for one in document["checks"]}


def test_nothing_of_it_is_left_when_the_machines_are_removed(fleet: Lab) -> None:
    fleet.run("remove-machine", "67", "--yes", seconds=COPY)
    assert fleet.on(67, "docker ps -aq").strip() == ""
