"""The script that takes, keeps and frees the fleet's lock, run by a real shell with a clock of our own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetctl.commands import fleet_lock, paths, probe
from fleetctl.commands.script import Script
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe import lock
from fleetctl.observe.lock import LockState
from fleetctl.observe.observe import sections

LINES = {
    "since": "2026-08-29T03:00:00Z",
    "owner": "ops",
    "host": "laptop",
    "pid": "7",
    "kernel": "k",
    "started": "9",
    "command": "rollout --mtp 5",
}
STALE = fleet_lock.STALE


@dataclass
class Machine:
    """A folder that plays /run/fleetctl, and an uptime in seconds."""

    folder: Path
    fleet: Fleet
    uptime: float = 1000.0

    def run(self, script: Script) -> LockState:
        return lock.parse(self.shell(script.text))

    def shell(self, text: str) -> str:
        (self.folder / "uptime").write_text(f"{self.uptime:.2f} 5000.00\n")
        text = text.replace("/proc/uptime", str(self.folder / "uptime"))
        text = text.replace("/run/fleetctl", str(self.folder / "run"))
        return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout

    def take(self, token: str, over: str = "", **lines: str) -> LockState:
        return self.run(fleet_lock.take(self.fleet, token, {**LINES, **lines}, over))

    def renew(self, token: str) -> LockState:
        return self.run(fleet_lock.renew(self.fleet, token))

    def release(self, token: str, **lines: str) -> LockState:
        return self.run(fleet_lock.release(self.fleet, token, lines))

    def show(self) -> LockState:
        return self.run(fleet_lock.show(self.fleet))

    @property
    def holder(self) -> str | None:
        found = self.show().holder
        return found.token if found else None

    @property
    def file(self) -> Path:
        return self.folder / "run" / paths.fleet_lock(self.fleet).name


@pytest.fixture
def machine(tmp_path: Path, fleet: Fleet) -> Machine:
    return Machine(tmp_path, fleet)


def test_a_free_lock_is_taken_and_says_by_whom(machine: Machine) -> None:
    assert machine.take("a").answer == "taken"
    machine.uptime += 12.5
    found = machine.show().holder
    assert found is not None
    assert (found.token, found.who, found.command) == ("a", "ops@laptop", "rollout --mtp 5")
    assert (found.process.pid, found.process.kernel, found.process.started) == (7, "k", "9")
    assert (found.held, found.heartbeat) == (12.5, 12.5)
    assert found.since == LINES["since"]


# seconds since the last heartbeat, whose death the taker knows of, what becomes of it
TAKES = [
    (0.0, "", "held"),
    (STALE, "", "held"),
    (STALE + 0.01, "", "taken"),
    (3600.0, "", "taken"),
    (0.0, "a", "taken"),
    (0.0, "somebody earlier", "held"),
    (-1.0, "", "taken"),  # a heartbeat of the future: before a reboot that left /run as it was
]


@pytest.mark.parametrize(("silence", "over", "answer"), TAKES)
def test_a_held_lock_is_taken_over_only_without_heartbeat_or_with_a_dead_owner(
    machine: Machine, silence: float, over: str, answer: str
) -> None:
    machine.take("a")
    machine.uptime += silence
    state = machine.take("b", over)
    assert state.answer == answer
    assert state.holder is not None
    assert state.holder.token == "a"  # whom it was taken from, or who holds it
    assert machine.holder == ("b" if answer == "taken" else "a")


def test_heartbeats_keep_it(machine: Machine) -> None:
    machine.take("a")
    for _ in range(5):
        machine.uptime += STALE - 1
        assert machine.renew("a").answer == "renewed"
    assert machine.take("b").answer == "held"
    found = machine.show().holder
    assert found is not None
    assert (found.held, found.heartbeat) == (5 * (STALE - 1), 0.0)
    assert found.command == "rollout --mtp 5"


def test_only_the_owner_renews_and_lets_go(machine: Machine) -> None:
    machine.take("a")
    assert machine.renew("b").answer == "lost"
    assert machine.release("b").answer == "lost"
    assert machine.holder == "a"


def test_what_was_let_go_says_how_long_ago_and_is_free(machine: Machine) -> None:
    machine.take("a")
    assert machine.release("a").answer == "released"
    machine.uptime += 3
    assert machine.show().freed == 3
    state = machine.take("b")
    assert (state.answer, state.holder, state.freed) == ("taken", None, 3)


def test_a_renewal_after_letting_go_does_not_take_it_again(machine: Machine) -> None:
    machine.take("a")
    machine.release("a")
    state = machine.renew("a")
    assert state.answer == "lost"
    assert not state.unknown
    assert machine.holder is None


def test_the_owner_of_a_broken_lock_learns_who_broke_it(machine: Machine) -> None:
    machine.take("a")
    machine.release("a", broken="ops@desk")
    state = machine.renew("a")
    assert (state.answer, state.broken) == ("lost", "ops@desk")


def test_the_owner_of_a_lock_taken_over_learns_by_whom(machine: Machine) -> None:
    machine.take("a")
    machine.uptime += STALE + 1
    machine.take("b", owner="night")
    state = machine.renew("a")
    assert state.answer == "lost"
    assert state.holder is not None
    assert state.holder.who == "night@laptop"


def test_after_a_reboot_nobody_holds_it(machine: Machine) -> None:
    machine.take("a")
    machine.file.unlink()
    machine.uptime = 20.0
    state = machine.renew("a")
    assert (state.answer, state.unknown) == ("lost", True)
    assert machine.take("b").answer == "taken"


def test_a_take_whose_answer_was_lost_can_be_repeated(machine: Machine) -> None:
    machine.take("a")
    assert machine.take("a").answer == "taken"


def test_of_many_at_once_one_gets_it(machine: Machine) -> None:
    (machine.folder / "uptime").write_text("1000.00 1.00\n")

    def text(token: str) -> str:
        script = fleet_lock.take(machine.fleet, token, LINES).text.replace("/proc/uptime", f"{machine.folder}/uptime")
        return script.replace("/run/fleetctl", f"{machine.folder}/run")

    running = [
        subprocess.Popen(["sh", "-c", text(f"t{i}")], stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
        for i in range(8)
    ]
    answers = [lock.parse(process.communicate()[0]).answer for process in running]
    assert sorted(answers) == ["held"] * 7 + ["taken"]
    assert machine.holder == f"t{answers.index('taken')}"


def test_looking_leaves_no_trace(machine: Machine) -> None:
    assert machine.show().holder is None
    assert not (machine.folder / "run").exists()


def test_words_of_people_stay_one_line_each(machine: Machine) -> None:
    command = "rollout --set engine.x='a\ntoken=stolen\n' $(id) `id` \"张三\""
    machine.take("a", owner="张三", command=command)
    found = machine.show().holder
    assert found is not None
    assert (found.token, found.owner) == ("a", "张三")
    assert found.command == command.replace("\n", " ")


def test_a_file_that_makes_no_sense_is_a_free_lock(machine: Machine) -> None:
    machine.file.parent.mkdir()
    machine.file.write_text("rubbish\n=\n\n")
    assert machine.take("a").answer == "taken"


def test_the_probe_reads_what_show_prints(machine: Machine) -> None:
    line = fleet_lock.probe(machine.fleet)
    assert line in probe.state(machine.fleet, machine.fleet.machines[67])
    assert line in probe.status(machine.fleet, machine.fleet.machines[69])
    machine.take("a")
    machine.uptime += 4
    machine.shell(f"cd {machine.folder}; {line}")
    text = f"{probe.MARK} fleet-lock\n{(machine.folder / 'fleet-lock').read_text()}\n"
    assert lock.parse(sections(text)["fleet-lock"]).holder == machine.show().holder
