"""The way of every command that changes something: plan, show, ask, execute, report. Computes the exit code, once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetctl.cli.output import Voice, dump, plan_document, plan_text, results_document, results_text
from fleetctl.errors import FleetctlError, UnreachableError, UsageError
from fleetctl.fleet import load
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan.executor import Status, StepResult
from fleetctl.plan.operation import Plan
from fleetctl.plan.session import Session
from fleetctl.remote import target
from fleetctl.remote.fanout import Connections


@dataclass(frozen=True)
class Options:
    """What every command takes."""

    inventory: Path | None = None
    json: bool = False
    yes: bool = False
    dry_run: bool = False
    verbose: bool = False
    quiet: bool = False

    @property
    def voice(self) -> Voice:
        return Voice(self.quiet)


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


def carry_out(options: Options, session: Session, plan: Plan) -> int:
    """Show the plan, ask, do it. Returns the exit code."""
    if options.dry_run:
        print(dump(plan_document(plan)) if options.json else plan_text(plan, verbose=options.verbose))
        return 0
    if not plan.operations:
        if options.json:
            print(dump(results_document(plan, [], 0)))
        else:
            print(plan_text(plan, verbose=options.verbose))
        return 0
    options.voice.line(plan_text(plan, verbose=options.verbose))
    confirm(options, plan)
    try:
        results = session.execute(plan)
    except KeyboardInterrupt:
        options.voice.line(
            "interrupted: what was started on the machines goes on; run the same command again to finish"
        )
        raise
    code = exit_code(results)
    print(dump(results_document(plan, results, code)) if options.json else results_text(results))
    for result in results:
        if result.error is not None:
            error = result.error
            error.next_command = error.next_command or _again(plan)
            print(f"error: {error}", file=sys.stderr)
    return code


def _again(plan: Plan) -> str:
    return f"mend the cause, then run `fleetctl {plan.command}` again: it goes on where this stopped"


def confirm(options: Options, plan: Plan) -> None:
    """Raises UsageError without a terminal and without --yes, or when the person says no."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "this changes machines and there is no terminal to ask",
            next_command=f"fleetctl {plan.command} --yes",
        )
    sys.stderr.write(f"Do this on fleet {plan.fleet}? [y/N] ")
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


def with_session(options: Options, machines: Callable[[Fleet], Iterable[int]], act: Callable[[Session], int]) -> int:
    """Open the connections, run `act`, close them."""
    fleet = fleet_of(options)
    ids = tuple(machines(fleet))
    with connections(fleet, ids) as opened:
        return act(Session(fleet, opened, options.voice))
