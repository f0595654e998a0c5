"""The scripts of the fleet's lock, as values; what they answer is parsed in observe/lock.py."""

from __future__ import annotations

from collections.abc import Mapping

from fleetctl.commands import paths
from fleetctl.commands.script import Script, quote
from fleetctl.fleet.fleet import Fleet

STALE = 30.0  # seconds without a heartbeat, by the clock of the lock's machine, until another may take it over
TICKS = 100  # a second in hundredths, the unit of /proc/uptime


def take(fleet: Fleet, token: str, lines: Mapping[str, str], over: str = "") -> Script:
    """Hold it if it is free, stale, or held by the token `over`; `lines` say who holds it and for what."""
    return _script(fleet, "take", token, over, lines)


def renew(fleet: Fleet, token: str) -> Script:
    return _script(fleet, "renew", token)


def release(fleet: Fleet, token: str, lines: Mapping[str, str] | None = None) -> Script:
    """Let go; `lines` stay for whoever held it, such as who broke it."""
    return _script(fleet, "release", token, lines=lines or {})


def show(fleet: Fleet) -> Script:
    return _script(fleet, "show", "")


def probe(fleet: Fleet) -> str:
    """A shell line of the probe that writes what `show` prints to the file `fleet-lock`, when there is a lock."""
    path = quote(paths.fleet_lock(fleet))
    return (
        f"if [ -e {path} ]; then read -r u _ </proc/uptime; "
        f'{{ printf "now=%s\\n" "${{u%.*}}${{u#*.}}"; cat {path}; }} >fleet-lock; fi'
    )


def _script(fleet: Fleet, verb: str, token: str, over: str = "", lines: Mapping[str, str] | None = None) -> Script:
    text = "\n".join(f"{name}={_line(value)}" for name, value in (lines or {}).items())
    return Script("fleet_lock", (verb, paths.fleet_lock(fleet), token, round(STALE * TICKS), over, text))


def _line(value: str) -> str:
    """One line, whatever somebody's user name or a flag's value holds."""
    return "".join(c if c.isprintable() else " " for c in value)
