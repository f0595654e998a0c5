"""The lock of the whole fleet: one command that changes something at a time (docs/decisions/fleet-lock.md).

It stands on the balancer's machine, above the step lock that every machine has for itself. A thread takes it while the
machines are looked at, and then keeps it alive.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from fleetctl.commands import fleet_lock
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, FleetctlError, LockedError, UnreachableError, UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe import lock
from fleetctl.observe.facts import Facts
from fleetctl.observe.lock import Holder, LockState, duration
from fleetctl.plan import owner
from fleetctl.remote.fanout import Connections
from fleetctl.remote.user import name as user_name

HEARTBEAT = 5.0  # seconds between two
RETRY = 1.0
# Seconds after which we stop by ourselves, counted from before the last heartbeat was sent: earlier than anybody may
# take over, whatever the way took.
GIVE_UP = fleet_lock.STALE - HEARTBEAT
ANSWER = 10.0
SPOKEN = 5.0  # seconds between two words about what is waited for
MOVE = "move the balancer first (docs/runbook.md)"
ENDING = 3.0  # seconds that the end of a command waits for a take that is under way

# A suspended laptop's time counts too.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    return time.clock_gettime(_CLOCK)


class FleetLock:
    """Taken by `start` and `wait`, let go at the end of the `with` block, whatever ended it.

    `command`: the words after `fleetctl`, for whoever finds it held. `patience`: seconds to wait for somebody else.
    `balancer_lost`: the balancer's machine is dead, take it on the next one. `lost` is set once it is somebody else's.
    """

    def __init__(
        self,
        fleet: Fleet,
        connections: Connections,
        command: str,
        say: Callable[[str, str], None],
        *,
        patience: float = 0.0,
        balancer_lost: bool = False,
    ) -> None:
        self.fleet = fleet
        self.connections = connections
        self.command = command
        self.say = say
        self.patience = patience
        self.balancer_lost = balancer_lost
        self.machine = fleet.inventory.balancer.machine
        self.token = os.urandom(16).hex()
        self.lost = threading.Event()
        self.taken_from: Holder | None = None
        self._thread: threading.Thread | None = None
        self._settled = threading.Event()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._reason = ""
        self._freed: float | None = None
        self._answered = 0.0
        self._renewed = 0.0
        self._renewing = threading.Lock()

    def __enter__(self) -> FleetLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is None or not self._settled.wait(ENDING) or self._failure is not None or self.lost.is_set():
            return
        try:
            self._ask(fleet_lock.release(self.fleet, self.token), timeout=5)
        except FleetctlError as failure:  # a note after the real error, never instead of it
            self.say("lock", f"could not be let go ({failure.cause}): it is free {fleet_lock.STALE:.0f} s from now")

    @property
    def run(self) -> str:
        """Names this command in audit logs; the lock's token begins with it."""
        return self.token[:8]

    def start(self) -> None:
        """Begin to take it; what only reads need not wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fleetctl-lock", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until it is ours. Raises LockedError when somebody else holds it, UnreachableError, UsageError."""
        self.start()
        self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def contested(self, since: float) -> bool:
        """Whether somebody else may have held it after `since` (time.monotonic): what was seen then may be outdated."""
        return self.taken_from is not None or (
            self._freed is not None and self._freed <= self._answered - since + 2 / fleet_lock.TICKS
        )

    def check(self) -> None:
        """Ask before every operation: raises LockedError when the lock is no longer ours, so that nothing more is done.

        Costs nothing while heartbeats arrive. After a pause (a suspended laptop, a cut network) the machine is asked.
        """
        if not self.lost.is_set() and clock() - self._renewed > GIVE_UP:
            try:
                self._renew(timeout=5)
            except FleetctlError as error:
                silence = duration(clock() - self._renewed)
                self._lose(f"no heartbeat has reached machine {self.machine} for {silence} ({error.cause})")
        if self.lost.is_set():
            raise LockedError(
                f"the lock of fleet {self.fleet.name} is no longer ours: {self._reason}",
                state="nothing was begun after that; what was under way goes on to its end",
                next_command=f"fleetctl lock status, then fleetctl {self.command} again",
            )

    def require_alone(self, facts: Mapping[int, Facts]) -> None:
        """Raises LockedError when the lock is held on another machine too: taken there while the balancer was lost."""
        for machine, holder in living(facts).items():
            if machine != self.machine:
                raise self._held(holder, machine)

    def _run(self) -> None:
        try:
            self._take()
        except BaseException as error:
            self._failure = error
        finally:
            self._settled.set()
        if self._failure is None:
            self._keep()

    def _take(self) -> None:
        if self.balancer_lost:
            self.machine = self._elsewhere()
        started = spoken = time.monotonic()
        over = ""
        while True:
            sent = clock()
            state = self._ask(fleet_lock.take(self.fleet, self.token, self._lines(), over), timeout=ANSWER)
            holder = state.holder
            if state.answer == "taken":
                self._answered, self._renewed, self._freed = time.monotonic(), sent, state.freed
                if holder is not None and holder.token != self.token:
                    self.taken_from = holder
                    self.say("lock", f"taken over from {holder.who}: `fleetctl {holder.command}` ended without a word")
                return
            if holder is None:
                raise CommandError("the lock gave no answer that makes sense", machine=self.machine, step="lock")
            if holder.token != over and owner.is_gone(holder.process):
                over = holder.token
                continue
            left = started + self.patience - time.monotonic()
            if left <= 0:
                raise self._held(holder, self.machine)
            if spoken == started or time.monotonic() - spoken > SPOKEN:
                spoken = time.monotonic()
                self.say("lock", f"waiting at most {left:.0f} s more: held by {holder}")
            if self._stop.wait(min(RETRY, left)):
                raise self._held(holder, self.machine)

    def _elsewhere(self) -> int:
        """The next machine in joining order that answers; only when the balancer's own does not."""
        balancer = self.fleet.inventory.balancer.machine
        if (lost := self._unreachable(balancer)) is None:
            raise UsageError(
                f"machine {balancer} answers: the lock of fleet {self.fleet.name} is there",
                next_command=f"fleetctl {self.command}, without --balancer-lost",
            )
        order = list(self.fleet.machines)
        at = order.index(balancer)
        for machine in order[at + 1 :] + order[:at]:
            if self._unreachable(machine) is None:
                self.say(
                    "lock",
                    f"MACHINE {balancer} IS TAKEN FOR DEAD ({lost.cause}): the lock is taken on {machine}. "
                    f"Nobody may change the fleet from where {balancer} can still be reached.",
                )
                return machine
        raise lost

    def _unreachable(self, machine: int) -> UnreachableError | None:
        """Why a machine does not answer. Raises HostKeyError, AuthenticationError: such a machine is not dead."""
        try:
            self.connections[machine].open()
        except UnreachableError as error:
            if type(error) is not UnreachableError:
                raise
            return error
        return None

    def _keep(self) -> None:
        """Heartbeats until the command ends or the lock is lost."""
        pause, silent = HEARTBEAT, False
        while not self._stop.wait(pause) and not self.lost.is_set():
            try:
                self._renew(timeout=ANSWER)
                pause, silent = HEARTBEAT, False
            except FleetctlError as error:
                pause = RETRY
                if not silent:
                    silent = True
                    self.say("lock", f"a heartbeat was not delivered ({error.cause}), trying again")

    def _renew(self, timeout: float) -> None:
        """One heartbeat. Raises FleetctlError when it is not delivered; a lock that is not ours becomes `lost`."""
        with self._renewing:
            sent = clock()
            state = self._ask(fleet_lock.renew(self.fleet, self.token), timeout)
            if state.answer != "renewed" and state.unknown and clock() - self._renewed < GIVE_UP:
                # Rebooted meanwhile, and in so short a time nobody else can have come to hold it.
                state = self._ask(fleet_lock.take(self.fleet, self.token, self._lines()), timeout)
            if state.answer in ("renewed", "taken"):
                self._renewed = sent
            elif not self._stop.is_set():
                self._lose(_words(state))

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self._reason = reason
            self.lost.set()
            self.say("lock", f"LOST: {reason}; nothing more is begun")

    def _ask(self, script: Script, timeout: float) -> LockState:
        try:
            result = self.connections[self.machine].run(script.text, timeout=timeout)
        except FleetctlError as error:
            error.step = error.step or "lock"
            if type(error) is UnreachableError and self.machine == self.fleet.inventory.balancer.machine:
                # All others edit its table or its key: without it they can do nothing.
                alone = self.command.startswith(("restart ", "start ", "stop "))
                way_out = f"fleetctl {self.command} --balancer-lost" if alone else MOVE
                error.next_command = f"{error.next_command}; if that machine is dead: {way_out}"
            raise
        if result.rc != 0:
            raise CommandError(
                result.stderr.strip() or f"ended with {result.rc}",
                machine=self.machine,
                step="lock",
                state="nothing was changed",
                next_command=f"fleetctl check {self.machine}",
            )
        return lock.parse(result.stdout)

    def _lines(self) -> dict[str, str]:
        own = owner.this()
        return {
            "owner": user_name(),
            "host": platform.node(),
            "pid": str(own.pid),
            "kernel": own.kernel,
            "started": own.started,
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": self.command,
        }

    def _held(self, holder: Holder, machine: int) -> LockedError:
        waited = f", and still after {self.patience:.0f} s" if self.patience else ""
        return LockedError(
            f"the lock of fleet {self.fleet.name} is held by {holder}{waited}",
            machine=machine,
            step="lock",
            state="nothing was changed",
            next_command=f"fleetctl {self.command} --wait-lock 600, or fleetctl lock status",
        )


def living(facts: Mapping[int, Facts]) -> dict[int, Holder]:
    """Who holds the lock, by the machine where it was seen; without those of whom nothing is heard any more."""
    holders = {
        m: seen.lock.holder for m, seen in facts.items() if seen.lock is not None and seen.lock.holder is not None
    }
    return {m: holder for m, holder in holders.items() if not holder.stale and not owner.is_gone(holder.process)}


def _words(state: LockState) -> str:
    if state.holder is not None:
        return f"it is held by {state.holder}"
    return f"{state.broken} broke it" if state.broken else "it was let go by somebody else"
