"""Copies under fire: every fault strikes while between 5 and 95 % have arrived, and every one ends in identical bytes.

The source's link is shaped so that a copy takes twenty seconds and more. Only the model travels here.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.conftest import Lab, a_lab, kill

MODEL = "/data/models/Qwen3.8-27B-W8A8"
STORE = "/data/models/.Qwen3.8-27B-W8A8.fleetctl"
RATE = "90mbit"
UNIT = "fleetctl-copies-model.service"
ONLY_COPIES = Path(__file__).parents[2] / "benchmarks/distribution/copies.py"


class Copies(Lab):
    """A lab whose rollout brings the model over and does nothing else; all the rest is the program's own."""

    def command(self, *words: str, inventory: Path | None = None) -> list[str]:
        if words[0] != "rollout":
            return super().command(*words, inventory=inventory)
        return [sys.executable, str(ONLY_COPIES), "model", *words]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three machines."""
    for lab in a_lab(tmp_path_factory, "copies", "10.255.243", [69, 68, 67]):
        yield Copies(lab.fleet, lab.folder, lab.environment)


@pytest.fixture
def fresh(copies: Lab) -> Iterator[Lab]:
    """Nothing of the model on 68 and 67, and a slow link."""
    copies.run("lab", "fault", "slow", "69", RATE)
    for machine in (68, 67):
        copies.on(machine, f"systemctl stop {UNIT} 2>/dev/null; systemctl reset-failed {UNIT} 2>/dev/null; true")
        copies.on(machine, f"rm -rf {MODEL} {STORE} /var/lib/fleetctl/copies/manifest")
    yield copies
    for machine in (69, 68, 67):
        copies.on(machine, "tc qdisc del dev eth0 root 2>/dev/null || true")


def digests(lab: Lab, machine: int, follow: str = "") -> str:
    return lab.on(machine, f"cd {MODEL} && find {follow} . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum")


def identical(lab: Lab, *machines: int) -> None:
    """The same bytes under the same names, and nothing of the transfer left."""
    wanted = digests(lab, 69, "-L")
    for machine in machines:
        assert digests(lab, machine) == wanted
        assert lab.on(machine, f"ls {STORE}/partial 2>/dev/null || true") == ""
        assert lab.on(machine, "ls /run/fleetctl/transfer 2>/dev/null || true") == "", "a key outlived its transfer"
    for machine in (69, 68, 67):
        assert "fleetctl-transfer:" not in lab.on(machine, "cat /root/.ssh/authorized_keys")


def arrived(lab: Lab, machine: int = 67) -> float:
    """The share of the model that is in the side folder."""
    have = lab.on(machine, f"du -sb {STORE}/partial 2>/dev/null | cut -f1 || true").strip()
    return int(have or 0) / int(lab.on(69, f"du -sbL {MODEL} | cut -f1"))


def wait_arrived(lab: Lab, share: float = 0.3, machine: int = 67) -> float:
    deadline = time.monotonic() + 200
    while (seen := arrived(lab, machine)) < share:
        assert time.monotonic() < deadline, f"{seen:.0%} after 200 s"
        time.sleep(0.2)
    return seen


def copying(lab: Lab, *words: str) -> subprocess.Popen[str]:
    return lab.start("rollout", "--machines", "67", "--yes", *words)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=400)
    assert process.returncode == code, out + err
    return out + err


def again(lab: Lab) -> str:
    done = lab.run("rollout", "--machines", "67", "--yes")
    return done.out + done.err


@pytest.mark.matrix
def test_a_copy_is_planned_told_and_verified(fresh: Lab) -> None:
    words = ended(copying(fresh))
    identical(fresh, 67)
    assert "copy Qwen3.8-27B-W8A8 from 69 (272." in words
    assert " % of 272." in words, "no progress was told"
    assert "/s, " in words
    assert " left" in words
    assert "nothing to do" in again(fresh)


@pytest.mark.matrix
def test_a_machine_that_has_it_serves_the_next_one(fresh: Lab) -> None:
    fresh.run("lab", "fault", "slow", "69", "off")
    done = fresh.run("rollout", "--yes")
    plan = done.err
    assert "from 69 (272.0 MiB" in plan
    identical(fresh, 68, 67)
    fresh.on(67, f"rm -rf {MODEL} {STORE}")
    fresh.on(69, f"chmod 000 {MODEL}/merges.txt")
    fresh.on(69, f"chmod 644 {MODEL}/merges.txt")
    fresh.run("rollout", "--machines", "68,67", "--yes")
    identical(fresh, 68, 67)


def test_a_killed_command_leaves_the_copy_running_and_the_next_one_follows_it(fresh: Lab, dice: random.Random) -> None:
    process = copying(fresh)
    assert 0.05 < wait_arrived(fresh, dice.uniform(0.06, 0.35)) < 0.95
    kill(process)
    seen = wait_arrived(fresh, 0.4)
    assert seen < 0.95
    status = fresh.run("status", "-o", "json", code=None).json
    job = next(m for m in status["machines"] if m["id"] == 67)["jobs"]
    assert job["model"]["state"] == "running"
    assert 0.05 < job["model"]["done"] / job["model"]["total"] < 0.95
    # Any package or person may do this meanwhile: systemd then reads what it wrote down of the job.
    fresh.on(67, "systemctl daemon-reload")
    words = again(fresh)
    assert "follow the copy" in words
    identical(fresh, 67)
    assert fresh.on(67, f"cat /run/fleetctl/jobs/{UNIT.removesuffix('.service')}.result").split() == ["success", "0"]
    assert ";" not in fresh.on(67, "ls /run/fleetctl/jobs")


@pytest.mark.matrix
def test_ctrl_c_without_a_terminal_leaves_the_copy_running(fresh: Lab, dice: random.Random) -> None:
    process = copying(fresh)
    assert 0.05 < wait_arrived(fresh, dice.uniform(0.06, 0.6)) < 0.95
    process.send_signal(signal.SIGINT)
    words = ended(process, 130)
    assert "goes on" in words
    assert fresh.on(67, f"systemctl is-active {UNIT}").strip() == "active"
    again(fresh)
    identical(fresh, 67)


@pytest.mark.matrix
def test_two_commands_at_once_copy_once(fresh: Lab, dice: random.Random) -> None:
    starts = f"journalctl -u {UNIT} --no-pager -o cat | grep -c Started || true"
    before = int(fresh.on(67, starts))
    first = copying(fresh)
    assert 0.05 < wait_arrived(fresh, dice.uniform(0.06, 0.4)) < 0.95
    second = fresh.run("rollout", "--machines", "67", "--yes", code=None)
    assert second.code in (0, 3), second.err
    ended(first)
    identical(fresh, 67)
    assert int(fresh.on(67, starts)) - before <= 1


@pytest.mark.matrix
def test_a_file_that_changes_at_the_source_is_named_and_the_next_run_brings_the_new_one(
    fresh: Lab, dice: random.Random
) -> None:
    process = copying(fresh)
    assert 0.05 < wait_arrived(fresh, dice.uniform(0.06, 0.5)) < 0.8
    last = "model-00005-of-00005.safetensors"
    fresh.on(69, f"printf '\\1' | dd of={MODEL}/{last} bs=1 seek=$(($(stat -c %s {MODEL}/{last}) - 1)) conv=notrunc")
    words = ended(process, 1)
    assert last in words
    assert fresh.on(67, f"ls -d {MODEL} 2>/dev/null || true") == "", "half a model looks whole"
    again(fresh)
    identical(fresh, 67)


@pytest.mark.matrix
def test_a_full_disk_stops_the_copy_and_it_goes_on_when_there_is_room(fresh: Lab, dice: random.Random) -> None:
    process = copying(fresh)
    assert 0.05 < wait_arrived(fresh, dice.uniform(0.12, 0.6)) < 0.95
    fresh.run("lab", "fault", "disk-full", "67", "data")
    words = ended(process, 1)
    assert "No space left" in words
    assert fresh.on(67, f"systemctl list-units --all --no-legend {UNIT}") == "", "a failed unit is left behind"
    before = arrived(fresh)
    fresh.run("lab", "fault", "disk-free", "67")
    assert before > 0.1, "what had arrived is gone"
    again(fresh)
    identical(fresh, 67)


@pytest.mark.matrix
def test_the_source_reboots(fresh: Lab, dice: random.Random) -> None:
    process = copying(fresh)
    assert 0.05 < wait_arrived(fresh, dice.uniform(0.06, 0.7)) < 0.95
    fresh.run("lab", "fault", "reboot", "69")
    ended(process)
    identical(fresh, 67)


def test_the_receiver_reboots(fresh: Lab, dice: random.Random) -> None:
    process = copying(fresh)
    assert 0.05 < wait_arrived(fresh, dice.uniform(0.06, 0.7)) < 0.95
    fresh.run("lab", "fault", "reboot", "67")
    words = ended(process)
    assert "was restarted" in words
    identical(fresh, 67)


@pytest.mark.matrix
def test_the_connection_is_cut_twenty_times(fresh: Lab) -> None:
    process = copying(fresh)
    last, cuts = 0.0, 0
    while cuts < 20:
        share = wait_arrived(fresh, max(0.05, last + 0.01))
        assert share < 0.95
        cut = "for p in $(pgrep -f '^rsync --server'); do kill -9 $p $(ps -o ppid= -p $p); done"
        fresh.on(69, cut, check=False)
        last, cuts = share, cuts + 1
    ended(process)
    identical(fresh, 67)


@pytest.mark.matrix
def test_a_spoilt_byte_on_the_receiver_is_put_right(fresh: Lab, dice: random.Random) -> None:
    process = copying(fresh)
    assert 0.05 < wait_arrived(fresh, dice.uniform(0.3, 0.6)) < 0.95
    file = f"{STORE}/partial/model-00001-of-00005.safetensors"
    fresh.on(67, f"printf '\\377\\376' | dd of={file} bs=1 seek=1000000 conv=notrunc")
    ended(process)
    identical(fresh, 67)


@pytest.mark.matrix
def test_files_of_any_name_and_linked_shards(fresh: Lab) -> None:
    blobs = "/data/blobs"
    odd = f"{MODEL}/odd"
    fresh.on(
        69,
        f"mkdir -p {blobs} {odd} && head -c 5000000 /dev/urandom >{blobs}/0123abcd && ln -sf {blobs}/0123abcd {odd}/linked "
        f"&& ln -sf ../../../blobs/0123abcd {odd}/relative && cd {odd} "
        '&& for n in "a b" "it\'s \\"q\\"" "[1]*?" 通义千问 "\\$(reboot)" "back\\\\slash" "$(printf "new\\nline")"; '
        'do head -c 300000 /dev/urandom >"$n"; done',
    )
    try:
        process = copying(fresh)
        assert 0.05 < wait_arrived(fresh, 0.1) < 0.95
        ended(process)
        identical(fresh, 67)
    finally:
        fresh.on(69, f"rm -rf {odd} {blobs}")


@pytest.mark.matrix
def test_a_slow_source_is_replaced_by_one_that_has_it(fresh: Lab) -> None:
    fresh.run("lab", "fault", "slow", "69", "off")
    fresh.run("rollout", "--machines", "68", "--yes")
    fresh.run("lab", "fault", "slow", "69", "20mbit")
    process = fresh.start("rollout", "--machines", "68,67", "--yes")
    wait_arrived(fresh, 0.06)
    fresh.run("lab", "fault", "freeze", "69")
    try:
        words = ""
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        fresh.run("lab", "fault", "thaw", "69")
    words = ended(process)
    assert "another source takes over" in words
    again(fresh)  # 69 was frozen when its line should have gone
    identical(fresh, 67)


@pytest.mark.matrix
def test_the_model_on_the_receiver_is_used_as_it_stands_after_a_move(fresh: Lab, tmp_path: Path) -> None:
    """Files that are there already, from wherever, are linked and not fetched."""
    fresh.run("lab", "fault", "slow", "69", "off")
    again(fresh)
    fresh.on(67, f"cp -rL {MODEL} /data/mine && rm -rf {MODEL} {STORE} && mv /data/mine {MODEL}")
    before = int(fresh.on(67, "cat /sys/class/net/eth0/statistics/rx_bytes"))
    again(fresh)
    identical(fresh, 67)
    assert int(fresh.on(67, "cat /sys/class/net/eth0/statistics/rx_bytes")) - before < 20 << 20
