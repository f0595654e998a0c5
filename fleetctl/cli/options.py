"""The options that commands share, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fleetctl.cli import complete
from fleetctl.errors import UsageError

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


def options(inventory: Path | None, output: str = "table", **flags: Any) -> Any:
    from fleetctl.cli.change import Options

    if output not in ("table", "wide", "json"):
        raise UsageError(f"-o {output}: there are table, wide and json")
    return Options(inventory=inventory, json=output == "json", **flags)


def changing(
    inventory: Path | None,
    output: str,
    yes: bool,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    wait_lock: float,
    balancer_lost: bool = False,
) -> Any:
    """What every command that changes something takes, in the order in which each of them lists it."""
    flags = {"yes": yes, "dry_run": dry_run, "verbose": verbose, "quiet": quiet}
    return options(inventory, output, **flags, wait_lock=wait_lock, balancer_lost=balancer_lost)
