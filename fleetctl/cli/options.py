"""The options that commands share, and what they come to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from fleetctl.cli import complete
from fleetctl.errors import UsageError

if TYPE_CHECKING:
    from fleetctl.cli.output import Voice

Inventory = Annotated[Path | None, typer.Option("-i", "--inventory", help="Inventory file.", show_default=False)]
Output = Annotated[str, typer.Option("-o", "--output", help="table, wide or json.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the commands that run.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No chatter on stderr.")]
Now = Annotated[bool, typer.Option("--now", help="Do not wait for requests in flight.")]
All = Annotated[bool, typer.Option("--all", help="Every instance of the fleet.")]
WaitLock = Annotated[float, typer.Option("--wait-lock", min=0, help="Seconds to wait for whoever holds the lock.")]
BalancerLost = Annotated[
    bool, typer.Option("--balancer-lost", help="The balancer's machine is dead: take the lock on the next one.")
]
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


class WholeHelp(TyperGroup):
    """The list of commands with a whole sentence for each: wrapped where it is long, never cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(1000)) for name in self.commands])


@dataclass(frozen=True)
class Options:
    """What every command takes. `wait_lock`: seconds to wait for whoever holds the fleet's lock."""

    inventory: Path | None = None
    json: bool = False
    wide: bool = False
    yes: bool = False
    dry_run: bool = False
    verbose: bool = False
    quiet: bool = False
    wait_lock: float = 0.0
    balancer_lost: bool = False

    @cached_property
    def voice(self) -> Voice:
        from fleetctl.cli.output import Voice

        return Voice(self.quiet)


SHARED: dict[str, tuple[Any, Any]] = {
    "inventory": (Inventory, None),
    "output": (Output, "table"),
    "yes": (Yes, False),
    "dry_run": (DryRun, False),
    "verbose": (Verbose, False),
    "quiet": (Quiet, False),
    "wait_lock": (WaitLock, 0),
    "balancer_lost": (BalancerLost, False),
}
READS = ("inventory", "output")
CHANGES = ("inventory", "output", "yes", "dry_run", "verbose", "quiet", "wait_lock")


def taking(*names: str) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Gives a command the shared options of these names, after its own.

    The command gets them in one, as its first argument `options`, and returns its exit code.
    """

    def wrap(command: Callable[..., int]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shared = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        shared = [one.replace(annotation=SHARED[one.name][0], default=SHARED[one.name][1]) for one in shared]
        every = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *shared]

        def run(**given: Any) -> None:
            chosen = options(**{name: given.pop(name) for name in names})
            raise typer.Exit(command(chosen, **given))

        # What typer reads.
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in every}
        return run

    return wrap


def options(output: str = "table", **flags: Any) -> Options:
    """Raises UsageError for a form of output that there is not."""
    if output not in ("table", "wide", "json"):
        raise UsageError(f"-o {output}: there are table, wide and json")
    return Options(json=output == "json", wide=output == "wide", **flags)
