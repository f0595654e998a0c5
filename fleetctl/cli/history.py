"""`fleetctl history`: what was changed, of the audit logs of all machines."""

from __future__ import annotations

from fleetctl.cli.change import exit_code, with_session
from fleetctl.cli.options import Options
from fleetctl.cli.output import dump, table
from fleetctl.commands import fleet_lock, paths
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, FleetctlError
from fleetctl.observe import lock as locks
from fleetctl.observe.lock import duration
from fleetctl.plan import history as histories
from fleetctl.plan.history import Command
from fleetctl.plan.session import Session
from fleetctl.remote.connection import Connection

MARK = "@@audit\n"


def history(options: Options, number: int) -> int:
    """The newest `number` commands, oldest first; exit 4 when machines did not answer: the list may be short then."""

    def look(session: Session) -> int:
        found = commands_of(session)[-number:]
        if options.json:
            unreachable = [{"id": m, "error": error.cause} for m, error in session.errors.items()]
            document = {"schema": 1, "fleet": session.fleet.name, "unreachable": unreachable}
            print(dump({**document, "commands": [command.document() for command in found]}))
        else:
            print(_text(session, found))
        return exit_code((), session.errors.values())

    return with_session(options, lambda fleet: fleet.machines, look)


def commands_of(session: Session) -> list[Command]:
    """Of all machines, each asked once for its log and for who holds the lock there."""
    log = Script("audit_read", (paths.audit(session.fleet),))
    text = f"(\n{fleet_lock.show(session.fleet).text})\nprintf '{MARK[:-1]}\\n'\n{log.text}"

    def one(connection: Connection) -> str:
        result = connection.run(text, timeout=60)
        if result.rc != 0:
            raise CommandError(result.stderr.strip() or f"ended with {result.rc}", step="history")
        return result.stdout

    logs, running = {}, set()
    for machine, answer in session.connections.map(one, session.fleet.machines).items():
        if isinstance(answer, FleetctlError):
            answer.machine = answer.machine or machine
            session.errors[machine] = answer
            continue
        state, _, logs[machine] = answer.partition(MARK)
        holder = locks.parse(state).holder
        if holder is not None and not holder.stale:
            running.add(holder.token[:8])
    return histories.commands(logs, running)


def _text(session: Session, found: list[Command]) -> str:
    lines = [f"machine {machine}: {error.cause}" for machine, error in session.errors.items()]
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
