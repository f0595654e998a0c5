"""Every command of docs/runbook.md is executed: here, in its order, or where its situation is tested as a whole."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
import yaml

from tests.lab.conftest import ROOT, Lab, a_lab

RUNBOOK = (ROOT / "docs/runbook.md").read_text()
# As the runbook has it, then what stands for its words here, and the exit code.
HERE = [
    ("status", "status", 0),
    ("restart 67/2", "restart 67/2 --yes", 0),
    ("route X", "route X", 0),
    ("logs 67/2 -n 200", "logs 67/2 -n 200", 0),
    ("logs balancer --error", "logs balancer --error", 0),
    ('stop 67/2 --reason "bad NPU"', 'stop 67/2 --reason "bad NPU" --yes', 0),
    ("start 67/2", "start 67/2 --yes", 0),
    ("drain 67/2", "drain 67/2 --yes", 0),
    ("undrain 67/2", "undrain 67/2 --yes", 0),
    ("logs 67/2", "logs 67/2", 0),
    ("plan rollout --mtp 3", "plan rollout --mtp 3", 0),
    ("rollout --mtp 3", "rollout --mtp 3 --yes", 0),
    ("rollback", "rollback --yes", 0),
    ("rollout --forward", "rollout --forward --mtp 5 --yes", 0),
    ("rollback 3", "rollback 1 --yes", 0),
    ("rollout --resume", "rollout --resume --yes", 0),
    ("rollout", "rollout --forward --yes", 0),
    ("balancer reload", "balancer reload --yes", 0),
    ("balancer diff", "balancer diff", 0),
    ("verify", "verify", 0),
    ("history", "history", 0),
    ("lock status", "lock status", 0),
    ("lock break", "lock break --yes", 0),
    ("trust ID", "trust 67 --fingerprint {fingerprint}", 0),
    ("check ID", "check 67", 0),
    ("remove-machine 67", "remove-machine 67 --yes", 0),
    ("add-machine ID", "add-machine 67 --yes", 0),
    ("key rotate", "key rotate --yes", 0),
    ("status", "status", 0),
]
ELSEWHERE = {
    "rollout --adopt": "test_adopt.py",
    "rollout --resume --machines 68,67,66": "test_move.py",
    "bench ab": "test_bench_ab.py",
    "bench ab --restore": "test_bench_ab.py",
}


def commands() -> list[str]:
    spans = re.findall(r"`fleetctl ([^`]+)`", RUNBOOK) + re.findall(r"^    fleetctl (.+)$", RUNBOOK, flags=re.M)
    return list(dict.fromkeys(spans))


def test_every_command_of_the_runbook_is_executed_somewhere() -> None:
    assert set(commands()) == {said for said, _, _ in HERE} | set(ELSEWHERE)
    for words, file in ELSEWHERE.items():
        verb = shlex.split(words)[0]
        assert f'"{verb}"' in (ROOT / "tests/lab" / file).read_text(), f"{file} does not run {verb}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for lab in a_lab(tmp_path_factory, "runbook", "10.255.227", [69, 67]):
        lab.run("rollout", "--yes")
        yield lab


@pytest.mark.matrix
def test_the_commands_of_the_runbook_do_what_they_say(served: Lab) -> None:
    lab = served
    shown = lab.on(67, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    for said, words, code in HERE:
        if said == "key rotate":
            new = "sk-after-0123456789"
            document = yaml.safe_load(lab.inventory.read_text())
            assert "env" in str(document["secrets"]["api_key"])
            lab.environment["FLEET_API_KEY"] = new
        done = lab.run(*shlex.split(words.format(fingerprint=shown)), code=None)
        assert done.code == code, f"fleetctl {said}:\n{done.out}{done.err}"
    assert set(lab.states().values()) == {"serving"}
    assert lab.status()["verdict"] == "ok"


@pytest.mark.matrix
def test_a_stopped_watchdog_timer_is_started_again_by_a_rollout(served: Lab) -> None:
    timer = f"fleetctl-watchdog-{served.fleet}.timer"
    assert "systemctl stop fleetctl-watchdog-<fleet>.timer" in RUNBOOK
    served.on(67, f"systemctl stop {timer}")
    served.run("rollout", "--yes")
    assert served.on(67, f"systemctl is-active {timer}").strip() == "active"
