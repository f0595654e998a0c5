"""`fleetctl key`: the API key of the fleet."""

from __future__ import annotations

import typer

from fleetctl.cli.options import CHANGES, Options, WholeHelp, taking

key = typer.Typer(cls=WholeHelp, no_args_is_help=True)


@key.callback()
def main() -> None:
    """The API key of the fleet."""


@key.command()
@taking(*CHANGES)
def rotate(options: Options) -> int:
    """Change to the key that `secrets.api_key` gives now; both are good while instances roll, then one is."""
    from fleetctl.cli import deploy

    return deploy.rotate_key(options)
