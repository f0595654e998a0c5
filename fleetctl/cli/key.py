"""`fleetctl key`: the API key of the fleet."""

from __future__ import annotations

import typer

from fleetctl.cli.options import DryRun, Inventory, Output, Quiet, Verbose, WaitLock, Yes, changing

key = typer.Typer(no_args_is_help=True)


@key.callback()
def main() -> None:
    """The API key of the fleet."""


@key.command()
def rotate(
    inventory: Inventory = None,
    output: Output = "table",
    yes: Yes = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    wait_lock: WaitLock = 0,
) -> None:
    """Change to the key that `secrets.api_key` gives now; both are good while instances roll, then one is."""
    from fleetctl.cli import deploy

    options = changing(inventory, output, yes, dry_run, verbose, quiet, wait_lock)
    raise typer.Exit(deploy.rotate_key(options))
