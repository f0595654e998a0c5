"""fleetctl is killed while the remote process of each step is alive; the same command, run again, finishes the job."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
import yaml

from fleetctl.plan import playbook
from fleetctl.plan.steps import STEPS
from tests.lab import registry

from .conftest import ROOT, Lab, a_lab, kill

IMAGE = "quay.io/ascend/vllm-ascend:qwen3.8-a2"
# Which command comes to each step of the playbooks: on machines that have nothing yet, then on a fleet that serves.
RUNS = {
    "pull": "rollout --image {pulled}",
    "manifest": "rollout --image {pulled}",
    "release": "add-machine 69",
    "key": "add-machine 69",
    "clean": "add-machine 69",
    "units": "add-machine 69",
    "start": "add-machine 69",
    "gate": "add-machine 69",
    "balancer": "add-machine 69",
    "join": "add-machine 69",
    "verify": "add-machine 69",
    "make-room": "add-machine 67 -i {first}",
    "image": "add-machine 67",
    "model": "add-machine 67",
    "roll": "rollout --mtp 5",
    "record": "rollout --mtp 5",
    "tidy": "rollout --mtp 5",
}
LEAVING = {
    "old-key": "key rotate",
    "orphans": "rollout -i {one}",
    "drain": "remove-machine 67 --purge",
    "leave": "remove-machine 67 --purge",
    "dismiss": "remove-machine 67 --purge",
    "purge": "remove-machine 67 --purge",
    "forget": "remove-machine 67 --purge",
}
MACHINES = (69, 67)
# A dozen operations come before these: they go at their usual speed until three are left.
LATE, AHEAD = {"roll", "join", "verify", "record", "orphans"}, 3
# A step's script waits for the machine's step lock; a slow flock keeps it alive long enough to be seen.
# A check of the balancer takes no lock; it asks with curl.
SLOW_FLOCK = '#!/bin/sh\nif [ -e /run/slow-steps ]; then sleep 2; fi\nexec /usr/bin/flock.real "$@"\n'
SLOW_CURL = '#!/bin/sh\nif [ -e /run/slow-curl ]; then sleep 2; fi\nexec /usr/bin/curl.real "$@"\n'
# Scripts of fleetctl but for the heartbeat of its lock; the brackets keep the question from finding itself.
ALIVE = (
    "n=0; for f in $(grep -lza 'umask 02[2]' /proc/[0-9]*/cmdline 2>/dev/null); do "
    "grep -qza 'fleet-loc[k]' $f || n=$((n + 1)); done; echo $n"
)
# What gives a step something to do, by machine: two images that fleetctl brought and nobody needs; a change of the key
# that was cut short just before its end.
PREPARE = {
    "tidy": (
        67,
        "d=/var/lib/fleetctl/kills/images; printf 'sha256:%064d old\\n' 1 2 >$d.new; cat $d >>$d.new; mv $d.new $d",
    ),
    "old-key": (69, "umask 077; echo sk-before-0123456789 >/etc/fleetctl/kills/api-key.old"),
}


@pytest.fixture(scope="module")
def slow_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines with two instances each."""
    for lab in a_lab(tmp_path_factory, "kills", "10.255.238", [69, 67], instances={"per_machine": 2}):
        for machine in MACHINES:
            for name, text in (("flock", SLOW_FLOCK), ("curl", SLOW_CURL)):
                path = f"/usr/bin/{name}"
                lab.on(machine, f"mv {path} {path}.real; cat >{path} <<'E'\n{text}E\nchmod 755 {path}")
        yield lab


@pytest.fixture(scope="module")
def words(slow_pair: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands in braces in RUNS: an image of a registry, and the inventory with one change."""
    pulled = registry.serve(slow_pair, 69, IMAGE, "vllm-ascend", "pulled", tmp_path_factory.mktemp("registry"))
    document = yaml.safe_load(slow_pair.inventory.read_text())
    found = {"pulled": pulled}
    next(machine for machine in document["machines"] if machine["id"] == 67)["clean"]["first"] = True
    found["first"] = _written(slow_pair, "first", document)
    document["instances"]["per_machine"] = 1
    found["one"] = _written(slow_pair, "one", document)
    return found


def _written(lab: Lab, name: str, document: object) -> str:
    path = lab.inventory.with_name(f"{name}.yaml")
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return str(path)


def test_every_step_of_every_playbook_is_killed_somewhere_below() -> None:
    steps = {
        s
        for file in (ROOT / "playbooks").glob("*.yaml")
        for stage in playbook.load(file.stem, set(STEPS)).stages
        for s in stage.steps
        if isinstance(s, str)
    }
    assert steps == set(STEPS)
    assert steps - {*RUNS, *LEAVING} == set()


def slow(lab: Lab, yes: bool) -> None:
    for machine in MACHINES:
        lab.on(machine, f"{'touch' if yes else 'rm -f'} /run/slow-steps")


def reaches(lab: Lab, process: subprocess.Popen[str], step: str, seconds: float = 120) -> str | None:
    """Read stderr until the step is said to be under way; else what the command said instead.

    The plan comes first, a line for each operation: of late steps only the last few operations before are slow.
    """
    lines: list[str] = []
    planned: list[str] = []
    found = threading.Event()

    def read() -> None:
        begun, due = 0, True
        for line in process.stderr or ():
            lines.append(line)
            if operation := re.match(r"\s+\S+\s+([a-z-]+)\s+\S", line):
                planned.append(operation[1])
            elif line.startswith("["):
                begun += 1
                if f"] {step}: " in line:
                    found.set()
                    return
            if due and step in planned and begun >= planned.index(step) - AHEAD:
                slow(lab, True)
                due = False

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    deadline = time.monotonic() + seconds
    while reader.is_alive() and time.monotonic() < deadline:
        found.wait(0.05)
    return None if found.is_set() else "".join(lines)


def killed_in(lab: Lab, step: str, command: str) -> None:
    slow(lab, step not in LATE)
    if step in PREPARE:
        lab.on(*PREPARE[step])
    process = lab.start(*command.split(), "--yes")
    if (said := reaches(lab, process, step)) is not None:
        pytest.fail(f"the command never came to {step}:\n{said}")
    lab.wait("the step's remote process is alive", lambda: any(int(lab.on(m, ALIVE)) for m in MACHINES), 10)
    kill(process)


@pytest.mark.parametrize("step", [*RUNS])
def test_killed_in_a_step_and_finished_by_the_same_command(slow_pair: Lab, words: dict[str, str], step: str) -> None:
    lab, command = slow_pair, RUNS[step].format(**words)
    if step == "verify":
        lab.on(69, "touch /run/slow-curl")
    killed_in(lab, step, command)
    lab.on(69, "rm -f /run/slow-curl")
    if step == "manifest":
        # It was pulled. What follows rolls out the fleet's own image.
        assert lab.on(69, f"docker images -q {words['pulled']}") != ""
        registry.stop(lab, 69)


@pytest.mark.parametrize("command", ["add-machine 69", "add-machine 67", "rollout --mtp 5"])
def test_in_the_end_the_fleet_is_whole(slow_pair: Lab, command: str) -> None:
    lab = slow_pair
    slow(lab, False)
    lab.run(*command.split(), "--yes")
    assert "nothing to do" in lab.run(*command.split(), "--yes").out


def test_after_all_kills_everything_serves_and_nothing_is_left_behind(slow_pair: Lab) -> None:
    lab = slow_pair
    document = lab.status()
    assert document["verdict"] == "ok"
    assert document["balancer"]["up"] == 4
    assert {one["mtp"] for m in document["machines"] for one in m["instances"]} == {5}
    for machine in MACHINES:
        assert "fleetctl-transfer" not in lab.on(machine, "cat /root/.ssh/authorized_keys 2>/dev/null || true")
        assert lab.on(machine, "ls /run/fleetctl/transfer 2>/dev/null || true").strip() == ""
        assert lab.on(machine, "find /etc/fleetctl /etc/systemd/system /var/lib/fleetctl -name '*fleetctl-new*'") == ""


@pytest.mark.parametrize("step", [*LEAVING])
def test_killed_while_instances_leave(slow_pair: Lab, words: dict[str, str], step: str) -> None:
    killed_in(slow_pair, step, LEAVING[step].format(**words))


def test_in_the_end_the_machine_has_left(slow_pair: Lab) -> None:
    lab = slow_pair
    slow(lab, False)
    lab.run(*LEAVING["forget"].split(), "--yes")
    assert "nothing to do" in lab.run(*LEAVING["forget"].split(), "--yes").out
    states = lab.states()
    assert {id for id, state in states.items() if state == "serving"} >= {"69/0"}
    assert {state for id, state in states.items() if id.startswith("67/")} == {"absent"}
    assert lab.on(67, f"docker images -q {IMAGE}; docker ps -aq; ls /etc/fleetctl/kills 2>/dev/null || true") == ""
