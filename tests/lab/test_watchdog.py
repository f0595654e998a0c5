"""An engine that hangs comes back by itself or is parked and said to be; what was changed by hand is seen and put right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from .conftest import Lab, a_lab

pytestmark = pytest.mark.matrix

UNIT = "qwen38-tp2-1.service"
KEY = 'printf \'header = "Authorization: Bearer %s"\\n\' "$(cat /etc/fleetctl/watch/api-key)"'
LONG = '{"model":"Qwen3.8-27B-W8A8","max_tokens":20000,"messages":[{"role":"user","content":"count"}]}'


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One machine with two instances; an engine hangs after 5 s, and is parked after one restart in an hour."""
    for lab in a_lab(tmp_path_factory, "watch", "10.255.246", [69], instances={"per_machine": 2}):
        document = yaml.safe_load(lab.inventory.read_text())
        document["watchdog"] = {"hang_seconds": 5, "dead_drafts": 50, "restarts_per_hour": 1}
        lab.inventory.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        lab.run("rollout", "--yes")
        yield lab


def one(lab: Lab, index: int) -> dict[str, Any]:
    found: dict[str, Any] = lab.status()["machines"][0]["instances"][index]
    return found


def container(lab: Lab, index: int) -> str:
    return lab.on(69, f"docker inspect -f '{{{{.Id}}}}' qwen38-tp2-{index} 2>/dev/null || true").strip()


def test_the_watchdog_is_part_of_the_desired_state(watched: Lab) -> None:
    assert timer(watched) == "active"
    assert "nothing to do" in watched.run("rollout", "--yes").out
    watched.on(69, "systemctl disable --quiet --now fleetctl-watchdog-watch.timer")
    assert "start fleetctl-watchdog-watch.timer" in watched.run("rollout", "--yes", "--dry-run").out
    watched.run("rollout", "--yes")
    assert timer(watched) == "active"


def timer(lab: Lab) -> str:
    return lab.on(69, "systemctl is-active fleetctl-watchdog-watch.timer", check=False).strip()


def test_an_engine_that_hangs_is_restarted_then_parked_and_start_revives_it(watched: Lab) -> None:
    sibling, before = container(watched, 0), container(watched, 1)
    address = one(watched, 1)["address"]
    ask = f"curl -s -m 100 -o /dev/null -K - -H 'Content-Type: application/json' -d '{LONG}'"
    watched.on(69, f"{KEY} | setsid {ask} http://{address}/v1/chat/completions >/dev/null 2>&1 &")
    running = f"curl -s http://{address}/metrics | grep -c '^vllm:num_requests_running.* 1.0'"
    watched.wait("a request in flight", lambda: watched.on(69, running, check=False).strip() == "1", 20)

    watched.run("lab", "fault", "engine", "69/1", "hang")
    watched.wait("another container", lambda: container(watched, 1) not in ("", before), 60)
    # It hangs again as soon as it serves, with nothing in flight: it is asked, and does not answer.
    watched.wait("parked", lambda: watched.states()["69/1"] == "parked", 90)
    status = watched.run("status", code=None)
    assert "69/1 was parked by the watchdog (a question of one token has no answer" in status.out
    assert "fleetctl start 69/1" in status.out
    assert container(watched, 0) == sibling, "its sibling was left alone"
    assert "too quickly" not in watched.on(69, "journalctl -u fleetctl-watchdog-watch.service --no-pager -o cat")
    history = watched.run("history").out
    assert "watchdog restart 69/1" in history
    assert "watchdog park 69/1" in history

    watched.run("lab", "fault", "engine", "69/1", "clear")
    watched.run("start", "69/1", "--yes")
    assert one(watched, 1)["state"] == "serving"
    assert watched.on(69, "ls /var/lib/fleetctl/watch/parked") == ""
    assert "nothing to do" in watched.run("rollout", "--yes").out


def look(lab: Lab) -> str:
    """When the watchdog last noted what it saw of 69/0."""
    return lab.on(69, "stat -c %y /run/fleetctl/watchdog/watch/qwen38-tp2-0 2>/dev/null || true")


def test_one_that_drafts_for_nothing_is_restarted_once_it_has_answered(watched: Lab) -> None:
    before = container(watched, 0)
    watched.run("lab", "fault", "engine", "69/0", "mtp0")
    address = one(watched, 0)["address"]
    short = LONG.replace("20000", "150")
    ask = f"curl -s -m 60 -o /dev/null -w '%{{http_code}}' -K - -H 'Content-Type: application/json' -d '{short}'"
    last = look(watched)
    assert watched.on(69, f"{KEY} | {ask} http://{address}/v1/chat/completions") == "200"
    watched.wait("a look of the watchdog", lambda: look(watched) not in ("", last), 60)
    # Drafts between the same two looks as accepted ones of before the fault do not count: these do.
    watched.on(69, f"{KEY} | {ask} http://{address}/v1/chat/completions || true")
    watched.wait("another container", lambda: container(watched, 0) not in ("", before), 60)
    watched.run("lab", "fault", "engine", "69/0", "clear")
    watched.wait_serving("69/0")
    assert "drafts was accepted (MTP)" in watched.on(69, "cat /var/lib/fleetctl/watch/audit.log")


def test_a_unit_that_was_edited_is_not_started_before_a_rollout_puts_it_right(watched: Lab) -> None:
    before = watched.on(69, f"cat /etc/systemd/system/{UNIT}")
    watched.on(69, f"sed -i s/RestartSec=15/RestartSec=99/ /etc/systemd/system/{UNIT} && systemctl daemon-reload")
    assert (one(watched, 1)["drift"], one(watched, 1)["drift_reason"]) == (True, "its unit file was changed by hand")
    assert (
        "69/1: its unit file was changed by hand: fleetctl rollout --resume puts it right" in watched.run("status").out
    )
    running = container(watched, 1)
    for words in (["restart", "69/1", "--yes"], ["restart", "69/1", "--now", "--yes"]):
        refused = watched.run(*words, code=1)
        assert "its unit file was changed by hand" in refused.err
        assert "fleetctl rollout" in refused.err
    assert container(watched, 1) == running
    watched.run("rollout", "--yes")
    assert watched.on(69, f"cat /etc/systemd/system/{UNIT}") == before
    assert "RestartSec=99" in watched.on(69, f"cat /var/lib/fleetctl/watch/saved/*/{UNIT}")
    assert one(watched, 1)["drift"] is False


def test_a_disabled_unit_and_a_drop_in_are_seen_and_put_right(watched: Lab) -> None:
    running = container(watched, 1)
    watched.on(69, f"systemctl disable --quiet {UNIT}")
    assert "it would not come back after a reboot" in one(watched, 1)["drift_reason"]
    watched.run("rollout", "--yes")
    assert one(watched, 1)["unit"]["enabled"] == "enabled"
    assert container(watched, 1) == running, "to enable it takes no restart"
    folder = f"/etc/systemd/system/{UNIT}.d"
    watched.on(69, f"mkdir {folder} && printf '[Service]\\nNice=5\\n' >{folder}/x.conf && systemctl daemon-reload")
    assert f"{folder}/x.conf" in one(watched, 1)["drift_reason"]
    watched.run("rollout", "--yes")
    assert watched.on(69, f"ls -d {folder} 2>/dev/null || true") == ""
    assert watched.status()["verdict"] == "ok"
