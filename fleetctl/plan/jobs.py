"""Transient units on the machines, started and followed: a lost session is a lost view, not a lost job."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, FleetctlError, UnreachableError
from fleetctl.plan.meter import Meter, Progress
from fleetctl.plan.operation import Job, Operation
from fleetctl.remote.connection import Result

POLL, SOON = 1.0, 0.2  # seconds between two looks: in the middle, and where the end may be near
OUT_OF_SIGHT = 180.0  # seconds a machine may be unreachable while its job goes on: it may be rebooting
STARTS = 4  # a reboot ends a job; what it had brought stays, so it is started again
Call = Callable[[int, Script, float, bytes], Result]


@dataclass(frozen=True)
class Look:
    """One look at a job. `state` is running, done, failed or gone (it was there, and the machine knows of none)."""

    state: str
    words: str
    status: int | None
    bytes: tuple[int, int] | None
    log: tuple[str, ...]

    @property
    def by_itself(self) -> bool:
        """Docker loads a layer, or the image is tried: no byte of the source is waited for (job_image)."""
        return self.words.startswith(("loading ", "running "))


class JobFailed(CommandError):
    """The job ended by itself, with `status`."""

    def __init__(self, cause: str, *, status: int | None, state: str) -> None:
        super().__init__(cause, state=state)
        self.status = status


def look(text: str) -> Look:
    """What `job_state` printed. Pure."""
    head, _, rest = text.partition("@@progress\n")
    progress, _, log = rest.partition("@@log\n")
    values = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    words, moved = progress.strip(), None
    if (match := re.fullmatch(r"bytes (\d+) (\d+) ?(.*)", words)) is not None:
        moved, words = (int(match[1]), int(match[2])), match[3]
    active, how = values.get("ActiveState"), values.get("Ended", "")
    ended, _, number = how.partition(" ")
    if ended == "success" and number not in ("", "0"):
        ended = "signal"  # systemd takes an end by SIGTERM for a good one
    if values.get("SubState") == "exited" and values.get("Result") == "success":
        state = "done"
    elif active == "failed":
        state = "failed"
    elif active == "inactive":
        # systemd forgets a unit that failed, a fleetctl that saw it end one that did well; without a word about its end
        # the machine was rebooted.
        state = {"success": "done", "": "gone"}.get(ended, "failed")
    else:
        state = "running"
    status = number or values.get("ExecMainStatus", "")
    lines = tuple(line for line in log.splitlines() if line.strip())
    if state == "failed" and not lines:
        lines = (f"ended without a word ({how or status})",)
    return Look(state, words, int(status) if status.isdigit() else None, moved, lines)


class Jobs:
    """The jobs of one command. `running`: those that are being followed, by machine and unit."""

    def __init__(
        self,
        fleet: str,
        call: Call,
        say: Callable[[str, str], None],
        tell: Callable[[Operation, Progress], None],
        interrupted: threading.Event,
    ) -> None:
        self.fleet = fleet
        self._call, self._say, self._tell, self._interrupted = call, say, tell, interrupted
        self.running: dict[tuple[int, str], Operation] = {}

    def run(self, operation: Operation, job: Job, watch: Callable[[Meter, int], None] | None = None) -> str:
        """Start the job unless it runs, and follow it to its end. `watch` gets every progress and may raise.

        Raises JobFailed when it failed, CommandError at its deadline, UnreachableError when the machine stays away.
        """
        for _ in range(STARTS):
            self.start(operation, job)
            if (seen := self._seen_to_its_end(operation, job, watch)) is not None:
                return seen
            self._say(operation.target, f"{operation.step}: the machine was restarted and lost the job: again")
            if job.folder:
                raise JobGone
        raise CommandError(f"{job.unit} was lost {STARTS} times: the machine keeps restarting")

    def follow(self, operation: Operation, job: Job, watch: Callable[[Meter, int], None] | None = None) -> str:
        """A job that somebody else started. Raises as `run` does, and JobGone when it is not there any more."""
        seen = self._seen_to_its_end(operation, job, watch)
        if seen is None:
            raise JobGone
        return seen

    def _seen_to_its_end(
        self, operation: Operation, job: Job, watch: Callable[[Meter, int], None] | None
    ) -> str | None:
        self.running[operation.machine, job.unit] = operation
        try:
            seen = self._follow(operation, job, watch)
        except KeyboardInterrupt:
            self._interrupted.set()  # before anybody tidies up behind a job that goes on
            raise
        finally:
            if not self._interrupted.is_set():
                self.running.pop((operation.machine, job.unit), None)
        return seen

    def start(self, operation: Operation, job: Job) -> None:
        script = Script("job_start", (job.unit, operation.summary, job.progress, job.folder), self.fleet)
        result = self._call(operation.machine, script, 60, job.script.text.encode())
        if result.rc != 0:
            raise CommandError(f"{job.unit} did not start: {result.stderr.strip() or result.rc}")

    def stop(self, machine: int, unit: str) -> None:
        """End a job; what it has brought so far stays."""
        self._call(machine, Script("job_stop", (unit,), self.fleet), 100, b"")

    def _follow(self, operation: Operation, job: Job, watch: Callable[[Meter, int], None] | None) -> str | None:
        """The job's last words, or None when the machine lost it."""
        meter, started, seen = Meter(), time.monotonic(), time.monotonic()
        done = total = 0
        while True:
            try:
                result = self._call(operation.machine, Script("job_state", (job.unit, job.progress)), 30, b"")
            except (UnreachableError, CommandError):  # lost, or too busy to answer: a lost view is no lost job
                if time.monotonic() - seen > OUT_OF_SIGHT or self._interrupted.is_set():
                    raise
                self._say(operation.target, f"{operation.step}: out of sight; {job.unit} goes on there")
                time.sleep(2)
                continue
            seen, now = time.monotonic(), look(result.stdout)
            if now.state == "done":
                with suppress(FleetctlError):  # it is done, whatever becomes of its unit
                    self._call(operation.machine, Script("job_clear", (job.unit, job.progress), self.fleet), 30, b"")
                return now.words
            if now.state == "gone":
                return None
            if now.state == "failed":
                state = f"more in: /run/fleetctl/jobs/{job.unit}.errors on that machine"
                raise JobFailed(" / ".join(now.log[-4:]), status=now.status, state=state)
            if seen - started > job.deadline:
                raise CommandError(f"not done after {seen - started:.0f} s", state=f"{job.unit} goes on on the machine")
            total = 0
            if now.bytes is not None:  # what was there before the first word of bytes is no speed
                done, total = now.bytes
                if now.by_itself:
                    meter = Meter()  # nor is the source still or slow meanwhile
                meter.add(seen, done)
            self._tell(operation, meter.progress(total, now.words or f"{seen - started:.0f} s"))
            if watch is not None and now.bytes is not None:
                watch(meter, total)
            time.sleep(POLL if now.by_itself and done < total else _pause(meter, total))


def _pause(meter: Meter, total: int) -> float:
    """Seconds until the next look: each costs the machine some 20 ms, and only the end has to be seen at once."""
    left = meter.progress(total).left
    near = meter.seconds < 2 or not total or (left is not None and left < 3)
    return SOON if near else POLL


class JobGone(Exception):
    """The machine was restarted and the job's secrets with it: it has to be let in anew."""
