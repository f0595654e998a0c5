"""Whether the process that holds a lock still lives, where that can be known for sure: on the machine it runs on."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fleetctl.observe.lock import Process

PROC = Path("/proc")


def this() -> Process:
    """The process we are. Where the system has no /proc nothing is claimed, and nobody will call us dead."""
    return Process(_kernel(), os.getpid(), _started(os.getpid()) or "")


def is_gone(process: Process) -> bool:
    """True only for a process of this boot and this process table that has ended, unreaped ones included.

    A killed command is then taken over at once instead of after its heartbeat has been missed for long.
    """
    if not process.kernel or process.kernel != _kernel():
        return False
    try:
        os.kill(process.pid, 0)  # asks only; unlike /proc it tells the truth about other users' processes everywhere
    except ProcessLookupError:
        return True
    except OSError:
        return False
    started = _started(process.pid)
    return bool(process.started) and started is not None and started != process.started


def _kernel() -> str:
    """The boot and the process table; a container has a table of its own."""
    with suppress(OSError):
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(PROC / 'self/ns/pid').readlink()}"
    return ""


def _started(pid: int) -> str | None:
    """Start in clock ticks since the boot; empty for one that has ended and is not reaped, None when it is not told."""
    with suppress(OSError, IndexError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in ("Z", "X") else fields[19]
    return None
