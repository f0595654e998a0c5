"""`fleetctl lab ...`: real machines in containers on this box."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from fleetctl.cli import hint
from fleetctl.cli.change import fleet_of
from fleetctl.cli.options import Options, WholeHelp
from fleetctl.cli.output import Voice, dump, table
from fleetctl.fleet.fleet import Fleet
from fleetctl.lab import faults
from fleetctl.lab import lab as labs
from fleetctl.lab.engines import Engine
from fleetctl.lab.layout import default_folder

lab = typer.Typer(cls=WholeHelp, no_args_is_help=True)

Inventory = Annotated[Optional[Path], typer.Option("-i", "--inventory", help="Inventory of the fleet.")]  # noqa: UP045
Folder = Annotated[Optional[Path], typer.Option("--folder", help="Where the lab keeps its files.")]  # noqa: UP045


def _place(inventory: Path | None, folder: Path | None) -> tuple[Fleet, Path]:
    fleet = fleet_of(Options(inventory=inventory))
    return fleet, folder or default_folder(fleet)


@lab.command()
def up(
    inventory: Inventory = None,
    folder: Folder = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Take down what is up and build anew.")] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Machines without the old services.")] = False,
    engine: Annotated[
        Optional[Engine],  # noqa: UP045
        typer.Option("--engine", help="What serves: the simulator (default), or a real vLLM on this box's CPU."),
    ] = None,
) -> None:
    """Bring the machines up in the state that the first report found."""
    fleet, place = _place(inventory, folder)
    voice = Voice()
    options = labs.Options(bare=bare, fresh=fresh, engine=engine)
    found = labs.up(fleet, state_dir=place, progress=voice.line, options=options)
    print(_status_table(found))
    voice.line(hint.whole('eval "$(fleetctl lab env)" makes this shell use it', inventory))


@lab.command()
def down(inventory: Inventory = None, folder: Folder = None) -> None:
    """Remove the lab: containers, networks, disks, files. Base images stay cached."""
    fleet, place = _place(inventory, folder)
    labs.down(fleet, state_dir=place, progress=Voice().line)


@lab.command()
def status(
    inventory: Inventory = None,
    folder: Folder = None,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json.")] = "table",
) -> None:
    """What there is of the lab; exit 1 when it is not up."""
    fleet, place = _place(inventory, folder)
    found = labs.status(fleet, state_dir=place)
    if output == "json":
        machines = [
            {"id": m.id, "container": m.container, "state": m.state, "address": m.address, "ssh_port": m.ssh_port}
            for m in found.machines
        ]
        document = {"schema": 1, "fleet": found.fleet, "up": found.up, "folder": str(found.folder)}
        print(
            dump(
                {
                    **document,
                    "inventory": str(found.inventory),
                    "balancer_port": found.balancer_port,
                    "machines": machines,
                }
            )
        )
    else:
        print(_status_table(found))
    raise typer.Exit(0 if found.up else 1)


def _status_table(found: labs.Status) -> str:
    rows = [(str(m.id), m.state, m.address, str(m.ssh_port or "-"), m.container) for m in found.machines]
    return table(("MACHINE", "STATE", "ADDRESS", "SSH PORT", "CONTAINER"), rows, state_column=1)


@lab.command()
def env(inventory: Inventory = None, folder: Folder = None) -> None:
    """Shell lines that make fleetctl and curl use the lab: FLEETCTL_INVENTORY, FLEET_API_KEY, FLEET_URL."""
    fleet, place = _place(inventory, folder)
    sys.stdout.write(labs.env(fleet, state_dir=place))


@lab.command()
def fault(
    words: Annotated[list[str], typer.Argument(help="Such as `reboot 67`; `fleetctl lab fault help` lists all.")],
    inventory: Inventory = None,
    folder: Folder = None,
) -> None:
    """Break something: reboot, poweroff, poweron, freeze, freeze-ssh, thaw, cut, heal, slow, disk-full, engine ..."""
    fleet, place = _place(inventory, folder)
    print(faults.fault(fleet, state_dir=place, words=words))
