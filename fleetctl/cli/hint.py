"""The commands that messages name, made to work where they are pasted: on the fleet that was meant. Pure.

Whoever raises an error names a command and knows nothing of the command line; here it gets the inventory that was
typed with -i. One that came from the environment is there for the next command too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from fleetctl.errors import FleetctlError

GROUPS = ("balancer", "key", "lab", "lock")
COMMANDS = (
    *("check", "status", "plan", "add-machine", "remove-machine", "rollout", "rollback", "restart", "start", "stop"),
    *("drain", "undrain", "logs", "route", "verify", "trust", "history", "report", "bench"),
)
_COMMAND = re.compile(
    rf"\bfleetctl (?:(?:{'|'.join(GROUPS)}) [a-z]+|(?:{'|'.join(COMMANDS)}))(?![\w-])(?! (?:-i|--inventory)\b)"
)
_OPTION = re.compile(r"(?:-[fqvy]*i|--inventory(?:=|$))(.*)")  # as alone, or with its value, or after flags


def typed(arguments: Sequence[str]) -> str | None:
    """The inventory that a command line names; None when it leaves that to the environment or the folder."""
    words = iter(arguments)
    found = None
    for word in words:
        if word == "--":
            break
        if match := _OPTION.fullmatch(word):
            found = match[1] or next(words, None)
    return found


def whole(text: str, inventory: str | Path | None) -> str:
    """The text, with `-i INVENTORY` in each fleetctl command that names none."""
    if inventory is None:
        return text
    option = f" -i {shlex.quote(str(inventory))}"
    return _COMMAND.sub(lambda match: match[0] + option, text)


def pasteable(error: FleetctlError, inventory: str | Path | None) -> FleetctlError:
    """The same error, its commands whole."""
    error.cause = whole(error.cause, inventory)
    error.state = error.state and whole(error.state, inventory)
    error.next_command = error.next_command and whole(error.next_command, inventory)
    return error
