"""A process is called dead only where that is certain."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from fleetctl.observe.lock import Process
from fleetctl.plan import owner

TELL = (
    "from fleetctl.plan import owner; p = owner.this(); print(p.kernel, p.pid, p.started, sep='|', flush=True); input()"
)


def child() -> tuple[subprocess.Popen[str], Process]:
    process = subprocess.Popen([sys.executable, "-c", TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    kernel, pid, started = process.stdout.readline().strip().split("|")
    return process, Process(kernel, int(pid), started)


def test_we_live() -> None:
    assert not owner.is_gone(owner.this())


def test_a_living_process_is_not_gone_and_a_killed_one_is_reaped_or_not() -> None:
    process, told = child()
    try:
        assert told.pid == process.pid
        assert not owner.is_gone(told)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is not reaped
        assert owner.is_gone(told)
    finally:
        process.kill()
        process.wait()
    assert owner.is_gone(told)


def test_another_process_with_its_number_does_not_keep_it_alive() -> None:
    assert owner.is_gone(replace(owner.this(), started="1"))


@pytest.mark.parametrize("kernel", ["", "another-boot pid:[1]"])
def test_of_another_machine_nothing_is_known(kernel: str) -> None:
    assert not owner.is_gone(Process(kernel, 2**22 + 1, "1"))


def test_where_the_system_says_no_start_a_living_number_counts_as_alive() -> None:
    assert not owner.is_gone(replace(owner.this(), started=""))
