"""Every error a person can meet, under one base.

An error says what failed where, the state things are in now, and the next command to type; the class
decides the exit code (design, section 3), which is computed from it in exactly one place (`cli.main`).
"""

from __future__ import annotations

import re

# What a terminal obeys instead of showing, and what turns the direction of writing around; not newline and tab.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Foreign text (a server's answer, a log line) as it may be shown on anybody's terminal."""
    return _OBEYED.sub("\ufffd", text)


class FleetctlError(Exception):
    """Something failed on a machine; exit code 1."""

    exit_code = 1

    def __init__(
        self,
        cause: str,
        *,
        machine: int | None = None,
        step: str | None = None,
        state: str | None = None,
        next_command: str | None = None,
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.machine = machine
        self.step = step
        self.state = state
        self.next_command = next_command

    def __str__(self) -> str:
        where = "".join(
            f"{part}: " for part in (f"machine {self.machine}" if self.machine else None, self.step) if part
        )
        lines = [f"{where}{self.cause}"]
        if self.state:
            lines.append(f"  state: {self.state}")
        if self.next_command:
            lines.append(f"  next:  {self.next_command}")
        return visible("\n".join(lines))


class UsageError(FleetctlError):
    """The command line asks for something that does not exist; exit code 2, before any connection."""

    exit_code = 2


class InventoryError(UsageError):
    """The inventory is wrong; carries every problem at once. `mend`: what to do before the next `fleetctl check`."""

    def __init__(self, problems: list[str], mend: str) -> None:
        super().__init__("\n".join(problems), next_command=mend)
        self.problems = problems


class SecretError(UsageError):
    """A secret reference cannot be resolved (variable unset, file missing or readable by others)."""


class LockedError(FleetctlError):
    """Somebody else holds the lock; exit code 3."""

    exit_code = 3


class UnreachableError(FleetctlError):
    """A machine could not be reached, or stopped answering; exit code 4 when nothing else failed."""

    exit_code = 4


class HostKeyError(UnreachableError):
    """The host key is unknown or has changed; nothing is ever accepted without `fleetctl trust`."""


class AuthenticationError(UnreachableError):
    """The machine refused our user or key; never retried."""


class CommandError(FleetctlError):
    """A command ran on the machine and failed."""
