"""What people type: parses, prints, decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fleetctl import __version__
from fleetctl.cli import complete
from fleetctl.errors import FleetctlError, UsageError

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)

Inventory = Annotated[Path | None, typer.Option("-i", "--inventory", help="Inventory file.", show_default=False)]
Output = Annotated[str, typer.Option("-o", "--output", help="table, wide or json.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the commands that run.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No chatter on stderr.")]
Now = Annotated[bool, typer.Option("--now", help="Do not wait for requests in flight.")]
All = Annotated[bool, typer.Option("--all", help="Every instance of the fleet.")]
Targets = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        help="67/2, 67:8002, 10.255.254.67:8002, 67/NAME, 67 or balancer.",
        autocompletion=complete.targets,
        show_default=False,
    ),
]
Machines = Annotated[list[str], typer.Argument(help="Machine ids such as 67.", autocompletion=complete.machines)]
SomeMachines = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(help="Machine ids; all when none is given.", autocompletion=complete.machines, show_default=False),
]


def _version(value: bool) -> None:
    if value:
        print(f"fleetctl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Deploy and run a fleet of model servers over SSH."""


def _options(inventory: Path | None, output: str = "table", **flags: bool) -> Any:
    from fleetctl.cli.change import Options

    if output not in ("table", "wide", "json"):
        raise UsageError(f"-o {output}: there are table, wide and json")
    return Options(inventory=inventory, json=output == "json", **flags)


@app.command()
def check(
    machines: SomeMachines = None, inventory: Inventory = None, output: Output = "table", quiet: Quiet = False
) -> None:
    """Is the inventory valid, are the machines ready? Every problem at once, nothing changed."""
    from fleetctl.cli import read

    raise typer.Exit(read.check(_options(inventory, output, quiet=quiet), machines or []))


@app.command()
def status(inventory: Inventory = None, output: Output = "table", quiet: Quiet = False) -> None:
    """What every instance is doing, and what the balancer thinks of it."""
    from fleetctl.cli import read

    raise typer.Exit(read.status(_options(inventory, output, quiet=quiet), wide=output == "wide"))


@app.command()
def plan(
    command: Annotated[str, typer.Argument(help="rollout or add-machine.")] = "rollout",
    machines: SomeMachines = None,
    mtp: Annotated[Optional[int], typer.Option("--mtp", min=0, max=15)] = None,  # noqa: UP045
    inventory: Inventory = None,
    output: Output = "table",
    verbose: Verbose = False,
) -> None:
    """What would change, as the operations that would run."""
    from fleetctl.cli import deploy

    options = _options(inventory, output, verbose=verbose, dry_run=True)
    if command == "add-machine":
        raise typer.Exit(deploy.add_machine(options, machines or []))
    if command != "rollout":
        raise UsageError(f"plan {command}: there are rollout and add-machine")
    raise typer.Exit(deploy.rollout(options, machines or [], mtp=mtp, image=None, settings=[]))


@app.command("add-machine")
def add_machine(
    machines: Machines,
    inventory: Inventory = None,
    output: Output = "table",
    yes: Yes = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Prepare, clean, start, gate, join the balancer, verify."""
    from fleetctl.cli import deploy

    options = _options(inventory, output, yes=yes, dry_run=dry_run, verbose=verbose, quiet=quiet)
    raise typer.Exit(deploy.add_machine(options, machines))


@app.command()
def rollout(
    mtp: Annotated[
        int | None, typer.Option("--mtp", min=0, max=15, help="num_speculative_tokens of this release.")
    ] = None,
    image: Annotated[Optional[str], typer.Option("--image", help="Image reference of this release.")] = None,  # noqa: UP045
    settings: Annotated[list[str] | None, typer.Option("--set", help="engine.KEY=VALUE, several times.")] = None,
    machines: Annotated[Optional[str], typer.Option("--machines", help="Only these, such as 66,67.")] = None,  # noqa: UP045
    inventory: Inventory = None,
    output: Output = "table",
    yes: Yes = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Bring every machine to the inventory plus what is asked for here."""
    from fleetctl.cli import deploy

    options = _options(inventory, output, yes=yes, dry_run=dry_run, verbose=verbose, quiet=quiet)
    chosen = machines.split(",") if machines is not None else []
    raise typer.Exit(deploy.rollout(options, chosen, mtp=mtp, image=image, settings=settings or []))


@app.command()
def restart(
    targets: Targets = None,
    everything: All = False,
    now: Now = False,
    inventory: Inventory = None,
    output: Output = "table",
    yes: Yes = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Drain, restart, wait until it answers, rejoin: one after the other."""
    from fleetctl.cli import act

    options = _options(inventory, output, yes=yes, dry_run=dry_run, verbose=verbose, quiet=quiet)
    raise typer.Exit(act.act("restart", options, targets or [], everything=everything, now=now))


@app.command()
def start(
    targets: Targets = None,
    everything: All = False,
    inventory: Inventory = None,
    output: Output = "table",
    yes: Yes = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Start what was stopped on purpose, parked or down."""
    from fleetctl.cli import act

    options = _options(inventory, output, yes=yes, dry_run=dry_run, verbose=verbose, quiet=quiet)
    raise typer.Exit(act.act("start", options, targets or [], everything=everything))


@app.command()
def stop(
    targets: Targets = None,
    everything: All = False,
    now: Now = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown by status until it is started.")] = "",
    inventory: Inventory = None,
    output: Output = "table",
    yes: Yes = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Drain and stop; it stays stopped, also after a reboot, until `fleetctl start`."""
    from fleetctl.cli import act

    options = _options(inventory, output, yes=yes, dry_run=dry_run, verbose=verbose, quiet=quiet)
    raise typer.Exit(act.act("stop", options, targets or [], everything=everything, now=now, reason=reason))


@app.command()
def drain(
    targets: Targets = None,
    inventory: Inventory = None,
    output: Output = "table",
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Take out of rotation and wait for what is in flight."""
    from fleetctl.cli import act

    raise typer.Exit(
        act.act("drain", _options(inventory, output, yes=True, dry_run=dry_run, quiet=quiet), targets or [])
    )


@app.command()
def undrain(
    targets: Targets = None,
    inventory: Inventory = None,
    output: Output = "table",
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Back in rotation."""
    from fleetctl.cli import act

    raise typer.Exit(
        act.act("undrain", _options(inventory, output, yes=True, dry_run=dry_run, quiet=quiet), targets or [])
    )


@app.command()
def logs(
    targets: Targets = None,
    follow: Annotated[bool, typer.Option("-f", "--follow")] = False,
    since: Annotated[Optional[str], typer.Option("--since", help="Such as 1h, 30m, 2d.")] = None,  # noqa: UP045
    lines: Annotated[int, typer.Option("-n", "--lines", min=0)] = 200,
    access: Annotated[bool, typer.Option("--access", help="The balancer's access log.")] = False,
    error: Annotated[bool, typer.Option("--error", help="The balancer's error log.")] = False,
    inventory: Inventory = None,
) -> None:
    """Logs of instances or of the balancer."""
    from fleetctl.cli import read

    raise typer.Exit(
        read.logs(
            _options(inventory),
            targets or [],
            follow=follow,
            since=since,
            lines=lines,
            access=access,
            error=error,
        )
    )


@app.command()
def route(session: str, inventory: Inventory = None, output: Output = "table") -> None:
    """Which backend this session lands on, computed and asked."""
    from fleetctl.cli import read

    raise typer.Exit(read.route(_options(inventory, output), session))


@app.command()
def trust(
    machine: Annotated[str, typer.Argument(autocompletion=complete.machines)],
    fingerprint: Annotated[str | None, typer.Option("--fingerprint", help="Accept only this SHA256:...")] = None,
    inventory: Inventory = None,
    yes: Yes = False,
) -> None:
    """Record a machine's host key after showing its fingerprint."""
    from fleetctl.cli import trust as command

    raise typer.Exit(command.trust(_options(inventory, yes=yes), machine, fingerprint))


def _add_groups(arguments: Sequence[str]) -> None:
    """Groups of commands, imported only when they or the help are asked for."""
    helping = not arguments or arguments[0].startswith("-")
    if helping or "lab" in arguments:
        from fleetctl.cli.lab import lab

        app.add_typer(lab, name="lab", help="Real machines in containers on this box.")
    if helping or "balancer" in arguments:
        from fleetctl.cli.balancer import balancer

        app.add_typer(balancer, name="balancer", help="The balancer: show, diff, apply, reload.")


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Every error ends here."""
    _add_groups(arguments)
    return _guarded(lambda: app(list(arguments), standalone_mode=False), as_json=_wants_json(arguments))


def _wants_json(arguments: Sequence[str]) -> bool:
    text = " ".join(arguments)
    return any(form in text for form in ("-o json", "--output json", "-ojson", "--output=json"))


def _guarded(call: Callable[[], Any], *, as_json: bool) -> int:
    try:
        result = call()
    except FleetctlError as error:
        return _report(error, as_json=as_json)
    except KeyboardInterrupt:
        if as_json:
            _say_json({"exit": 130, "error": "interrupted"})
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        # typer carries click under one name or another; both kinds know how to show themselves.
        if type(error).__name__ == "Abort":
            return 130
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            if as_json:
                _say_json({"exit": int(error.exit_code), "error": str(getattr(error, "message", error))})
            return int(error.exit_code)
        raise
    return int(result or 0)


def _say_json(document: dict[str, Any]) -> None:
    import json

    print(json.dumps({"schema": 1, **document}, ensure_ascii=False))


def _report(error: FleetctlError, *, as_json: bool) -> int:
    if as_json:
        where = {"machine": error.machine, "step": error.step, "state": error.state, "next": error.next_command}
        _say_json({"exit": error.exit_code, "error": error.cause, **where})
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code
