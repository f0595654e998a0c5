"""What was done to the fleet, of the audit logs of its machines. Pure: texts in, one list of commands out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetctl.observe.facts import parse_json

RUNNING, CUT_SHORT, UNKNOWN = "running", "cut short", "unknown"
# What a command as a whole came to, if any of its machines did: the first that applies.
ORDER = ("failed", "interrupted", RUNNING, CUT_SHORT, "not reached", "done")


@dataclass
class OnMachine:
    """`operations` planned there, `done` of them; `outcome` is None until there is a last line."""

    operations: int | None = None
    done: int | None = None
    outcome: str | None = None
    failed: str | None = None
    error: str | None = None


@dataclass
class Command:
    """One command that changed something. `when` is RFC 3339 where it was typed; `seconds` None while it has no end."""

    run: str
    when: str = ""
    who: str = ""
    command: str = ""
    plan: str | None = None
    release: int | None = None
    overrides: str | None = None
    lock_taken_from: str | None = None
    seconds: float | None = None
    outcome: str = UNKNOWN
    machines: dict[int, OnMachine] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        own = {k: v for k, v in vars(self).items() if k != "machines"}
        return {**own, "machines": [{"id": machine, **vars(one)} for machine, one in self.machines.items()]}


def commands(logs: Mapping[int, str], running: Iterable[str] = ()) -> list[Command]:
    """The commands of all logs, oldest first. `running`: the runs whose owner holds the lock now; further plans of a
    command have its run and a number, such as `1f00ab12-2`.

    A line that is none, such as half of one that a full disk cut, is passed over.
    """
    found: dict[str, Command] = {}
    for machine, text in logs.items():
        for line in text.splitlines():
            entry = parse_json(line)
            if isinstance(entry, dict) and isinstance(entry.get("run"), str):
                _add(found.setdefault(entry["run"], Command(entry["run"])), machine, entry)
    alive = set(running)
    for command in found.values():
        command.outcome = _outcome(command, command.run.partition("-")[0] in alive)
    return sorted(found.values(), key=lambda command: command.when)


def _add(command: Command, machine: int, entry: Mapping[str, Any]) -> None:
    one = command.machines.setdefault(machine, OnMachine())
    if entry.get("event") == "begin":
        for name in ("when", "who", "command", "plan", "release", "overrides", "lock_taken_from"):
            if name in entry:
                setattr(command, name, entry[name])
        one.operations = entry.get("operations")
    else:
        for name in ("done", "outcome", "failed", "error"):
            setattr(one, name, entry.get(name))
        seconds = entry.get("seconds")
        if isinstance(seconds, int | float):
            command.seconds = max(command.seconds or 0.0, seconds)


def _outcome(command: Command, alive: bool) -> str:
    seen = {one.outcome or (RUNNING if alive else CUT_SHORT) for one in command.machines.values()}
    # A machine that did not answer any more has no last line; the others know how it ended.
    if CUT_SHORT in seen and seen & {"done", "not reached"}:
        return "failed"
    return next((word for word in ORDER if word in seen), UNKNOWN)
