"""What people type: parses, prints, decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fleetctl import __version__
from fleetctl.cli import complete, hint
from fleetctl.cli.options import (
    CHANGES,
    READS,
    All,
    Machines,
    Now,
    Options,
    SomeMachines,
    Targets,
    WholeHelp,
    taking,
)
from fleetctl.errors import FleetctlError, UsageError

app = typer.Typer(
    cls=WholeHelp,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class OnFailure(str, Enum):
    """What a rollout that fails does with what it has changed."""

    STOP = "stop"
    ROLLBACK = "rollback"


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


@app.command()
@taking(*READS, "quiet")
def check(
    options: Options,
    machines: SomeMachines = None,
) -> int:
    """Is the inventory valid, are the machines ready? Every problem at once, nothing changed."""
    from fleetctl.cli import read

    return read.check(options, machines or [])


@app.command()
@taking(*READS, "quiet")
def status(options: Options) -> int:
    """What every instance is doing, and what the balancer thinks of it."""
    from fleetctl.cli import read

    return read.status(options)


@app.command()
@taking(*READS, "verbose")
def plan(
    options: Options,
    command: Annotated[str, typer.Argument(help="rollout, add-machine or remove-machine.")] = "rollout",
    machines: SomeMachines = None,
    mtp: Annotated[Optional[int], typer.Option("--mtp", min=0, max=15)] = None,  # noqa: UP045
) -> int:
    """What would change, as the operations that would run."""
    from fleetctl.cli import deploy

    options = replace(options, dry_run=True)
    if command == "add-machine":
        return deploy.add_machine(options, machines or [])
    if command == "remove-machine":
        from fleetctl.cli import remove

        return remove.remove_machine(options, machines or [])
    if command != "rollout":
        raise UsageError(f"plan {command}: there are rollout, add-machine and remove-machine")
    return deploy.rollout(options, machines or [], mtp=mtp, image=None, settings=[], forward=True)


@app.command("add-machine")
@taking(*CHANGES, "balancer_lost")
def add_machine(
    options: Options,
    machines: Machines,
) -> int:
    """Prepare, clean, start, gate, join the balancer, verify."""
    from fleetctl.cli import deploy

    return deploy.add_machine(options, machines)


@app.command("remove-machine")
@taking(*CHANGES)
def remove_machine(
    options: Options,
    machines: Machines,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also the image and the model that fleetctl brought there.")
    ] = False,
    accept_overload: Annotated[
        bool, typer.Option("--accept-overload", help="Also when the rest could not take the load.")
    ] = False,
) -> int:
    """Drain, leave the balancer, stop and remove; image and model stay. Works when the machine is dead."""
    from fleetctl.cli import remove

    return remove.remove_machine(options, machines, purge=purge, accept_overload=accept_overload)


@app.command()
@taking(*CHANGES, "balancer_lost")
def rollout(
    options: Options,
    mtp: Annotated[
        int | None, typer.Option("--mtp", min=0, max=15, help="num_speculative_tokens of this release.")
    ] = None,
    image: Annotated[Optional[str], typer.Option("--image", help="Image reference of this release.")] = None,  # noqa: UP045
    settings: Annotated[list[str] | None, typer.Option("--set", help="engine.KEY=VALUE, several times.")] = None,
    machines: Annotated[Optional[str], typer.Option("--machines", help="Only these, such as 66,67.")] = None,  # noqa: UP045
    forward: Annotated[bool, typer.Option("--forward", help="Also over a rollback: the inventory is ahead.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the release in force.")] = False,
    on_failure: Annotated[
        OnFailure, typer.Option("--on-failure", help="stop, or go back to the last good release.")
    ] = OnFailure.STOP,
    plan_id: Annotated[Optional[str], typer.Option("--plan", help="Only if the plan is still this one.")] = None,  # noqa: UP045
    canary: Annotated[Optional[str], typer.Option("--canary", help="The instance that is changed first.")] = None,  # noqa: UP045
    max_unavailable: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--max-unavailable", help="How many may be out at a time: a number or a share."),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over containers and a balancer that were set up by hand.")
    ] = False,
) -> int:
    """Bring every machine to the inventory plus what is asked for here."""
    from fleetctl.cli import deploy

    return deploy.rollout(
        options,
        machines.split(",") if machines is not None else [],
        mtp=mtp,
        image=image,
        settings=settings or [],
        forward=forward,
        resume=resume,
        on_failure=on_failure.value,
        plan_id=plan_id,
        canary=canary,
        max_unavailable=max_unavailable,
        adopt=adopt,
    )


@app.command()
@taking(*CHANGES, "balancer_lost")
def rollback(
    options: Options,
    release: Annotated[Optional[int], typer.Argument(help="Number of a release that proved good.")] = None,  # noqa: UP045
    machines: Annotated[Optional[str], typer.Option("--machines", help="Only these machines.")] = None,  # noqa: UP045
) -> int:
    """Back to the last release that proved good, or to the one named."""
    from fleetctl.cli import deploy

    return deploy.rollback(options, release, machines.split(",") if machines is not None else [])


@app.command()
@taking(*CHANGES, "balancer_lost")
def restart(
    options: Options,
    targets: Targets = None,
    everything: All = False,
    now: Now = False,
) -> int:
    """Drain, restart, wait until it answers, rejoin: one after the other."""
    from fleetctl.cli import act

    return act.act("restart", options, targets or [], everything=everything, now=now)


@app.command()
@taking(*CHANGES, "balancer_lost")
def start(
    options: Options,
    targets: Targets = None,
    everything: All = False,
) -> int:
    """Start what was stopped on purpose, parked or down."""
    from fleetctl.cli import act

    return act.act("start", options, targets or [], everything=everything)


@app.command()
@taking(*CHANGES, "balancer_lost")
def stop(
    options: Options,
    targets: Targets = None,
    everything: All = False,
    now: Now = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown by status until it is started.")] = "",
) -> int:
    """Drain and stop; it stays stopped, also after a reboot, until `fleetctl start`."""
    from fleetctl.cli import act

    return act.act("stop", options, targets or [], everything=everything, now=now, reason=reason)


@app.command()
@taking(*READS, "yes", "dry_run", "quiet", "wait_lock", "balancer_lost")
def drain(
    options: Options,
    targets: Targets = None,
    everything: All = False,
) -> int:
    """Take out of rotation and wait for what is in flight. It stays out until undrain; only --all asks first."""
    from fleetctl.cli import act

    options = replace(options, yes=options.yes or not everything)
    return act.act("drain", options, targets or [], everything=everything)


@app.command()
@taking(*READS, "yes", "dry_run", "quiet", "wait_lock", "balancer_lost")
def undrain(
    options: Options,
    targets: Targets = None,
    everything: All = False,
) -> int:
    """Back in rotation; it never asks."""
    from fleetctl.cli import act

    return act.act("undrain", replace(options, yes=True), targets or [], everything=everything)


@app.command()
@taking("inventory")
def logs(
    options: Options,
    targets: Targets = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes.")] = False,
    since: Annotated[Optional[str], typer.Option("--since", help="Such as 1h, 30m, 2d.")] = None,  # noqa: UP045
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="The newest so many.")] = 200,
    access: Annotated[bool, typer.Option("--access", help="The balancer's access log.")] = False,
    error: Annotated[bool, typer.Option("--error", help="The balancer's error log.")] = False,
    probes: Annotated[
        bool, typer.Option("--probes", help="Also the /health and /metrics that were answered with 200.")
    ] = False,
) -> int:
    """Logs of instances, without the probes that they answered, or of the balancer."""
    from fleetctl.cli import read

    chosen = targets or []
    return read.logs(
        options, chosen, follow=follow, since=since, lines=lines, access=access, error=error, probes=probes
    )


@app.command()
@taking(*READS)
def route(
    options: Options,
    session: str,
) -> int:
    """Which backend this session lands on, computed and asked."""
    from fleetctl.cli import read

    return read.route(options, session)


@app.command()
@taking(*READS, "quiet")
def verify(
    options: Options,
    reload: Annotated[
        bool, typer.Option("--reload", help="Reload the balancer too, gracefully: sessions have to stay.")
    ] = False,
) -> int:
    """The acceptance checks, direct and through the balancer: expected, seen, how often, and what that proves."""
    from fleetctl.cli import verify as command

    return command.verify(options, reload=reload)


@app.command()
@taking("inventory", "yes")
def trust(
    options: Options,
    machine: Annotated[str, typer.Argument(autocompletion=complete.machines)],
    fingerprint: Annotated[str | None, typer.Option("--fingerprint", help="Accept only this SHA256:...")] = None,
) -> int:
    """Record a machine's host key after showing its fingerprint."""
    from fleetctl.cli import trust as command

    return command.trust(options, machine, fingerprint)


@app.command()
@taking(*READS)
def history(
    options: Options,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="The newest so many.")] = 20,
) -> int:
    """What was changed, by whom, when, and what became of it."""
    from fleetctl.cli import history as command

    return command.history(options, number)


@app.command()
@taking(*READS, "quiet")
def report(
    options: Options,
    out: Annotated[Path, typer.Option("--out", help="FILE.md or FILE.html; without an ending, both.")],
    lang: Annotated[Optional[str], typer.Option("--lang", help="zh, en or all.")] = None,  # noqa: UP045
    bench: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            "--bench", help="Samples, or a folder of them; ./bench otherwise. Several times.", show_default=False
        ),
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Without the acceptance checks.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="As of verify: also reload the balancer.")] = False,
) -> int:
    """The deployment report, of what the machines say now: Markdown or one HTML page, in Chinese or English."""
    from fleetctl.cli import report as command

    return command.report(options, out, lang, bench or [], verify=not no_verify, reload=reload)


def _add_groups(arguments: Sequence[str]) -> None:
    """Groups of commands, imported only when they or the help are asked for."""
    helping = not arguments or arguments[0].startswith("-")
    if helping or "lab" in arguments:
        from fleetctl.cli.lab import lab

        app.add_typer(lab, name="lab", help="Real machines in containers on this box.")
    if helping or "balancer" in arguments:
        from fleetctl.cli.balancer import balancer

        app.add_typer(balancer, name="balancer", help="The balancer: show, diff, apply, reload.")
    if helping or "bench" in arguments:
        from fleetctl.cli.bench import bench

        app.command()(bench)
    if helping or "key" in arguments:
        from fleetctl.cli.key import key

        app.add_typer(key, name="key", help="The API key: rotate.")
    if helping or "lock" in arguments:
        from fleetctl.cli.lock import lock

        app.add_typer(lock, name="lock", help="Who is changing the fleet: status, break.")


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Every error ends here."""
    _add_groups(arguments)
    return _guarded(lambda: app(list(arguments), standalone_mode=False), arguments)


def _wants_json(arguments: Sequence[str]) -> bool:
    text = " ".join(arguments)
    return any(form in text for form in ("-o json", "--output json", "-ojson", "--output=json"))


def _guarded(call: Callable[[], Any], arguments: Sequence[str]) -> int:
    as_json = _wants_json(arguments)
    try:
        result = call()
    except FleetctlError as error:
        return _report(hint.pasteable(error, hint.typed(arguments)), as_json=as_json)
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
