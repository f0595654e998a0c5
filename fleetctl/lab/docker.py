"""The Docker engine of this box, as the lab uses it: one call, one command line, always with a limit of time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleetctl.errors import FleetctlError, UsageError

SECONDS = 120.0


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    seconds: float = SECONDS,
    check: bool = True,
    step: str | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Runs a program of this box. Raises FleetctlError when it is missing, too slow or (with `check`) fails."""
    step = step or " ".join(argv[:2])
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=seconds, check=False)
    except FileNotFoundError as error:
        raise UsageError(f"`{argv[0]}` is not installed on this box", next_command="make setup") from error
    except subprocess.TimeoutExpired as error:
        raise FleetctlError(f"no answer within {seconds:g} s", step=step) from error
    if check and done.returncode != 0:
        said = (done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip())[-800:]
        raise FleetctlError(f"{argv[0]} ended with {done.returncode}: {said}", step=step)
    return done


def docker(*arguments: str, stdin: bytes = b"", seconds: float = SECONDS, step: str | None = None) -> str:
    """`docker ...`, its standard output without the last newline."""
    return run(["docker", *arguments], stdin=stdin, seconds=seconds, step=step).stdout.decode(errors="replace").strip()


def succeeds(*arguments: str, seconds: float = SECONDS) -> bool:
    return run(["docker", *arguments], seconds=seconds, check=False).returncode == 0


def inside(
    container: str, script: str, *, stdin: bytes = b"", seconds: float = SECONDS, step: str | None = None
) -> str:
    """Runs a POSIX sh script as root in a lab machine, past ssh: for building and breaking it, never for the fleet."""
    return docker("exec", "-i", container, "/bin/sh", "-euc", script, stdin=stdin, seconds=seconds, step=step)


def feed(container: str, command: Sequence[str], file: Path, *, seconds: float = 300, step: str | None = None) -> str:
    """`docker exec` with a file as standard input, for what is too large to hold in memory."""
    argv = ["docker", "exec", "-i", container, *command]
    with file.open("rb") as source:
        try:
            done = subprocess.run(argv, stdin=source, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise FleetctlError(f"no answer within {seconds:g} s", step=step) from error
    if done.returncode != 0:
        raise FleetctlError(done.stderr.decode(errors="replace").strip()[-800:], step=step)
    return done.stdout.decode(errors="replace").strip()


def inspect(kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """What `docker inspect` knows of those of the names that exist."""
    if not names:
        return []
    done = run(["docker", kind, "inspect", *names], check=False)
    found: list[dict[str, Any]] = json.loads(done.stdout or b"[]")
    return found


def labelled(kind: str, label: str) -> list[str]:
    """Names of containers or networks that carry a label, running or not."""
    every = ["--all"] if kind == "container" else []
    column = "{{.Names}}" if kind == "container" else "{{.Name}}"
    return docker(kind, "ls", *every, "--filter", f"label={label}", "--format", column).split()


def require_engine() -> None:
    """Raises UsageError, naming what is missing, when no engine answers."""
    done = run(["docker", "info", "--format", "{{.ServerVersion}}"], seconds=20, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(
            f"no Docker engine answers on this box: {said[-1] if said else 'no output'}",
            next_command="make setup",
        )
