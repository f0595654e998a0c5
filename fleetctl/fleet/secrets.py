"""Secrets by reference: read at the moment of use, masked wherever they could be printed.

The only layer-crossing value that must not be logged; `reveal` is the one place to look for when reviewing
leaks.
"""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path
from typing import NoReturn

from fleetctl.errors import SecretError
from fleetctl.fleet.schema import SecretRef

MASK = "***"
COMMAND_TIMEOUT = 30.0
LONGEST = 4096


class Secret:
    """A value whose `str`, `repr` and `format` are a mask; only `reveal` gives it away."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is never serialised")


def resolve(ref: SecretRef, base: Path) -> Secret:
    """The secret that `ref` points to; relative files and commands start in `base`, the inventory's folder.

    One line of printable characters without spaces, as an HTTP header carries it; a trailing line end is
    dropped. Raises SecretError (which never holds the value) when it is unset, unreadable, readable by
    others, or not one such line.
    """
    if ref.env is not None:
        return _checked(_from_environment(ref.env), f"environment variable {ref.env}")
    if ref.file is not None:
        return _checked(_from_file(base / Path(ref.file).expanduser()), f"file {ref.file}")
    if ref.command is not None:
        return _checked(_from_command(ref.command, base), "the output of secrets.api_key.command")
    raise SecretError("the secret has no env, file or command")


def _checked(value: str, what: str) -> Secret:
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise SecretError(f"{what} is empty")
    if len(value) > LONGEST:
        raise SecretError(f"{what} is longer than {LONGEST} characters")
    if not all("!" <= character <= "~" for character in value):
        raise SecretError(f"{what} is not one line of printable ASCII without spaces")
    return Secret(value)


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise SecretError(f"environment variable {name} is not set", next_command=f"export {name}=...")
    return value


def _from_file(path: Path) -> str:
    try:
        # One descriptor for check and read: what was checked is what is read.
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SecretError(f"secret file {path} is not a regular file")
            if stat.S_IMODE(status.st_mode) & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise SecretError(
                    f"secret file {path} can be read by others (mode {mode:04o})",
                    next_command=f"chmod 600 {path}",
                )
            return file.read(LONGEST + 2).decode("utf-8", errors="replace")
    except OSError as error:
        raise SecretError(f"secret file {path}: {error.strerror or error}") from None


def _from_command(command: str, base: Path) -> str:
    """Standard error stays on the terminal: a password manager asks and explains there."""
    import subprocess

    try:
        done = subprocess.run(
            ["sh", "-c", command], cwd=base, stdout=subprocess.PIPE, timeout=COMMAND_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise SecretError(f"secrets.api_key.command gave nothing within {COMMAND_TIMEOUT:.0f} s") from None
    except OSError as error:
        raise SecretError(f"secrets.api_key.command: {error.strerror or error}") from None
    if done.returncode != 0:
        raise SecretError(f"secrets.api_key.command ended with exit code {done.returncode}")
    return done.stdout[: LONGEST + 2].decode("utf-8", errors="replace")
