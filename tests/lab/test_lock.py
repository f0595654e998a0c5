"""One command at a time changes a fleet: two terminals, and everything that can become of the one that holds the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Lab, a_lab, kill

FILE = "/run/fleetctl/locks.fleet-lock"
STEP_LOCK = "/run/fleetctl/locks.lock"
BEGUN: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for lab in a_lab(tmp_path_factory, "locks", "10.255.233", [69, 67]):
        lab.run("add-machine", "69", "67", "--yes")
        yield lab


@pytest.fixture(autouse=True)
def whole(locks: Lab) -> Iterator[None]:
    """Every test begins with a fleet that serves."""
    yield
    busy(locks, False)
    for process in BEGUN:
        if process.poll() is None:
            kill(process)
    BEGUN.clear()
    if locks.status()["verdict"] != "ok":
        locks.run("rollout", "--yes", "--wait-lock", "60")
        locks.run("undrain", "--all", "--wait-lock", "60")
        locks.wait_serving()


def busy(lab: Lab, yes: bool) -> None:
    """A step of somebody else that does not end keeps 67 busy: commands that look at it hold the lock meanwhile."""
    if yes:
        lab.on(
            67,
            f"setsid flock {STEP_LOCK} sh -c 'touch /run/busy; while [ -e /run/busy ]; do sleep 0.1; done' >&- 2>&- &",
        )
        lab.wait("67 is busy", lambda: "busy" in lab.on(67, "ls /run"), 20)
    else:
        lab.on(67, "rm -f /run/busy")


def begin(lab: Lab, *words: str) -> subprocess.Popen[str]:
    """Like `Lab.start`; Ctrl-C works in it also when the tests themselves run in the background, with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        lab.command(*words),
        env={**os.environ, **lab.environment},
        cwd=lab.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    BEGUN.append(process)
    return process


def holder(lab: Lab) -> dict[str, Any] | None:
    holders: list[dict[str, Any]] = lab.run("lock", "status", "-o", "json").json["holders"]
    return holders[0] if holders else None


def until_held(lab: Lab, process: subprocess.Popen[str]) -> None:
    lab.wait("the lock is held", lambda: process.poll() is not None or "token=" in lab.on(69, f"cat {FILE}"), 60)
    assert process.poll() is None, process.communicate()


def until_said(process: subprocess.Popen[str], words: str, seconds: float = 90) -> None:
    """Until the command has said so on stderr."""
    heard: list[str] = []

    def read() -> None:
        for line in process.stderr or ():
            heard.append(line)
            if words in line:
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(seconds)
    assert heard and words in heard[-1], "".join(heard)


def newest(lab: Lab) -> dict[str, Any]:
    listed: list[dict[str, Any]] = lab.run("history", "-n", "1", "-o", "json").json["commands"]
    return listed[0]


@pytest.mark.matrix
def test_commands_that_only_look_never_take_it(locks: Lab) -> None:
    before = locks.on(69, f"cat {FILE}; ls --full-time {FILE}*")
    for words in (
        "status",
        "check",
        "plan",
        "rollout --mtp 5 --dry-run",
        "restart 67/0 --dry-run",
        "route abc",
        "history",
    ):
        locks.run(*words.split())
    locks.run("logs", "67/0", "-n", "1")
    assert "nobody holds the lock" in locks.run("lock", "status").out
    assert locks.on(69, f"cat {FILE}; ls --full-time {FILE}*") == before


def test_the_second_of_two_terminals_is_refused_at_once_and_told_whose_it_is(locks: Lab) -> None:
    busy(locks, True)
    first = begin(locks, "restart", "67/0", "--yes")
    until_held(locks, first)
    for words in (
        ("drain", "69/1"),
        ("rollout", "--yes"),
        ("balancer", "reload", "--yes"),
        ("add-machine", "67", "--yes"),
    ):
        done = locks.run(*words, code=3)
        assert "`fleetctl restart 67/0`" in done.err
        assert f"pid {first.pid}" in done.err
        assert "--wait-lock" in done.err
    assert locks.run("drain", "69/1", "-o", "json", code=3).json["exit"] == 3
    seen = holder(locks)
    assert seen is not None
    assert (seen["pid"], seen["command"], seen["state"], seen["machine"]) == (first.pid, "restart 67/0", "held", 69)
    assert seen["heartbeat_seconds"] < 10
    for word in ("plan", "status"):  # looking goes on, and says who is at work
        assert "`fleetctl restart 67/0`" in locks.run(word).err
    busy(locks, False)
    assert first.wait(120) == 0
    assert holder(locks) is None


@pytest.mark.matrix
def test_with_wait_lock_the_second_goes_on_when_the_first_is_done(locks: Lab) -> None:
    busy(locks, True)
    first = begin(locks, "restart", "67/0", "--yes")
    until_held(locks, first)
    second = begin(locks, "drain", "67/1", "--wait-lock", "120")
    until_said(second, "waiting at most")
    assert first.poll() is None
    busy(locks, False)
    assert second.wait(120) == 0
    assert first.wait(1) == 0
    last = locks.run("history", "-n", "2", "-o", "json").json["commands"]
    assert [(one["command"], one["outcome"]) for one in last] == [("restart 67/0", "done"), ("drain 67/1", "done")]


@pytest.mark.matrix
def test_patience_that_ends_is_exit_3(locks: Lab) -> None:
    busy(locks, True)
    first = begin(locks, "restart", "67/0", "--yes")
    until_held(locks, first)
    assert "still after 2 s" in locks.run("drain", "69/1", "--wait-lock", "2", code=3).err
    busy(locks, False)
    assert first.wait(120) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_let_go_by_a_command_that_is_ended_in_an_operation(locks: Lab, number: signal.Signals) -> None:
    process = begin(locks, "restart", "67/0", "--now", "--yes")
    until_said(process, "gate: wait until it answers")
    process.send_signal(number)
    assert process.wait(30) == 130
    assert holder(locks) is None
    assert newest(locks)["outcome"] == "interrupted"


@pytest.mark.matrix
def test_let_go_while_the_machines_are_still_looked_at(locks: Lab) -> None:
    busy(locks, True)
    process = begin(locks, "restart", "67/0", "--yes")
    until_held(locks, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130
    assert holder(locks) is None


@pytest.mark.matrix
def test_let_go_by_a_command_that_fails(locks: Lab) -> None:
    real = "/usr/bin/systemctl"
    stub = "#!/bin/sh\\nif [ $1 = stop ]; then echo not today >&2; exit 1; fi\\nexec systemctl.real $*\\n"
    locks.on(67, f"mv {real} {real}.real; printf '{stub}' >{real}; chmod 755 {real}")
    try:
        assert "not today" in locks.run("restart", "67/3", "--now", "--yes", code=1).err
    finally:
        locks.on(67, f"mv -f {real}.real {real}")
    assert holder(locks) is None
    assert newest(locks)["outcome"] == "failed"


def test_a_killed_command_of_this_computer_is_taken_over_at_once(locks: Lab) -> None:
    process = begin(locks, "restart", "67/0", "--now", "--yes")
    until_said(process, "gate: wait until it answers")
    kill(process)
    seen = holder(locks)
    assert seen is not None
    assert seen["state"] == "dead"
    assert newest(locks)["outcome"] in ("cut short", "running")
    done = locks.run("restart", "67/0", "--now", "--yes")
    assert "taken over from" in done.err
    assert locks.run("history", "-n", "2", "-o", "json").json["commands"][0]["outcome"] == "cut short"


@pytest.mark.matrix
def test_a_killed_command_of_another_computer_is_taken_over_when_its_heartbeat_is_gone(locks: Lab) -> None:
    process = begin(locks, "restart", "67/0", "--now", "--yes")
    until_said(process, "gate: wait until it answers")
    kill(process)
    locks.on(69, f"sed -i 's/^kernel=.*/kernel=elsewhere/' {FILE}")
    locks.run("drain", "67/1", code=3)
    started = time.monotonic()
    done = locks.run("drain", "67/1", "--wait-lock", "60")
    assert "taken over from" in done.err
    assert time.monotonic() - started < 60


@pytest.mark.matrix
def test_who_loses_the_lock_to_a_break_stops_before_the_next_operation(locks: Lab) -> None:
    before = locks.on(67, "docker inspect -f '{{.Id}}' qwen38-tp2-1")
    process = begin(locks, "restart", "67/0", "67/1", "--now", "--yes")
    until_said(process, "gate: wait until it answers")
    broken = locks.run("lock", "break", "--yes")
    assert f"pid {process.pid}" in broken.err
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "broke it" in err
    assert locks.on(67, "docker inspect -f '{{.Id}}' qwen38-tp2-1") == before
    listed = locks.run("history", "-n", "2", "-o", "json").json["commands"]
    assert {one["command"] for one in listed} == {"restart 67/0 67/1", "lock break"}


@pytest.mark.matrix
def test_without_yes_or_terminal_nothing_is_broken(locks: Lab) -> None:
    assert "nobody holds" in locks.run("lock", "break").out
    busy(locks, True)
    first = begin(locks, "restart", "67/0", "--yes")
    until_held(locks, first)
    assert "fleetctl lock break --yes" in locks.run("lock", "break", code=2).err
    assert holder(locks) is not None
    busy(locks, False)
    assert first.wait(120) == 0


@pytest.mark.matrix
def test_every_machine_that_was_touched_has_the_lines(locks: Lab) -> None:
    locks.run("restart", "67/2", "--now", "--yes")
    run = newest(locks)
    assert {one["id"] for one in run["machines"]} == {69, 67}
    for machine in (69, 67):
        log = locks.on(machine, "cat /var/lib/fleetctl/locks/audit.log")
        assert log.count(run["run"]) == 2
        assert locks.key not in log
    table = locks.run("history", "-n", "100").out
    assert "restart 67/2" in table
    assert "add-machine 69 67" in table


@pytest.mark.matrix
def test_a_lost_balancer_moves_the_lock_and_one_that_answers_is_not_lost(locks: Lab) -> None:
    assert "answers" in locks.run("restart", "67/0", "--yes", "--balancer-lost", code=2).err
    locks.run("lab", "fault", "poweroff", "69")
    try:
        assert "--balancer-lost" in locks.run("restart", "67/0", "--yes", code=4).err
        done = locks.run("restart", "67/0", "--yes", "--balancer-lost")
        assert "MACHINE 69 IS TAKEN FOR DEAD" in done.err
        assert "nobody is drained" in done.err
        assert "command=restart 67/0" not in locks.on(67, f"cat {FILE}")  # let go again
        assert "freed=" in locks.on(67, f"cat {FILE}")
        assert locks.run("lock", "status", code=4).out
    finally:
        locks.run("lab", "fault", "poweron", "69")
    locks.wait("69 answers", lambda: locks.run("lock", "status", code=None).code == 0)
    locks.wait_serving()
