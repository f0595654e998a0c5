"""`fleetctl lock status|break`."""

from __future__ import annotations

from typing import Any

import typer

from fleetctl.cli.change import ask, exit_code, with_session
from fleetctl.cli.options import READS, Options, WholeHelp, taking
from fleetctl.cli.output import dump, table
from fleetctl.commands import fleet_lock, paths
from fleetctl.errors import CommandError, FleetctlError
from fleetctl.observe import lock as locks
from fleetctl.observe.lock import Holder, LockState, duration
from fleetctl.plan import audit, owner
from fleetctl.plan.session import Session, now, who
from fleetctl.remote.connection import Connection

lock = typer.Typer(cls=WholeHelp, no_args_is_help=True)


@lock.command()
@taking(*READS)
def status(options: Options) -> int:
    """Who holds the fleet's lock, for what, since when, and whether anything has been heard of them."""

    def look(session: Session) -> int:
        holders = _holders(session)
        if options.json:
            listed = [_document(machine, holder) for machine, holder in holders.items()]
            document = {"schema": 1, "fleet": session.fleet.name, "held": any(d["state"] == "held" for d in listed)}
            unreachable = [{"id": m, "error": error.cause} for m, error in session.errors.items()]
            print(dump({**document, "holders": listed, "unreachable": unreachable}))
        else:
            print(_text(session, holders))
        return exit_code((), _balancers_error(session))

    return with_session(options, lambda fleet: fleet.machines, look)


@lock.command("break")
@taking(*READS, "yes")
def break_(options: Options) -> int:
    """Take the lock from whoever holds it. A command of theirs that still runs stops before its next operation."""

    def act(session: Session) -> int:
        holders = _holders(session)
        for machine, holder in holders.items():
            ask(options, f"Break the lock on {machine}, held by {holder}?", "lock break")
            _break(session, machine, holder)
        if options.json:
            listed = [_document(machine, holder) for machine, holder in holders.items()]
            print(dump({"schema": 1, "fleet": session.fleet.name, "broken": listed}))
        elif not holders:
            print(_text(session, holders))
        for machine, holder in holders.items():
            options.voice.line(f"the lock on {machine} is broken; it was held by {holder}")
        return exit_code((), _balancers_error(session))

    return with_session(options, lambda fleet: fleet.machines, act)


def _holders(session: Session) -> dict[int, Holder]:
    """By machine. It stands on the balancer's, and elsewhere while that was lost; all are asked, side by side."""
    script = fleet_lock.show(session.fleet).text

    def one(connection: Connection) -> LockState:
        result = connection.run(script, timeout=20)
        if result.rc != 0:
            raise CommandError(result.stderr.strip() or f"ended with {result.rc}", step="lock")
        return locks.parse(result.stdout)

    found = {}
    for machine, state in session.connections.map(one, session.fleet.machines).items():
        if isinstance(state, FleetctlError):
            state.machine = state.machine or machine
            session.errors[machine] = state
        elif state.holder is not None:
            found[machine] = state.holder
    return found


def _balancers_error(session: Session) -> list[FleetctlError]:
    """The one that keeps the answer from being whole."""
    error = session.errors.get(session.fleet.inventory.balancer.machine)
    return [error] if error is not None else []


def _break(session: Session, machine: int, holder: Holder) -> None:
    """Only of the holder that was shown: whoever came after them is left alone."""
    script = fleet_lock.release(session.fleet, holder.token, {"broken": who()}).text
    result = session.connections[machine].run(script, timeout=20)
    if result.rc != 0 or locks.parse(result.stdout).answer != "released":
        raise CommandError(
            result.stderr.strip() or "the lock has changed hands meanwhile",
            machine=machine,
            step="lock",
            state="nothing was broken",
            next_command="fleetctl lock status",
        )
    entry = {"when": now(), "who": who(), "command": "lock break", "lock_taken_from": str(holder)}
    run = audit.new_run()
    line = audit.line(run, "begin", entry) + audit.line(run, "end", {"when": now(), "outcome": "done"})
    audit.write(session.connections, paths.audit(session.fleet), {machine: line}, audit.SECONDS, session.say)


def _state(holder: Holder) -> str:
    if owner.is_gone(holder.process):
        return "dead"
    return "stale" if holder.stale else "held"


def _document(machine: int, holder: Holder) -> dict[str, Any]:
    return {
        "machine": machine,
        "state": _state(holder),
        "owner": holder.owner,
        "host": holder.host,
        "pid": holder.process.pid,
        "command": holder.command,
        "since": holder.since,
        "held_seconds": holder.held,
        "heartbeat_seconds": holder.heartbeat,
    }


def _text(session: Session, holders: dict[int, Holder]) -> str:
    lines = [f"machine {machine}: {error.cause}" for machine, error in session.errors.items()]
    if not holders:
        return "\n".join([*lines, f"nobody holds the lock of fleet {session.fleet.name}"])
    rows = [
        (
            str(machine),
            _state(holder),
            holder.who,
            str(holder.process.pid),
            duration(holder.held),
            f"{duration(holder.heartbeat)} ago",
            holder.command,
        )
        for machine, holder in holders.items()
    ]
    head = ("MACHINE", "STATE", "OWNER", "PID", "HELD FOR", "HEARTBEAT", "COMMAND")
    lines.append(table(head, rows, state_column=1))
    if any(row[1] != "held" for row in rows):
        lines.append("its owner is gone: the next command takes it over by itself")
    return "\n".join(lines)
