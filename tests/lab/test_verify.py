"""The acceptance checks on real machines: all pass on a fleet that is well, and each fault turns its own line red."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Lab, a_lab

# What has to be there for a fleet with reasoning, tools and speculation, whatever else is checked.
WANTED = {
    "machines": {"reachable", "joined", "units", "npu-smi", "image", "flags", "model-files", "driver", "key-files"},
    "direct": {"health", "model", "auth", "completion", "version", "prompts", "temperature-0", "temperature", "mtp"}
    | {"max-tokens", "usage", "reasoning", "tool-call", "stream", "stream-usage", "answered"},
    "balancer": {"answers", "health-truth", "routing", "reached", "session", "reload", "auth", "model", "spread"}
    | {"prompts", "max-tokens", "usage", "reasoning", "tool-call", "stream", "stream-usage", "unguarded", "cors"},
    "outside": {"answers", "health-truth", "routing", "auth", "model", "prompts", "stream", "unguarded", "cors"},
}

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for lab in a_lab(tmp_path_factory, "verify", "10.255.235", [69, 67]):
        lab.run("rollout", "--yes")
        yield lab


def verify(lab: Lab, *words: str, code: int | None = None) -> dict[str, Any]:
    document: dict[str, Any] = lab.run("verify", *words, "-o", "json", code=code).json
    return document


def failed(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(check["id"], check["where"]) for check in document["checks"] if check["status"] == "fail"}


def reasons(document: dict[str, Any]) -> list[str]:
    return [f"{check['id']} ({check['where']}): {check['seen']}" for check in document["checks"] if check["n"]]


def one(document: dict[str, Any], id: str, where: str) -> dict[str, Any]:
    return next(check for check in document["checks"] if (check["id"], check["where"]) == (id, where))


def files(lab: Lab) -> str:
    """Everything that fleetctl keeps on the machines, and when it was changed."""
    find = "find /etc/fleetctl /var/lib/fleetctl /etc/systemd/system -type f -printf '%p %s %T@\\n' | sort"
    return "".join(lab.on(machine, find) for machine in (69, 67))


def test_a_fleet_that_is_well_passes_every_check(fleet: Lab) -> None:
    document = verify(fleet, "--reload")
    assert failed(document) == set()
    assert document["exit"] == 0
    assert document["schema"] == 1
    seen: dict[str, set[str]] = {}
    for check in document["checks"]:
        seen.setdefault(check["where"], set()).add(check["id"])
        assert check["status"] in ("pass", "warn"), check
        assert check["n"] > 0
        assert check["expected"]
        assert check["seen"]
    for where, wanted in WANTED.items():
        assert wanted <= seen[where]
    routing = one(document, "routing", "balancer")
    assert routing["n"] >= 160
    assert routing["bound"] < 0.02


def test_verify_changes_nothing_and_leaves_nothing(fleet: Lab) -> None:
    before = files(fleet)
    pids = fleet.on(69, "systemctl show -p MainPID,ExecMainStartTimestampMonotonic,NRestarts openresty-qwen docker")
    # Not even the lock of a machine's steps is needed: somebody else holds it meanwhile.
    fleet.on(69, f"setsid flock /run/fleetctl/{fleet.fleet}.lock sleep 60 >/dev/null 2>&1 &")
    assert verify(fleet)["exit"] == 0
    assert files(fleet) == before
    assert (
        fleet.on(69, "systemctl show -p MainPID,ExecMainStartTimestampMonotonic,NRestarts openresty-qwen docker")
        == pids
    )
    assert fleet.on(69, "ls -d /tmp/tmp.* 2>/dev/null || true") == ""


def test_the_key_is_in_no_argument_and_no_file_while_verify_runs(fleet: Lab) -> None:
    """Looked at again and again on the balancer's machine, with the pattern in a file, so that the look is not found."""
    fleet.on(69, f"printf %s {fleet.key} >/root/pattern; touch /root/watch")
    watch = """
while [ -e /root/watch ]; do
    grep -l -F -f /root/pattern /proc/[0-9]*/cmdline 2>/dev/null
    grep -r -l -F -f /root/pattern /tmp /run/user /run/fleetctl /var/log 2>/dev/null
done | sort -u"""
    found: list[str] = []
    watcher = threading.Thread(target=lambda: found.append(fleet.on(69, watch, check=False)))
    watcher.start()
    try:
        verify(fleet, code=0)
    finally:
        fleet.on(69, "rm /root/watch")
        watcher.join()
        fleet.on(69, "rm /root/pattern")
    assert found == [""]


@pytest.mark.parametrize(
    ("word", "check"),
    [
        ("garbled", ("prompts", "direct")),
        ("wrong-answers", ("prompts", "direct")),
        ("mtp0", ("mtp", "direct")),
        ("unhealthy", ("health", "direct")),
        ("hang", ("completion", "direct")),
    ],
)
def test_a_fault_of_an_engine_turns_its_own_line_red(fleet: Lab, word: str, check: tuple[str, str]) -> None:
    fleet.run("lab", "fault", "engine", "67/2", word)
    try:
        if word == "unhealthy":
            fleet.wait("the balancer has seen it", lambda: '"degraded"' in ask(fleet, "/health"), 30)
        else:
            # The engine reads its faults every second.
            fleet.on(67, "sleep 2.5")
        document = verify(fleet, code=1)
        assert failed(document) == {check}, reasons(document)
        line = one(document, *check)
        assert line["failed"] == ["67/2"]
        assert "67/2" in line["next"]
        assert word != "garbled" or "garbled at" in line["seen"]
        assert word != "wrong-answers" or "wrong at" in line["seen"]
    finally:
        fleet.run("lab", "fault", "engine", "67/2", "clear")
        fleet.on(67, "sleep 2.5")
        fleet.wait("the balancer sends to all again", lambda: '"ok"' in ask(fleet, "/health"), 60)


def ask(lab: Lab, path: str) -> str:
    listen = re.sub(r"\D", "", lab.inventory.read_text().split("listen:")[1].split("\n")[0])
    return lab.on(69, f"curl -s -m 5 http://127.0.0.1:{listen}{path} || true")


def test_an_instance_with_another_key_is_one_red_line(fleet: Lab) -> None:
    """Started with a key that nobody else has; the file is put back, so that only the engine differs."""
    path = f"/etc/fleetctl/{fleet.fleet}/api-key"
    fleet.on(67, f"cp -p {path} {path}.kept && echo sk-another-0123456789 >{path} && systemctl restart qwen38-tp2-3")
    fleet.on(67, "until curl -sf http://10.255.235.67:8003/health; do sleep 0.3; done")
    fleet.on(67, f"cat {path}.kept >{path}; rm {path}.kept")
    fleet.wait("the balancer sends to all again", lambda: '"ok"' in ask(fleet, "/health"), 60)
    try:
        document = verify(fleet, code=1)
        assert failed(document) == {("auth", "direct")}, reasons(document)
        assert "401 with the key" in one(document, "auth", "direct")["seen"]
    finally:
        fleet.run("restart", "67/3", "--now", "--yes")


def test_a_route_opened_by_hand_is_found(fleet: Lab) -> None:
    conf = f"/etc/fleetctl/{fleet.fleet}/balancer/nginx.conf"
    open_it = "location = /metrics { proxy_pass http://10.255.235.67:8000; }"
    fleet.on(69, f"cp {conf} /root/kept && sed -i '0,/location = .health/s|location = /health|{open_it} &|' {conf}")
    fleet.on(69, "systemctl reload openresty-qwen && sleep 1.5")
    try:
        document = verify(fleet, code=1)
        assert failed(document) == {("unguarded", "balancer")}, reasons(document)
        assert "/metrics answers 200" in one(document, "unguarded", "balancer")["seen"]
    finally:
        fleet.on(69, f"cat /root/kept >{conf} && rm /root/kept && systemctl reload openresty-qwen && sleep 1.5")


def test_a_balancer_that_is_down_is_one_red_line(fleet: Lab) -> None:
    fleet.on(69, "systemctl stop openresty-qwen")
    try:
        document = verify(fleet, code=1)
        assert failed(document) == {("units", "machines")}, reasons(document)
        assert one(document, "answers", "balancer")["status"] == "skip"
    finally:
        fleet.on(69, "systemctl start openresty-qwen")
        fleet.wait("the balancer answers", lambda: '"ok"' in ask(fleet, "/health"), 60)


def test_an_instance_stopped_on_purpose_is_worth_a_look(fleet: Lab) -> None:
    fleet.run("stop", "67/0", "--reason", "fan", "--yes")
    try:
        document = verify(fleet, code=0)
        assert document["verdict"] == "warn"
        assert "(fan)" in one(document, "joined", "machines")["seen"]
    finally:
        fleet.run("start", "67/0", "--yes")


def test_a_machine_that_does_not_answer_is_exit_code_4(fleet: Lab) -> None:
    fleet.run("lab", "fault", "freeze-ssh", "67")
    try:
        document = verify(fleet, code=4)
        assert failed(document) == {("reachable", "machines")}, reasons(document)
        assert one(document, "reachable", "machines")["failed"] == ["67"]
    finally:
        fleet.run("lab", "fault", "thaw", "67")


def test_the_table_says_it_in_words(fleet: Lab) -> None:
    done = fleet.run("verify", "-q")
    assert re.search(r"^verify  PASS  \d+ passed", done.out) or "worth a look" in done.out
    assert "PROVES" in done.out
    assert done.err == ""
    assert fleet.key not in done.out
