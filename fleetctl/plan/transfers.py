"""The copies of one command: who serves whom now, and who takes over from a source that is lost or slow."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress

from fleetctl.errors import CommandError, FleetctlError, UnreachableError
from fleetctl.plan.jobs import STARTS, JobFailed, JobGone, Jobs
from fleetctl.plan.meter import Meter
from fleetctl.plan.operation import Copy, Operation, Run, Way

STILL = 20.0  # seconds without a byte after which another source is better, if there is one
SLOW = 4  # so many times slower than the best of this command, for a whole window: the same
SOURCE_LOST = 69  # the status of a job whose source stayed silent
SOURCE_CHANGED = 65  # and of one whose source has something else now, or from which something else is wanted
HEARTBEAT = 5.0


class _Replace(Exception):
    """Another source shall take over; the words say why. `alive`: this one is only slow, and better than none."""

    def __init__(self, words: str, *, alive: bool = False) -> None:
        super().__init__(words)
        self.alive = alive


class Transfers:
    """`act(machine, run, stdin)` runs one script and returns what it printed."""

    def __init__(
        self,
        jobs: Jobs,
        act: Callable[[int, Run, bytes], str],
        say: Callable[[str, str], None],
        interrupted: threading.Event,
    ) -> None:
        self._jobs, self._act, self._say, self._interrupted = jobs, act, say, interrupted
        self._changed = threading.Condition()
        self._holders: defaultdict[str, set[int]] = defaultdict(set)
        self._begun: defaultdict[str, set[int]] = defaultdict(set)
        self._best: defaultdict[str, float] = defaultdict(float)
        self._serving: Counter[int] = Counter()
        self._lost: set[int] = set()

    def lost(self, machine: int) -> None:
        """Nobody waits any longer for this machine to have something."""
        with self._changed:
            self._lost.add(machine)
            self._changed.notify_all()

    def copy(self, operation: Operation, copy: Copy) -> str:
        """Bring it over from the planned source or, when that is lost, slow or dead, from another that has it.

        Raises CommandError or UnreachableError when it cannot be had or the receiver fails.
        """
        with self._changed:
            self._holders[copy.what] |= copy.holders
        if copy.follow and (words := self._followed(operation, copy)) is not None:
            return words
        refused: set[int] = set()
        slow: set[int] = set()
        restarts = 0
        while True:
            if slow and not self._having(copy, refused, operation.machine):
                refused -= slow  # nobody else is left
                slow.clear()
            source = self._take(operation, copy, refused)
            try:
                return self._have(operation, copy, self._from(operation, copy, source, refused))
            except _Replace as why:
                refused.add(source)
                if why.alive:
                    slow.add(source)
                self._say(operation.target, f"{operation.step}: {why}: another source takes over")
            except JobGone:
                restarts += 1
                if restarts >= STARTS:
                    raise CommandError("the machine keeps restarting while it copies") from None
            finally:
                with self._changed:
                    self._serving[source] -= 1
                    self._changed.notify_all()

    def _followed(self, operation: Operation, copy: Copy) -> str | None:
        """A copy that an earlier command started, taken to come from the planned source. None: it has to begin anew,
        with what has arrived."""
        with self._changed:
            self._begun[copy.what].add(operation.machine)
            self._serving[copy.source] += 1
            self._changed.notify_all()
        watch = self._watch(copy, copy.source, set(), operation.machine)
        try:
            return self._have(operation, copy, self._jobs.follow(operation, copy.job, watch))
        except JobGone:
            return None  # it ended, or its machine was restarted: it is let in anew
        except _Replace as why:
            self._say(operation.target, f"{operation.step}: {why}: it is begun anew")
            self._jobs.stop(operation.machine, copy.job.unit)
            return None
        except JobFailed as error:
            if error.status not in (SOURCE_LOST, SOURCE_CHANGED):
                raise
            self._say(operation.target, f"{operation.step}: {error.cause}: it is begun anew")
            return None
        finally:
            with self._changed:
                self._serving[copy.source] -= 1
                self._changed.notify_all()

    def _having(self, copy: Copy, refused: set[int], receiver: int) -> set[int]:
        """Who has it and is not refused, busy or not."""
        with self._changed:
            return self._holders[copy.what] & copy.ways.keys() - refused - {receiver}

    def _have(self, operation: Operation, copy: Copy, words: str) -> str:
        with self._changed:
            self._holders[copy.what].add(operation.machine)
            self._changed.notify_all()
        return words

    def _take(self, operation: Operation, copy: Copy, refused: set[int]) -> int:
        """Wait for a source and take one of its places."""
        spoken = time.monotonic()
        with self._changed:
            while True:
                if self._interrupted.is_set():
                    raise CommandError("interrupted before it began")
                having = self._holders[copy.what] & copy.ways.keys() - refused - {operation.machine}
                free = {m for m in having if self._serving[m] < copy.serves}
                planned = (
                    copy.source in copy.ways
                    and copy.source not in refused
                    and (copy.source in having or copy.source not in self._lost)
                )
                if planned:
                    earlier = set(copy.after) - self._begun[copy.what] - self._lost
                    free = free & {copy.source} if not earlier else set()
                elif not having:
                    raise CommandError(
                        f"no machine is left that could send the {copy.what}",
                        state="what has arrived stays, and the same command goes on from there",
                    )
                if free:
                    source = min(free, key=lambda m: (self._serving[m], m))
                    self._serving[source] += 1
                    self._begun[copy.what].add(operation.machine)
                    self._changed.notify_all()
                    return source
                if time.monotonic() - spoken > HEARTBEAT:
                    spoken = time.monotonic()
                    what = f"for {copy.source}" if planned else "for a free source"
                    self._say(operation.target, f"{operation.step}: waits {what}")
                self._changed.wait(1.0)

    def _from(self, operation: Operation, copy: Copy, source: int, refused: set[int]) -> str:
        way, receiver = copy.ways[source], operation.machine
        if source != copy.source:
            self._say(operation.target, f"{operation.step}: from {source}")
        public = self._act(receiver, way.key, b"")
        goes_on = False
        try:
            self._let_in(source, way, public, bool(self._others(copy, source, refused, receiver)))
            try:
                words = self._jobs.run(operation, copy.job, self._watch(copy, source, refused, receiver))
            except (JobFailed, JobGone, _Replace):
                raise
            except FleetctlError:
                goes_on = True  # out of sight, or late: its key stays, and is swept when it has ended
                raise
            self._have(operation, copy, words)  # before the key is revoked: somebody may wait for it
        except _Replace:
            self._jobs.stop(receiver, copy.job.unit)
            raise
        except JobFailed as error:
            useless = error.status == SOURCE_LOST or (error.status == SOURCE_CHANGED and source != copy.origin)
            if useless and self._others(copy, source, refused, receiver):
                raise _Replace(error.cause) from error
            raise
        finally:
            # Unreachable: its line ends by itself and is swept by the next command.
            if not goes_on and not self._interrupted.is_set():
                with suppress(FleetctlError):
                    self._act(source, way.revoke, b"")
        return words

    def _let_in(self, source: int, way: Way, public: str, others: bool) -> None:
        try:
            self._act(source, way.programs, b"")
            self._act(source, Run(way.allow), public.encode())
        except UnreachableError as error:
            raise _Replace(f"{source} is unreachable ({error.cause})") from error
        except CommandError as error:  # its disk may be full
            if not others:
                error.machine = source
                raise
            raise _Replace(f"{source} cannot let it in ({error.cause})") from error

    def _others(self, copy: Copy, source: int, refused: set[int], receiver: int) -> set[int]:
        """Who has it and a free place."""
        with self._changed:
            having = self._holders[copy.what] & copy.ways.keys() - refused - {receiver, source}
            return {m for m in having if self._serving[m] < copy.serves}

    def _watch(self, copy: Copy, source: int, refused: set[int], receiver: int) -> Callable[[Meter, int], None]:
        def watch(meter: Meter, total: int) -> None:
            rate, done = meter.rate or 0.0, meter.samples[-1][1]
            if done >= total or meter.seconds < 10:
                return
            with self._changed:
                self._best[copy.what] = max(self._best[copy.what], rate)
                slow = rate * SLOW < self._best[copy.what]
            if (meter.still > STILL or slow) and self._others(copy, source, refused, receiver):
                words = f"{source} has sent nothing for {meter.still:.0f} s" if not rate else f"{source} is slow"
                raise _Replace(words, alive=True)

        return watch
