"""One process per device, as vLLM's tensor-parallel workers: it holds the device and its memory.

What npu-smi shows as a holder is a process that has /dev/davinciN open and a descriptor named
`hbm:<MB>`. Exclusion between containers is a lock on <driver>/lab-devices/davinciN, which all containers
of a machine mount; where that folder is missing nothing is excluded.
`python3 -m simvllm.worker N MB [NAME]` holds one device by hand (the lab's other services use it).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from . import rooted

LOCKS = "/usr/local/Ascend/driver/lab-devices"


class DeviceBusyError(Exception):
    """A device is held by another container."""


@dataclass(frozen=True)
class Worker:
    pid: int
    rank: int


def acquire(device: int, megabytes: int, name: str) -> None:
    """Holds one device in this process until it ends. Raises DeviceBusyError, or OSError without the node."""
    node = os.open(rooted(f"/dev/davinci{device}"), os.O_RDWR)
    try:
        lock = os.open(rooted(f"{LOCKS}/davinci{device}"), os.O_RDONLY)
    except OSError:
        lock = -1
    if lock >= 0:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DeviceBusyError(device) from error
    memory = os.memfd_create(f"hbm:{megabytes}")
    for descriptor in (node, memory):
        os.set_inheritable(descriptor, True)
    Path("/proc/self/comm").write_text(name)


class Workers:
    """The workers of one engine; they end when `release` is called or this process is gone. `name`: of each, before
    its rank.
    """

    def __init__(self, name: str = "VLLM::Worker_TP") -> None:
        self.name = name
        self.alive: list[Worker] = []
        self._life, self._hold = os.pipe()

    def start(self, devices: list[int], megabytes: int) -> int | None:
        """Forks one worker a device; the first device that is held elsewhere, or None when all are ours."""
        for rank, device in enumerate(devices):
            answer, report = os.pipe()
            pid = os.fork()
            if pid == 0:
                self._child(device, megabytes, rank, report)
            os.close(report)
            self.alive.append(Worker(pid, rank))
            ready = os.read(answer, 1)
            os.close(answer)
            if ready != b"+":
                return device
        return None

    def _child(self, device: int, megabytes: int, rank: int, report: int) -> None:
        code = 1
        try:
            # What the server has open, its socket above all, must not live on here.
            for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
                if descriptor > 2 and descriptor not in (report, self._life):
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            acquire(device, megabytes, f"{self.name}{rank}"[:15])
            os.write(report, b"+")
            os.close(report)
            os.read(self._life, 1)
            code = 0
        except (DeviceBusyError, OSError):
            pass
        finally:
            os._exit(code)

    def outlive(self) -> None:
        """They go on when this process executes another program, as long as that one lives."""
        os.set_inheritable(self._hold, True)

    def dead(self) -> Worker | None:
        """A worker that has ended by itself, found without waiting; other children are reaped on the way."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            for worker in self.alive:
                if worker.pid == pid:
                    self.alive.remove(worker)
                    return worker

    def release(self) -> None:
        """Lets all workers end and waits for them."""
        os.close(self._hold)
        for worker in self.alive:
            try:
                os.waitpid(worker.pid, 0)
            except ChildProcessError:
                continue
        self.alive.clear()


if __name__ == "__main__":
    acquire(int(sys.argv[1]), int(sys.argv[2]), (sys.argv[3] if len(sys.argv) > 3 else "python3")[:15])
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
