"""One SSH connection to one machine, kept for the whole command.

fabric connects and hops; scripts run on the raw channel, because fabric's own `run` collects output in quadratic
time (facts/feasibility, section 1) and cannot tell a killed command from a lost connection.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetctl.errors import AuthenticationError, CommandError, FleetctlError, HostKeyError, UnreachableError
from fleetctl.remote import hostkeys, shell
from fleetctl.remote.dial import dial, reason
from fleetctl.remote.output import Output
from fleetctl.remote.target import SshTarget
from fleetctl.remote.watch import Watch

if TYPE_CHECKING:
    from paramiko.channel import Channel

    from fleetctl.remote.auth import PublicKeys
    from fleetctl.remote.transport import Transport

PATIENCE = 8.0  # seconds for a connection to stand, all its stages together
TRIES = 3
CHUNK = 32_000  # one SSH packet
EXTRA = 2.0  # seconds the machine gets to report that it ended a command at its time limit


@dataclass(frozen=True)
class Result:
    """What a script answered. `rc` is its exit status, 128 + n when signal n ended it; output is decoded UTF-8."""

    rc: int
    stdout: str
    stderr: str
    seconds: float


class Connection:
    """A connection that opens itself when it is first used, and again when it was lost between two scripts.

    `jump` is an open-able connection to the target's jump host, shared by those behind it; without one it is made
    here. Every method may be used from several threads at once.
    """

    def __init__(self, target: SshTarget, jump: Connection | None = None) -> None:
        self.target = target
        self._jump = jump if jump is not None or target.jump is None else Connection(target.jump)
        self._owns_jump = jump is None
        self._lock = threading.Lock()
        self._fabric: Any = None
        self._watch: Watch | None = None

    def open(self) -> None:
        """Connect and log in, unless that has been done. Transport failures are tried three times within seconds.

        Raises UnreachableError within 10 s, HostKeyError, AuthenticationError.
        """
        with self._lock:
            if self._transport() is None:
                self._open_with_retries()

    def run(
        self, script: str, *, stdin: bytes = b"", timeout: float, on_output: Callable[[str], None] | None = None
    ) -> Result:
        """Run a POSIX sh `script` as root and wait for its end, at most `timeout` seconds (math.inf: no limit).

        `on_output` is called with each line of stdout as it comes; `Result.stdout` then holds the end of it only.
        Raises UnreachableError when the connection is lost, CommandError at the time limit or when the user may not
        become root. Neither names script or input. A script that fails is a Result, not an error.
        """
        self.open()
        started = time.monotonic()
        command = shell.command(script, stdin, sudo=self.target.becomes_root, timeout=timeout)
        output = self._execute(command, timeout, on_output)
        result = Result(output.rc, output.stdout.text(), output.stderr.text(), time.monotonic() - started)
        if result.rc in (124, 137) and result.seconds >= timeout:
            raise self._late(timeout, "it was ended on the machine; what it had done by then stays")
        if result.rc in (1, 126, 127) and self.target.becomes_root and "sudo" in result.stderr:
            self._need_sudo()
        return result

    def close(self) -> None:
        """Let go of the connection. Never waits for the machine."""
        if self._watch is not None:
            self._watch.stop()
        if self._fabric is not None:
            self._fabric.close()
        if self._owns_jump and self._jump is not None:
            self._jump.close()
