"""The lock as a command uses it, against the real script: only the way to the machine is replaced by a local shell."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleetctl.commands import fleet_lock
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, HostKeyError, LockedError, UnreachableError, UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe import lock as locks
from fleetctl.observe.facts import Facts
from fleetctl.observe.lock import LockState
from fleetctl.plan import lock, owner
from fleetctl.plan.lock import FleetLock
from fleetctl.remote.connection import Result

FAR = {
    "owner": "night",
    "host": "desk",
    "pid": "7",
    "kernel": "another boot",
    "started": "1",
    "command": "restart 67/2",
}


@dataclass
class Machine:
    """One machine of a fleet; `down` is what every call to it raises."""

    folder: Path
    down: Exception | None = None
    calls: list[str] = field(default_factory=list)

    def open(self) -> None:
        if self.down is not None:
            raise self.down

    def run(self, script: str, *, timeout: float, stdin: bytes = b"") -> Result:
        self.open()
        self.calls.append(script.split("set -- ", 1)[1].split(maxsplit=1)[0])
        text = script.replace("/proc/uptime", str(self.folder / "uptime")).replace("/run/fleetctl", str(self.folder))
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
        return Result(done.returncode, done.stdout, done.stderr, 0.0)

    def ask(self, script: Script) -> LockState:
        return locks.parse(self.run(script.text, timeout=5).stdout)


@dataclass
class World:
    """The fleet's machines, and what was said."""

    fleet: Fleet
    machines: dict[int, Machine]
    folder: Path
    said: list[str] = field(default_factory=list)

    def set_uptime(self, seconds: float) -> None:
        (self.folder / "new").write_text(f"{seconds:.2f} 1.00\n")
        (self.folder / "new").rename(self.folder / "uptime")

    def lock(self, command: str = "rollout", **options: float | bool) -> FleetLock:
        say = lambda target, words: self.said.append(f"[{target}] {words}")
        return FleetLock(self.fleet, self.machines, command, say, **options)  # type: ignore[arg-type]

    @property
    def holder(self) -> str | None:
        found = self.machines[69].ask(fleet_lock.show(self.fleet)).holder
        return found.command if found else None

    def taken_far_away(self, token: str = "far") -> None:
        self.machines[69].ask(fleet_lock.take(self.fleet, token, FAR, over="far"))


@pytest.fixture
def world(tmp_path: Path, fleet: Fleet) -> Iterator[World]:
    machines = {}
    for machine in fleet.machines:
        (tmp_path / str(machine)).mkdir()
        (tmp_path / str(machine) / "uptime").symlink_to(tmp_path / "uptime")
        machines[machine] = Machine(tmp_path / str(machine))
    made = World(fleet, machines, tmp_path)
    made.set_uptime(1000)
    yield made


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    monkeypatch.setattr(lock, "RETRY", 0.02)


def test_held_in_the_block_and_free_after_it(world: World) -> None:
    with world.lock("rollout --mtp 5") as held:
        held.wait()
        assert world.holder == "rollout --mtp 5"
        held.check()
    assert world.holder is None
    assert world.said == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_free_whatever_ends_the_block(world: World, error: type[BaseException]) -> None:
    with pytest.raises(error), world.lock() as held:
        held.wait()
        raise error
    assert world.holder is None


def test_a_command_that_ends_before_it_looks_at_machines_asks_none(world: World) -> None:
    with pytest.raises(UsageError), world.lock():
        raise UsageError("no key")
    assert world.machines[69].calls == []


def test_a_second_command_is_refused_at_once_and_told_everything(world: World) -> None:
    with world.lock("rollout --mtp 5") as first, world.lock("drain 67/2") as second:
        first.wait()
        with pytest.raises(LockedError) as caught:
            second.wait()
    error = caught.value
    assert error.exit_code == 3
    assert "`fleetctl rollout --mtp 5`" in error.cause
    assert str(owner.this().pid) in error.cause
    assert error.state == "nothing was changed"
    assert error.next_command is not None
    assert "fleetctl drain 67/2 --wait-lock" in error.next_command
    assert world.holder is None  # the first one's end was not disturbed by the second's


def test_a_refused_command_lets_nothing_go(world: World) -> None:
    world.taken_far_away()
    with pytest.raises(LockedError), world.lock() as second:
        second.wait()
    assert world.holder == "restart 67/2"


def test_with_patience_it_waits_says_for_whom_and_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RETRY", 0.02)
    world.taken_far_away()
    begun = time.monotonic()
    with world.lock(patience=60) as second:
        second.start()
        until(lambda: world.said)
        assert "night@desk" in world.said[0]
        world.machines[69].ask(fleet_lock.release(world.fleet, "far"))
        second.wait()
        assert world.holder == "rollout"
        assert second.contested(begun)  # what was seen while the other one held it has to be looked at again


def test_patience_has_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RETRY", 0.02)
    world.taken_far_away()
    with world.lock(patience=0.1) as second, pytest.raises(LockedError):
        second.wait()


def test_ctrl_c_while_waiting_ends_at_once(world: World) -> None:
    world.taken_far_away()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), world.lock(patience=60) as second:
        second.start()
        until(lambda: world.said)
        raise KeyboardInterrupt
    assert time.monotonic() - started < 10
    assert world.holder == "restart 67/2"


def test_a_lock_that_stood_free_all_the_time_means_that_nothing_was_seen_too_early(world: World) -> None:
    begun = time.monotonic()
    with world.lock() as first:
        first.wait()
        assert not first.contested(begun)
    world.set_uptime(1100)
    with world.lock() as second:
        second.wait()
        assert not second.contested(begun)
        assert second.contested(begun - 101)  # it was let go 100 s before: somebody who looked earlier looks again


def test_taken_over_without_heartbeat_and_said(world: World) -> None:
    world.taken_far_away()
    world.set_uptime(1000 + fleet_lock.STALE + 1)
    with world.lock() as second:
        second.wait()
        assert world.holder == "rollout"
        assert second.taken_from is not None
        assert second.contested(time.monotonic())
    assert any("taken over from night@desk: `fleetctl restart 67/2`" in words for words in world.said)


def test_a_killed_command_of_this_very_machine_is_taken_over_at_once(world: World) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    own = owner.this()
    lines = {**FAR, "pid": str(dead.pid), "kernel": own.kernel, "started": "1"}
    world.machines[69].ask(fleet_lock.take(world.fleet, "dead", lines))
    with world.lock() as second:
        second.wait()
        assert world.holder == "rollout"


def test_heartbeats_are_sent(world: World, quick: None) -> None:
    with world.lock() as held:
        held.wait()
        until(lambda: world.machines[69].calls.count("renew") > 2)
        held.check()


def test_after_a_break_nothing_more_is_begun(world: World, quick: None) -> None:
    with world.lock("rollout") as held:
        held.wait()
        world.machines[69].ask(fleet_lock.release(world.fleet, held.token, {"broken": "ops@desk"}))
        assert held.lost.wait(10)
        with pytest.raises(LockedError, match="ops@desk broke it"):
            held.check()
    assert any("LOST" in words for words in world.said)


def test_a_lock_that_was_taken_over_is_not_let_go(world: World, quick: None) -> None:
    with world.lock() as held:
        held.wait()
        world.machines[69].ask(fleet_lock.take(world.fleet, "far", FAR, over=held.token))
        assert held.lost.wait(10)
        with pytest.raises(LockedError, match="night@desk"):
            held.check()
    assert world.holder == "restart 67/2"


def at(monkeypatch: pytest.MonkeyPatch, later: float) -> None:
    """Our own clock, `later` seconds from now."""
    now = lock.clock() + later
    monkeypatch.setattr(lock, "clock", lambda: now)


def test_undelivered_heartbeats_stop_the_command_before_anybody_may_take_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock.GIVE_UP < fleet_lock.STALE
    with world.lock() as held:
        held.wait()
        world.machines[69].down = UnreachableError("the connection was lost")
        at(monkeypatch, lock.GIVE_UP - 1)
        held.check()
        at(monkeypatch, 2)
        with pytest.raises(LockedError, match="no heartbeat has reached machine 69"):
            held.check()
    assert held.lost.is_set()


def test_a_laptop_that_slept_goes_on_when_nobody_took_the_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.lock() as held:
        held.wait()
        at(monkeypatch, 3600)
        held.check()
        assert not held.lost.is_set()


def test_a_laptop_that_slept_stops_when_somebody_did(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.lock() as held:
        held.wait()
        world.machines[69].ask(fleet_lock.take(world.fleet, "far", FAR, over=held.token))
        at(monkeypatch, 3600)
        with pytest.raises(LockedError, match="night@desk"):
            held.check()


def forget(world: World) -> None:
    """The balancer's machine is rebooted."""
    for file in world.machines[69].folder.glob("*.fleet-lock*"):
        file.unlink()


def test_a_quick_reboot_of_the_locks_machine_costs_nothing(world: World, quick: None) -> None:
    with world.lock() as held:
        held.wait()
        forget(world)
        until(lambda: world.holder == "rollout")
        held.check()


def test_after_a_long_reboot_it_is_not_simply_taken_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.lock() as held:
        held.wait()
        forget(world)
        at(monkeypatch, lock.GIVE_UP + 1)
        with pytest.raises(LockedError):
            held.check()


def test_an_unreachable_lock_is_an_unreachable_machine_with_the_way_out(world: World) -> None:
    world.machines[69].down = UnreachableError("no route", machine=69, next_command="ssh ops@69")
    with world.lock("restart 67/2") as held, pytest.raises(UnreachableError) as caught:
        held.wait()
    assert caught.value.next_command is not None
    assert "fleetctl restart 67/2 --balancer-lost" in caught.value.next_command


@pytest.mark.parametrize("command", ["remove-machine 67", "rollout --mtp 5", "drain 67/2", "key rotate", "rollback"])
def test_a_command_that_needs_the_balancer_is_not_sent_round_it(world: World, command: str) -> None:
    world.machines[69].down = UnreachableError("no route", machine=69, next_command="ssh ops@69")
    with world.lock(command) as held, pytest.raises(UnreachableError) as caught:
        held.wait()
    assert caught.value.next_command == "ssh ops@69; if that machine is dead: move the balancer first (docs/runbook.md)"


def test_with_the_balancer_lost_the_next_machine_in_joining_order_that_answers_has_it(world: World) -> None:
    world.machines[69].down = world.machines[68].down = UnreachableError("no route")
    with world.lock(balancer_lost=True) as held:
        held.wait()
        assert held.machine == 67
    assert any("MACHINE 69 IS TAKEN FOR DEAD" in words and "67" in words for words in world.said)


def test_a_balancer_that_answers_is_not_lost(world: World) -> None:
    with world.lock(balancer_lost=True) as held, pytest.raises(UsageError, match="answers"):
        held.wait()
    world.machines[69].down = HostKeyError("changed")
    with world.lock(balancer_lost=True) as held, pytest.raises(HostKeyError):
        held.wait()


def test_a_lock_taken_elsewhere_while_the_balancer_was_lost_counts(world: World) -> None:
    world.machines[68].ask(fleet_lock.take(world.fleet, "far", FAR))
    facts = {m: Facts(m, lock=one.ask(fleet_lock.show(world.fleet))) for m, one in world.machines.items()}
    with world.lock() as held:
        held.wait()
        with pytest.raises(LockedError) as caught:
            held.require_alone(facts)
        assert caught.value.machine == 68
        held.require_alone({67: facts[67], 66: Facts(66)})
    world.set_uptime(1000 + fleet_lock.STALE + 1)
    with world.lock() as held:
        held.wait()
        held.require_alone({68: Facts(68, lock=world.machines[68].ask(fleet_lock.show(world.fleet)))})


def test_a_lock_that_cannot_be_written_is_an_error_and_not_a_lock(world: World) -> None:
    world.machines[69].folder.joinpath("qwen38.fleet-lock.guard").mkdir()
    with world.lock() as held, pytest.raises(CommandError):
        held.wait()


def test_a_lock_that_cannot_be_let_go_is_a_note(world: World) -> None:
    with world.lock() as held:
        held.wait()
        world.machines[69].down = UnreachableError("the connection was lost")
    assert any("could not be let go (the connection was lost)" in words for words in world.said)


def test_threads_are_not_left_behind(world: World, quick: None) -> None:
    with world.lock() as held:
        held.wait()
    until(lambda: not any(thread.name == "fleetctl-lock" for thread in threading.enumerate()))
