"""The API key is in no argument list, environment, log, unit, plan or report: only in the 0600 files listed here."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator

import pytest

from .conftest import ROOT, Lab

ALLOWED = ("/etc/fleetctl/{fleet}/api-key",)
SAMPLE = "while [ -e /run/sample ]; do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' >>/tmp/cmdlines; sleep 0.05; done"


@pytest.fixture(scope="module")
def sampled(pair: Lab) -> Iterator[Lab]:
    """The whole life of a pair of machines, with every command line on them sampled meanwhile."""
    threads = []
    for machine in (69, 67):
        pair.on(machine, "touch /run/sample")
        threads.append(threading.Thread(target=lambda m=machine: pair.on(m, SAMPLE, check=False), daemon=True))
        threads[-1].start()
    pair.run("add-machine", "69", "67", "--yes", "-v")
    pair.run("rollout", "--mtp", "3", "--yes", "-v")
    pair.run("plan", "-o", "json")
    pair.run("status", "-o", "json")
    pair.run("status", "-o", "wide")
    pair.run("restart", "67/0", "--yes", "-v")
    for session in ("a", "b"):
        pair.ask(
            session,
            "/v1/chat/completions",
            data='{"model":"Qwen3.8-27B-W8A8","messages":[{"role":"user","content":"1+1="}],"max_tokens":4}',
        )
        pair.ask(session, key="wrong-key-0000")
    for name in ("67/0", "balancer"):
        pair.run("logs", name)
    pair.run("logs", "balancer", "--access", code=None)
    for machine in (69, 67):
        pair.on(machine, "rm -f /run/sample")
    yield pair


def forms(key: str) -> list[str]:
    return [key, base64.b64encode(key.encode()).decode().rstrip("=")[:-2]]


def leaks(lab: Lab, machine: int) -> list[str]:
    """Files of a machine, its containers and its journal that hold the key. Patterns come on standard input."""
    needles = "\\n".join(forms(lab.key))
    search = (
        f"printf '{needles}\\n' >/run/needles; "
        "grep -rlsFf /run/needles /etc /var /root /home /tmp /run /opt /usr/local /data --exclude=needles "
        "--exclude-dir=overlay2 || true; "
        "for c in $(docker ps -aq); do docker inspect $c | grep -qFf /run/needles && echo inspect:$c; "
        "docker logs $c 2>&1 | grep -qFf /run/needles && echo logs:$c; done; "
        "journalctl --no-pager 2>/dev/null | grep -qFf /run/needles && echo journal; rm -f /run/needles; true"
    )
    allowed = {path.format(fleet=lab.fleet) for path in ALLOWED}
    return [line for line in lab.on(machine, search).splitlines() if line not in allowed]


def test_the_key_is_only_where_it_may_be(sampled: Lab) -> None:
    for machine in (69, 67):
        assert leaks(sampled, machine) == []
        mode = sampled.on(machine, f"stat -c '%a %U' /etc/fleetctl/{sampled.fleet}/api-key").strip()
        assert mode == "600 root"


def test_command_lines_were_sampled_and_hold_no_key(sampled: Lab) -> None:
    for machine in (69, 67):
        assert "vllm" in sampled.on(machine, "cat /tmp/cmdlines | head -c 50000000 | grep -m1 vllm || true")


def test_no_output_of_fleetctl_holds_the_key(sampled: Lab) -> None:
    assert len(sampled.outputs) > 10
    assert not any(form in text for text in sampled.outputs for form in forms(sampled.key))


def test_nothing_beside_the_inventory_holds_the_key(sampled: Lab) -> None:
    for path in sampled.folder.rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20 and path.name != "api-key":
            assert sampled.key not in path.read_text(errors="replace"), path
    assert sampled.key not in (ROOT / "inventory.yaml").read_text()


def test_a_planted_leak_is_found(sampled: Lab) -> None:
    sampled.on(67, f"printf 'oops %s' {sampled.key} >/var/log/planted.log")
    try:
        assert leaks(sampled, 67) == ["/var/log/planted.log"]
    finally:
        sampled.on(67, "rm /var/log/planted.log")
