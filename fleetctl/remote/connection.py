"""One SSH connection to one machine, kept for the whole command.

fabric connects; scripts run on the raw channel, because fabric's own `run` collects output in quadratic time
(facts/feasibility, section 1) and cannot tell a killed command from a lost connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fleetctl.errors import CommandError, FleetctlError, UnreachableError
from fleetctl.remote import shell
from fleetctl.remote.exchange import Ended, NotStarted, Outcome, TimeIsUp, exchange
from fleetctl.remote.hostkeys import HostKey
from fleetctl.remote.link import Link, connect, shown_host_key
from fleetctl.remote.target import SshTarget
from fleetctl.remote.user import name as user_name

GRACE = 2.0  # seconds the machine gets to report that it ended a command at its time limit
ENDED_BY_TIMEOUT = (124, 137)  # timeout(1): the command's limit was reached; KILL was needed


@dataclass(frozen=True)
class Result:
    """What a script answered. `rc` is its exit status, 128 + n when signal n ended it; output is decoded UTF-8."""

    rc: int
    stdout: str
    stderr: str
    seconds: float


class Connection:
    """Opens itself when it is first used, and again when it was lost between two scripts.

    `jump` is the connection to the target's jump host, shared by all that are behind it; without one it is made here.
    Every method may be called from several threads at once.
    """

    def __init__(self, target: SshTarget, jump: Connection | None = None) -> None:
        self.target = target
        self._shared_jump = jump is not None
        self._jump = jump if jump is not None or target.jump is None else Connection(target.jump)
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._failure: tuple[float, FleetctlError] | None = None
        self._closed = False

    def open(self) -> None:
        """Connect and log in, unless that has been done.

        Raises UnreachableError within 10 s, HostKeyError, AuthenticationError.
        """
        self._opened()

    def run(
        self, script: str, *, stdin: bytes = b"", timeout: float, on_output: Callable[[str], None] | None = None
    ) -> Result:
        """Run a POSIX sh `script` as root and wait for its end, at most `timeout` seconds (math.inf: no limit).

        `on_output` is called with each line of stdout as it comes; `Result.stdout` then holds only its last 64 KiB.
        Raises UnreachableError when the connection is lost, CommandError at the time limit or when the user cannot
        become root; neither names script, input or output. A script that fails is a Result, not an error.
        """
        link = self._opened()
        started = time.monotonic()
        command = shell.command(script, stdin, sudo=self.target.becomes_root, timeout=timeout)
        outcome = self._exchange(link, command, timeout, on_output)
        seconds = time.monotonic() - started
        if outcome.rc in ENDED_BY_TIMEOUT and seconds >= timeout:
            raise self._late(timeout, "it was ended on the machine; what it had done by then stays")
        if self.target.becomes_root and outcome.rc in (1, 126, 127) and "sudo" in outcome.stderr:
            self._require_sudo(link, outcome)
        return Result(outcome.rc, outcome.stdout, outcome.stderr, seconds)

    def host_key(self) -> HostKey:
        """The key the machine shows now; no login. Raises UnreachableError, and HostKeyError for its jump host."""
        return shown_host_key(self.target, self._gateway())

    def close(self) -> None:
        """Let go of the connection without waiting for the machine. Running scripts end with UnreachableError here."""
        self._closed = True
        if self._link is not None:
            self._link.close()
        if self._jump is not None and not self._shared_jump:
            self._jump.close()

    def _opened(self) -> Link:
        asked = time.monotonic()
        with self._lock:
            if self._link is not None and self._link.alive:
                return self._link
            if self._failure is not None and self._failure[0] > asked:
                raise self._failure[
                    1
                ]  # of an attempt we waited for: sixteen machines behind a dead jump host wait once
            try:
                self._link = self._connect()
            except FleetctlError as error:
                self._failure = (time.monotonic(), error)
                raise
            return self._link

    def _connect(self) -> Link:
        if self._link is not None:
            self._link.close()
        link = None if self._closed else connect(self.target, self._gateway())
        if link is None or self._closed:  # closed meanwhile: Ctrl-C does not wait for a login
            if link is not None:
                link.close()
            raise UnreachableError("the connection was closed here", machine=self.target.id)
        return link

    def _gateway(self) -> Link | None:
        """The jump host's connection. Its failure is this machine's, whoever else is behind it."""
        if self._jump is None:
            return None
        try:
            return self._jump._opened()
        except FleetctlError as error:
            raise type(error)(
                error.cause, machine=self.target.id, state=error.state, next_command=error.next_command
            ) from error

    def _exchange(
        self, link: Link, command: shell.Command, timeout: float, on_output: Callable[[str], None] | None
    ) -> Outcome:
        try:
            return exchange(link.transport, command, timeout + GRACE, on_output, link.watch.settle)
        except NotStarted as error:
            if link.alive:
                raise CommandError(
                    f"the SSH server opens no session for a command ({error})",
                    machine=self.target.id,
                    state="nothing was started there",
                    next_command=f"{self.target.ssh_command} true",
                ) from error
            raise self._lost(link, "nothing was started there") from error
        except Ended as error:
            raise self._lost(
                link, f"the command may still be running on the machine, for at most {timeout:g} s"
            ) from error
        except TimeIsUp as error:
            raise self._late(timeout, "it may still be running on the machine") from error

    def _lost(self, link: Link, state: str) -> UnreachableError:
        why = "the machine stopped answering" if link.watch.found_dead else "the connection was lost"
        return UnreachableError(
            f"{why} ({self.target.label})",
            machine=self.target.id,
            state=state,
            next_command=f"fleetctl check {self.target.id}, then the same command again",
        )

    def _late(self, timeout: float, state: str) -> CommandError:
        return CommandError(
            f"a command did not end within {timeout:g} s",
            machine=self.target.id,
            state=state,
            next_command=f"fleetctl check {self.target.id}",
        )

    def _require_sudo(self, link: Link, outcome: Outcome) -> None:
        """Raises CommandError when it was sudo that failed, not the script: asked, because both end with 1."""
        probe = shell.Command(shell.SUDO_WORKS, b"")
        rc = self._exchange(link, probe, 10, None).rc
        if rc == 0:
            return
        user = self.target.user or user_name()
        if rc == 127:
            why, step = (
                f"user {user} is not root and the machine has no sudo",
                "install sudo there, or use ssh.user: root",
            )
        else:
            words = outcome.stderr.strip().splitlines()
            why = f"user {user} cannot become root without a password ({words[0] if words else 'sudo -n failed'})"
            step = f"on the machine: visudo -f /etc/sudoers.d/fleetctl  and the line  {user} ALL=(root) NOPASSWD: ALL"
        raise CommandError(why, machine=self.target.id, state="nothing was started there", next_command=step)
