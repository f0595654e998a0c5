"""`fleetctl history`: what was changed, of the audit logs of all machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.cli import hint
from fleetctl.cli.change import exit_code, with_session
from fleetctl.cli.options import Options
from fleetctl.cli.output import dump, table
from fleetctl.commands import fleet_lock, paths, probe
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, FleetctlError
from fleetctl.observe import lock as locks
from fleetctl.observe import observe
from fleetctl.observe.lock import duration
from fleetctl.plan import history as histories
from fleetctl.plan import release as releases
from fleetctl.plan.history import Command
from fleetctl.plan.release import Release
from fleetctl.plan.session import Session
from fleetctl.remote.connection import Connection

MARK, RELEASES = "@@audit\n", "@@releases\n"


def history(options: Options, number: int) -> int:
    """The newest `number` commands, oldest first; exit 4 when machines did not answer: the list may be short then."""

    def look(session: Session) -> int:
        seen = look_at(session)
        found = seen.commands[-number:]
        if options.json:
            unreachable = [{"id": m, "error": error.cause} for m, error in session.errors.items()]
            document: dict[str, Any] = {"schema": 1, "fleet": session.fleet.name, "unreachable": unreachable}
            document["releases"] = [
                {"number": one.number, "outcome": one.outcome, "left_out": list(one.left_out)}
                for one in seen.proved.values()
            ]
            document["broken_releases"] = [
                {"machine": m, "path": path, "reason": why}
                for m, one in seen.broken.items()
                for path, why in one.items()
            ]
            print(dump({**document, "commands": [command.document() for command in found]}))
        else:
            print(_text(session, seen, found, options.inventory))
        return exit_code((), session.errors.values())

    return with_session(options, lambda fleet: fleet.machines, look)


@dataclass(frozen=True)
class Seen:
    """Of all machines. `proved` by number; `broken`: by machine and path why a file is no release."""

    commands: list[Command]
    proved: dict[int, Release]
    broken: dict[int, dict[str, str]]


def commands_of(session: Session) -> list[Command]:
    return look_at(session).commands


def look_at(session: Session) -> Seen:
    """All machines, each asked once for its log, its releases, and who holds the lock there."""
    log = Script("audit_read", (paths.audit(session.fleet),))
    text = f"(\n{fleet_lock.show(session.fleet).text})\nprintf '{RELEASES[:-1]}\\n'\n"
    text += f"{probe.releases(session.fleet)} 2>/dev/null\nprintf '\\n{MARK[:-1]}\\n'\n{log.text}"

    def one(connection: Connection) -> str:
        result = connection.run(text, timeout=60)
        if result.rc != 0:
            raise CommandError(result.stderr.strip() or f"ended with {result.rc}", step="history")
        return result.stdout

    logs, running = {}, set()
    good: list[dict[str, Any]] = []
    broken: dict[int, dict[str, str]] = {}
    for machine, answer in session.connections.map(one, session.fleet.machines).items():
        if isinstance(answer, FleetctlError):
            answer.machine = answer.machine or machine
            session.errors[machine] = answer
            continue
        rest, _, logs[machine] = answer.partition(MARK)
        state, _, kept = rest.partition(RELEASES)
        own, broken[machine] = observe.releases(kept)
        good += own
        holder = locks.parse(state).holder
        if holder is not None and not holder.stale:
            running.add(holder.token[:8])
    return Seen(histories.commands(logs, running), releases.proved(good), broken)


def _text(session: Session, seen: Seen, found: list[Command], inventory: Path | None) -> str:
    lines = [f"machine {machine}: {error.cause}" for machine, error in session.errors.items()]
    lines += [
        f"{machine}: {releases.left_behind(path, why)}"
        for machine, one in seen.broken.items()
        for path, why in one.items()
    ]
    if not found:
        return "\n".join([*lines, f"nothing has been changed on fleet {session.fleet.name} yet"])
    head = ("WHEN", "WHO", "COMMAND", "RELEASE", "OUTCOME", "TIME", "MACHINES")
    lines.append(table(head, [_row(command) for command in found], state_column=4))
    for command in found:
        lines += [
            f"  {command.when} {machine}: {one.failed or one.outcome}: {one.error}"
            for machine, one in command.machines.items()
            if one.error
        ]
    named = {command.release for command in found}
    for number, release in seen.proved.items():
        parts = releases.partly(release, session.fleet.machines)
        if parts is not None and number in named:
            back = hint.whole(f"fleetctl rollback {number} --machines {parts[0]}", inventory)
            where = f"{parts[0]}, and not on {parts[1]}: {back}" if parts[0] else "no machine that is left"
            lines.append(f"release {number} proved good on {where}")
    return "\n".join(lines)


def _release(command: Command) -> str:
    if command.release is None:
        return "-"
    return f"{command.release} ({command.overrides})" if command.overrides else str(command.release)


def _row(command: Command) -> tuple[str, ...]:
    return (
        command.when,
        command.who,
        command.command,
        _release(command),
        command.outcome,
        "-" if command.seconds is None else duration(command.seconds),
        ",".join(map(str, command.machines)),
    )
