"""What the operator's own ssh_config says, so that `fleetctl` reaches a machine exactly as `ssh` does."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.errors import UsageError

USER_FILE = Path("~/.ssh/config")
SYSTEM_FILE = Path("/etc/ssh/ssh_config")
INCLUDE_DEPTH = 16  # as OpenSSH: readconf.c READCONF_MAX_DEPTH
RELEVANT = re.compile(
    r"^\s*(hostname|user|port|identityfile|identitiesonly|identityagent|proxyjump|proxycommand|hostkeyalias"
    r"|userknownhostsfile|globalknownhostsfile|canonicalizehostname)\b",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class SshConfig:
    """ssh_config text with its Include files in place; the first value found wins, as in ssh_config(5).

    Include files are taken as if typed at that point; a Host block does not narrow the Host blocks of a file
    included inside it.
    """

    text: str = ""

    @classmethod
    def load(cls, user: Path = USER_FILE, system: Path = SYSTEM_FILE) -> SshConfig:
        """The user's file before the system's. Files that do not exist or cannot be read say nothing."""
        return cls("".join(_lines(path.expanduser(), path.expanduser().parent, 0) for path in (user, system)))

    def lookup(self, host: str, user: str | None = None, port: int | None = None) -> Mapping[str, Any]:
        """Options for `host`, keys in lower case; `user` and `port` given here win over the file's.

        Raises UsageError when the file cannot be understood.
        """
        given = {"User": user, "Port": port}
        if not RELEVANT.search(self.text):
            # Nothing to find: the sockets can be opened before paramiko is imported, which takes a third of a `status`.
            return {key.lower(): str(value) for key, value in given.items() if value is not None}
        from paramiko.config import SSHConfig
        from paramiko.ssh_exception import ConfigParseError

        head = "".join(f"  {key} {value}\n" for key, value in given.items() if value is not None)
        try:
            return SSHConfig.from_text(f"Host *\n{head}Host *\n{self.text}").lookup(host)
        except (ConfigParseError, ValueError, KeyError) as error:
            raise UsageError(
                f"ssh_config cannot be read for host {host}: {error}", next_command=f"ssh -G {host}"
            ) from error


def _lines(path: Path, folder: Path, depth: int, block: str = "Host *") -> str:
    """The text of one file, Include lines replaced by what they name. `block` is the Host line it starts under."""
    if depth > INCLUDE_DEPTH:
        raise UsageError(f"{path}: Include is nested deeper than {INCLUDE_DEPTH} files")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [block]
    for line in text.splitlines():
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if word.lower() in ("host", "match"):
            block = line
        if word.lower() != "include":
            lines.append(line)
            continue
        for included in _included(rest, folder):
            lines += [_lines(included, folder, depth + 1, block), block]
    return "\n".join(lines) + "\n"


def _included(patterns: str, folder: Path) -> Iterator[Path]:
    for pattern in patterns.replace('"', "").split():
        for name in sorted(glob.glob(str(folder / Path(pattern).expanduser()))):  # noqa: PTH207  # Path.glob takes no absolute patterns
            yield Path(name)
