"""The way of every command that changes something: plan, show, ask, execute, report. Computes the exit code, once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetctl.cli import hint
from fleetctl.cli.options import Options
from fleetctl.cli.output import dump, plan_document, plan_text, results_document, results_text
from fleetctl.errors import FleetctlError, UnreachableError, UsageError
from fleetctl.fleet import load
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan.operation import Plan, Status, StepResult
from fleetctl.remote import target
from fleetctl.remote.fanout import Connections

if TYPE_CHECKING:
    from fleetctl.plan.release import Release
    from fleetctl.plan.session import Session


def fleet_of(options: Options) -> Fleet:
    return load.load(load.find(options.inventory))


def connections(fleet: Fleet, machines: Iterable[int]) -> Connections:
    wanted = set(machines)
    return Connections(one for one in target.targets(fleet) if one.id in wanted)


def around(fleet: Fleet, machines: Iterable[int]) -> tuple[int, ...]:
    """The machines a change has to look at: its own, the balancer's and the source, in joining order."""
    inventory = fleet.inventory
    wanted = {*machines, inventory.balancer.machine, inventory.source}
    return tuple(machine for machine in fleet.machines if machine in wanted)


def carry_out(
    options: Options,
    session: Session,
    plan: Plan,
    release: Release | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Show the plan, ask, do it. `release`: the one that it rolls out. Returns the exit code.

    `tell`: who gets the JSON document of what was done; without it, stdout.
    """
    tell = tell or (lambda document: print(dump(document)))
    plan = replace(plan, notes=tuple(hint.whole(note, options.inventory) for note in plan.notes))
    if options.dry_run:
        options.voice.line(f"fleet {plan.fleet}, of {load.origin(options.inventory)}")
        print(dump(plan_document(plan)) if options.json else plan_text(plan, verbose=options.verbose))
        return 0
    if not plan.operations:
        if options.json:
            tell(results_document(plan, [], 0))
        else:
            print(plan_text(plan, verbose=options.verbose))
        return 0
    options.voice.line(plan_text(plan, verbose=options.verbose))
    confirm(options, plan)
    from fleetctl.cli.progress import shown

    try:
        with shown(options.voice, as_json=options.json) as session.progress:
            results = session.execute(plan, release)
    except KeyboardInterrupt as interrupt:
        with suppress(OSError):  # the terminal may be what is gone
            _interrupted(options, session, by_hand=not interrupt.args)
        raise
    code = exit_code(results)
    errors = [result.error for result in results if result.error is not None]
    for error in errors:
        error.next_command = error.next_command or _again(plan)
        hint.pasteable(error, options.inventory)
    if options.json:
        tell(results_document(plan, results, code))
    else:
        print(results_text(results))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return code


def _interrupted(options: Options, session: Session, *, by_hand: bool) -> None:
    """Work on the machines goes on, unless the person at the terminal wants it ended; a signal asks nobody."""
    voice = options.voice
    voice.line("interrupted: what was started on the machines goes on; run the same command again to finish")
    running = dict(session.executor.jobs.running) if session.executor else {}
    if not running or session.executor is None:
        return
    for (machine, _), operation in running.items():
        voice.line(f"  {machine}: {operation.step} goes on ({operation.summary})")
    if not by_hand or not sys.stdin.isatty() or options.yes:
        return
    sys.stderr.write("Leave that running, or stop it? [L/s] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("s", "stop"):
        return
    for machine, unit in running:
        try:
            session.executor.jobs.stop(machine, unit)
            voice.line(f"  {machine}: stopped; what has arrived stays")
        except FleetctlError as error:
            voice.line(f"  {machine}: {error.cause}; it goes on")


def _again(plan: Plan) -> str:
    return f"mend the cause, then run `fleetctl {plan.command}` again: it goes on where this stopped"


def confirm(options: Options, plan: Plan) -> None:
    """Raises UsageError without a terminal and without --yes, or when the person says no."""
    ask(options, f"Do this on fleet {plan.fleet}?", plan.command)


def ask(options: Options, question: str, command: str) -> None:
    """A yes from --yes or from the terminal. Raises UsageError otherwise."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "this changes machines and there is no terminal to ask",
            next_command=f"fleetctl {command} --yes",
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")


def exit_code(results: Sequence[StepResult], errors: Iterable[FleetctlError] = ()) -> int:
    """0 done · 1 something failed · 4 only unreachable machines failed (design, section 3)."""
    failures = [result.error for result in results if result.status is Status.FAILED and result.error] + list(errors)
    if not failures:
        return 0
    return (
        4 if all(isinstance(error, UnreachableError) for error in failures) else max(1, *(_code(e) for e in failures))
    )


def _code(error: FleetctlError) -> int:
    return 1 if isinstance(error, UnreachableError) else error.exit_code


def with_session(
    options: Options,
    machines: Callable[[Fleet], Iterable[int]],
    act: Callable[[Session], int],
    changes: str | None = None,
    *,
    at_once: bool = False,
) -> int:
    """Open the connections, run `act`, close them.

    `at_once`: nothing that was typed can still be wrong, so the machines greet while the rest of the program is loaded.
    `changes`: the words of a command that changes something: it holds the fleet's lock until its end, whatever ends it.
    """
    fleet = fleet_of(options)
    ids = tuple(machines(fleet))
    if changes is None or options.dry_run:
        with connections(fleet, ids) as opened:
            if at_once:
                opened.begin()
            from fleetctl.plan.session import Session

            return act(Session(fleet, opened, options.voice))

    reached = fleet.machines if options.balancer_lost else {*ids, fleet.inventory.balancer.machine}
    with connections(fleet, reached) as opened:
        from fleetctl.plan.lock import FleetLock
        from fleetctl.plan.session import Session

        patience, lost = options.wait_lock, options.balancer_lost
        with FleetLock(fleet, opened, changes, options.voice, patience=patience, balancer_lost=lost) as lock:
            return act(Session(fleet, opened, options.voice, lock=lock))
