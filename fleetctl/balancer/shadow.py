"""The shadow start: the new configuration runs beside the old one, on loopback, before it replaces it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shlex import quote

from fleetctl.balancer import config, peers
from fleetctl.fleet.fleet import Fleet

SECONDS = 60
"""A deadline for the whole script; it takes two seconds when all is well."""


@dataclass(frozen=True)
class Shadow:
    """What to write below `folder` on the machine, and the POSIX sh to run then.

    The script prints one line a check (`ok WHAT` or `FAILED WHAT: ...`), ends with 1 when one failed, and
    leaves neither process nor file behind.
    """

    folder: PurePosixPath
    files: dict[str, str]
    script: str


def shadow(fleet: Fleet, flavour: config.Flavour, table: str, folder: PurePosixPath | None = None) -> Shadow:
    """The shadow of a fleet's balancer with this peers file (its text). Raises PeersError if that is not whole."""
    folder = folder or PurePosixPath("/run/fleetctl") / f"{fleet.name}-shadow"
    files = _render(fleet, flavour, folder)
    words = [flavour.binary, str(folder), config.config_hash(files), peers.version(table)]
    text = (Path(__file__).parent / "shadow.sh").read_text(encoding="utf-8")
    script = f"set -- {' '.join(map(quote, words))}\n{text}"
    return Shadow(folder, {**files, "peers": table, "logs/error.log": ""}, script)


def _render(fleet: Fleet, flavour: config.Flavour, folder: PurePosixPath) -> dict[str, str]:
    """The files of the shadow: those of the fleet, in another folder and on ports that the script fills in."""
    places = config.Places(
        folder=folder,
        logs=folder / "logs",
        pid=folder / "pid",
        listen="127.0.0.1:1",
        state_listen="127.0.0.1:2",
        api_key=config.Places.of(fleet).api_key,
    )
    return config.render(fleet, flavour, places)


def failures(output: str) -> tuple[str, ...]:
    """The checks that failed, from what the script printed."""
    lines = (line.removeprefix("FAILED ") for line in output.splitlines() if line.startswith("FAILED "))
    return tuple(lines)
