"""Every command that changes something leaves its lines in a log on each machine it touches: one before, one after.

The line before is there even when fleetctl is killed in the middle; `fleetctl history` reads both (plan/history.py).
Times are those of the computer where the command ran, the same on every machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleetctl.commands.script import Script, Word
from fleetctl.errors import FleetctlError, UnreachableError
from fleetctl.plan.operation import Plan, Status, StepResult
from fleetctl.plan.release import Release, words
from fleetctl.remote.fanout import Connections, aside

SECONDS = 10.0
INTERRUPTED_SECONDS = 3.0  # a person who pressed Ctrl-C waits no longer
LONGEST = 300  # characters of an error


class Trail:
    """The lines of one command. `run` names it in all of them.

    A line that cannot be written (a full disk) is said and stops nothing: the person on call comes first.
    """

    def __init__(self, connections: Connections, path: Word, run: str, say: Callable[[str, str], None]) -> None:
        self.connections = connections
        self.path = path
        self.run = run
        self.say = say
        self.machines: tuple[int, ...] = ()
        self._started = time.monotonic()

    def begin(
        self, plan: Plan, who: str, when: str, *, release: Release | None = None, taken_from: str | None = None
    ) -> None:
        """What is about to be done, by whom, on every machine that the plan touches."""
        self._started = time.monotonic()
        counts: dict[int, int] = {}
        for operation in plan.operations:
            counts[operation.machine] = counts.get(operation.machine, 0) + 1
        self.machines = tuple(counts)
        common: dict[str, Any] = {"when": when, "who": who, "command": plan.command, "plan": plan.id}
        if release is not None:
            common |= {"release": release.number}
            common |= {"overrides": words(release.overrides)} if release.overrides else {}
        if taken_from is not None:
            common["lock_taken_from"] = taken_from
        self._write({m: self._line("begin", {**common, "operations": count}) for m, count in counts.items()}, SECONDS)

    def end(self, results: Sequence[StepResult], when: str) -> None:
        """What became of it, machine by machine. One that stopped answering is not asked again."""
        lines = {}
        for machine in self.machines:
            own = [result for result in results if result.operation.machine == machine]
            failed = next((result for result in own if result.error is not None), None)
            if failed is not None and isinstance(failed.error, UnreachableError):
                continue
            done = sum(result.status is Status.DONE for result in own)
            outcome: dict[str, Any] = {"outcome": "done" if done == len(own) else "not reached", "done": done}
            if failed is not None and failed.error is not None:
                outcome["outcome"] = "failed"
                outcome["failed"] = f"{failed.operation.target} {failed.operation.step}"
                outcome["error"] = failed.error.cause.splitlines()[0][:LONGEST] if failed.error.cause else ""
            if took := starts(own):
                outcome["starts"] = took
            lines[machine] = self._line("end", {"when": when, "seconds": self.seconds, **outcome})
        self._write(lines, SECONDS)

    def interrupted(self, when: str) -> None:
        line = self._line("end", {"when": when, "seconds": self.seconds, "outcome": "interrupted"})
        self._write(dict.fromkeys(self.machines, line), INTERRUPTED_SECONDS)

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._started, 1)

    def _line(self, event: str, rest: Mapping[str, Any]) -> bytes:
        return line(self.run, event, rest)

    def _write(self, lines: Mapping[int, bytes], seconds: float) -> None:
        write(self.connections, self.path, lines, seconds, self.say)


def starts(results: Sequence[StepResult]) -> list[float]:
    """Seconds from the start of a unit to the gate's last answer, of instances for which both went well."""
    done = [one for one in results if one.status is Status.DONE]
    started = {one.operation.target for one in done if one.operation.starts}
    gates = [one for one in done if one.operation.step == "gate" and one.operation.target in started]
    return [round(one.seconds, 1) for one in gates]


def new_run() -> str:
    """A name for a command that holds no lock."""
    return os.urandom(4).hex()


def line(run: str, event: str, rest: Mapping[str, Any]) -> bytes:
    """One line of the log."""
    return (json.dumps({"schema": 1, "run": run, "event": event, **rest}, ensure_ascii=False) + "\n").encode()


def write(
    connections: Connections,
    path: Word,
    lines: Mapping[int, bytes],
    seconds: float,
    say: Callable[[str, str], None],
) -> None:
    """Add a line to the log of each machine, side by side, waiting at most `seconds`; failures are only said."""
    script = Script("audit_add", (path,)).text

    def one(machine: int) -> str:
        result = connections[machine].run(script, stdin=lines[machine], timeout=seconds)
        return "" if result.rc == 0 else result.stderr.strip() or f"ended with {result.rc}"

    adding = aside(lambda: connections.map(lambda connection: one(connection.target.id), lines))
    try:
        answers = adding(seconds)
    except TimeoutError:
        say("audit", f"not within {seconds:.0f} s: the line in {path}")
        return
    for machine, answer in answers.items():
        problem = answer.cause if isinstance(answer, FleetctlError) else answer
        if problem:
            say("audit", f"no line in {path} on {machine}: {problem}")
