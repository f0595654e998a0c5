"""fleetctl is killed while the remote process of each step is alive; the same command, run again, finishes the job."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from fleetctl.plan import playbook
from fleetctl.plan.steps import STEPS

from .conftest import Lab, kill

# Which command has every step of the playbooks to do, on machines that have nothing yet.
RUNS = {
    "manifest": "add-machine 69",
    "release": "add-machine 69",
    "key": "add-machine 69",
    "clean": "add-machine 69",
    "units": "add-machine 69",
    "start": "add-machine 69",
    "gate": "add-machine 69",
    "balancer": "add-machine 69",
    "join": "add-machine 69",
    "verify": "add-machine 69",
    "image": "add-machine 67",
    "model": "add-machine 67",
    "roll": "rollout --mtp 5",
    "record": "rollout --mtp 5",
    "tidy": "rollout --mtp 5",
}
# A step's script waits for the machine's step lock; a slow flock keeps it alive long enough to be seen.
SLOW_FLOCK = '#!/bin/sh\nif [ -e /run/slow-steps ]; then sleep 2; fi\nexec /usr/bin/flock.real "$@"\n'
# Scripts of fleetctl but for the heartbeat of its lock; the brackets keep the question from finding itself.
ALIVE = (
    "n=0; for f in $(grep -lza 'umask 02[2]' /proc/[0-9]*/cmdline 2>/dev/null); do "
    "grep -qza 'fleet-loc[k]' $f || n=$((n + 1)); done; echo $n"
)
# What gives a step something to do where a fresh lab has nothing: two images that fleetctl brought and nobody needs.
PREPARE = {
    "tidy": "d=/var/lib/fleetctl/pair/images; printf 'sha256:%064d old\\n' 1 2 >$d.new; cat $d >>$d.new; mv $d.new $d"
}


@pytest.fixture(scope="module")
def slow_pair(pair: Lab) -> Iterator[Lab]:
    for machine in (69, 67):
        pair.on(
            machine,
            "mv /usr/bin/flock /usr/bin/flock.real; cat >/usr/bin/flock <<'E'\n"
            + SLOW_FLOCK
            + "E\nchmod 755 /usr/bin/flock",
        )
        pair.on(machine, "touch /run/slow-steps")
    yield pair


def test_every_step_of_every_playbook_is_killed_somewhere_below() -> None:
    steps = {
        s
        for name in ("add-machine", "rollout")
        for stage in playbook.load(name, set(STEPS)).stages
        for s in stage.steps
        if isinstance(s, str)
    }
    # `make-room` is `clean` done earlier, with the same operations. `pull` needs a registry, and a lab has none: it is
    # a job like `image`, and what its failure leaves is tested in test_bad_input.py.
    # What takes machines out is run in test_removal.py.
    elsewhere = {"make-room", "pull", "orphans", "drain", "leave", "dismiss", "purge", "forget"}
    assert steps - elsewhere - set(RUNS) == set()
    assert set(STEPS) - elsewhere - set(RUNS) == set()


def reaches(process: subprocess.Popen[str], step: str, seconds: float = 120) -> str | None:
    """Read stderr until the step is said to be under way; else what the command said instead."""
    lines: list[str] = []
    found = threading.Event()

    def read() -> None:
        for line in process.stderr or ():
            lines.append(line)
            if line.startswith("[") and f"] {step}: " in line:
                found.set()
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    deadline = time.monotonic() + seconds
    while reader.is_alive() and time.monotonic() < deadline:
        found.wait(0.05)
    return None if found.is_set() else "".join(lines)


@pytest.mark.parametrize("step", [*RUNS])
def test_killed_in_a_step_and_finished_by_the_same_command(slow_pair: Lab, step: str) -> None:
    lab = slow_pair
    if step in PREPARE:
        lab.on(67, PREPARE[step])
    process = lab.start(*RUNS[step].split(), "--yes")
    if (said := reaches(process, step)) is not None:
        pytest.fail(f"the command never came to {step}:\n{said}")
    if step == "verify":
        # Quick and without the step lock: it is alive when it is said, and hardly longer.
        kill(process)
        return
    alive = lambda: sum(int(lab.on(m, ALIVE) or 0) for m in (69, 67))
    lab.wait("the step's remote process is alive", lambda: alive() > 0, 10)
    kill(process)


@pytest.mark.parametrize("command", ["add-machine 69", "add-machine 67", "rollout --mtp 5"])
def test_in_the_end_the_fleet_is_whole(slow_pair: Lab, command: str) -> None:
    lab = slow_pair
    for machine in (69, 67):
        lab.on(machine, "rm -f /run/slow-steps")
    lab.run(*command.split(), "--yes")
    assert "nothing to do" in lab.run(*command.split(), "--yes").out


def test_after_all_kills_everything_serves_and_nothing_is_left_behind(slow_pair: Lab) -> None:
    lab = slow_pair
    document = lab.status()
    assert document["verdict"] == "ok"
    assert document["balancer"]["up"] == 8
    assert {one["mtp"] for m in document["machines"] for one in m["instances"]} == {5}
    for machine in (69, 67):
        assert "fleetctl-transfer" not in lab.on(machine, "cat /root/.ssh/authorized_keys 2>/dev/null || true")
        assert lab.on(machine, "ls /run/fleetctl/transfer 2>/dev/null || true").strip() == ""
        assert lab.on(machine, "find /etc/fleetctl /etc/systemd/system /var/lib/fleetctl -name '*fleetctl-new*'") == ""
