"""Public key authentication that never asks a question: it runs under cron as it does under a person's hands."""

from __future__ import annotations

import base64
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH
from paramiko.auth_strategy import AuthSource, AuthStrategy, SourceResult
from paramiko.config import SSHConfig
from paramiko.pkey import PKey, UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType, SSHException

from fleetctl.errors import AuthenticationError
from fleetctl.remote.target import SshTarget

DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
AGENT_PATIENCE = 2.0
SIGNING_PATIENCE = 8.0


@dataclass(frozen=True)
class Candidate:
    """A key that may be tried, and how a person knows it."""

    key: PKey
    name: str


class PublicKeys(AuthStrategy):
    """Tries the inventory's key, then ssh_config's or the default ones, then the agent's; no passwords, no prompts.

    Agent keys whose public half lies beside a wanted key file come before the others, and are all there is with
    IdentitiesOnly, as in ssh.
    """

    def __init__(self, target: SshTarget, deadline: float) -> None:
        super().__init__(ssh_config=SSHConfig())
        self.target = target
        self.deadline = deadline
        self.notes: list[str] = []
        self.agent_socket: socket.socket | None = None

    def authenticate(self, transport: paramiko.Transport) -> list[SourceResult]:
        """Log in. Raises AuthenticationError when no key is taken, SSHException when the connection is lost."""
        for candidate in self._candidates():
            transport.auth_timeout = max(self.deadline - time.monotonic(), 1.0)
            try:
                missing = transport.auth_publickey(self.target.user, candidate.key)
            except BadAuthenticationType as error:
                allowed = ", ".join(error.allowed_types)
                raise self._refused(f"the server takes no public keys (only {allowed})") from error
            except AuthenticationException as error:
                if "timeout" in str(error).lower():
                    raise self._silent(candidate) from error
                self.notes.append(f"{candidate.name} refused")
                if not transport.is_active():
                    # Nobody was asked yet: the connection broke. Later: MaxAuthTries was reached.
                    if len(self.notes) == 1 and not candidate.name.startswith("agent"):
                        raise SSHException("the connection was closed during the login") from error
                    raise self._refused("the server ended the login (too many keys tried?)") from error
                continue
            if missing:
                raise self._refused(f"{candidate.name} is not enough, the server also wants {', '.join(missing)}")
            return []
        raise self._refused("no key was taken" if self.notes else "there is no key to try")

    def get_sources(self) -> Iterator[AuthSource]:
        """What `authenticate` of the base class would try; ours goes its own way."""
        return iter(())

    def close(self) -> None:
        """Let go of the agent, if it was asked."""
        if self.agent_socket is not None:
            self.agent_socket.close()

    def _candidates(self) -> Iterator[Candidate]:
        files = self._files()
        tried: set[bytes] = set()
        for file in files:
            candidate = self._load(file)
            if candidate is not None:
                tried.add(candidate.key.asbytes())
                yield candidate
        wanted = {blob for file in files if (blob := _public_blob(file)) is not None}
        agents = [candidate for candidate in self._agent_keys() if candidate.key.asbytes() not in tried]
        yield from (candidate for candidate in agents if candidate.key.asbytes() in wanted)
        if not self.target.identities_only:
            yield from (candidate for candidate in agents if candidate.key.asbytes() not in wanted)

    def _files(self) -> list[str]:
        named = [*([self.target.key] if self.target.key is not None else []), *self.target.identities]
        return named or [str(Path(name).expanduser()) for name in DEFAULT_KEYS if Path(name).expanduser().exists()]

    def _load(self, file: str) -> Candidate | None:
        """The key in `file`; None, and a note why, when it cannot be used."""
        try:
            return Candidate(PKey.from_path(file), file)
        except FileNotFoundError:
            self.notes.append(f"{file} does not exist")
        except OSError as error:
            self.notes.append(f"{file} cannot be read ({(error.strerror or str(error)).lower()})")
        except (TypeError, paramiko.PasswordRequiredException):
            self.notes.append(f"{file} has a passphrase (ssh-add {file})")
        except (ValueError, SSHException, UnknownKeyType):
            self.notes.append(f"{file} is not a private key that can be used here")
        return None

    def _agent_keys(self) -> list[Candidate]:
        path = self.target.agent
        if path is None or path in ("SSH_AUTH_SOCK", "$SSH_AUTH_SOCK"):
            path = os.environ.get("SSH_AUTH_SOCK")
        if not path or path == "none":
            return []
        agent = AgentSSH()
        self.agent_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.agent_socket.settimeout(AGENT_PATIENCE)
        try:
            self.agent_socket.connect(str(Path(path).expanduser()))
            # paramiko's own Agent sets no timeout: an agent that hangs would hang every connection.
            agent._connect(self.agent_socket)  # type: ignore[attr-defined]  # the stubs leave private names out
        except (OSError, SSHException):
            self.notes.append(f"the ssh-agent at {path} does not answer")
            return []
        self.agent_socket.settimeout(SIGNING_PATIENCE)
        return [
            Candidate(key, f"agent key {getattr(key, 'comment', '') or key.get_name()}") for key in agent.get_keys()
        ]

    def _refused(self, why: str) -> AuthenticationError:
        target = self.target
        tried = f" ({'; '.join(self.notes)})" if self.notes else ""
        via = "".join(f"-o ProxyJump={hop.user}@{hop.address} " for hop in target.hops[:-1])
        key = f"-i {target.key} " if target.key is not None else ""
        return AuthenticationError(
            f"{target.label} refused user {target.user}: {why}{tried}",
            machine=target.id,
            state="nothing was started there",
            next_command=f"ssh-copy-id {key}{via}-p {target.port} {target.user}@{target.host}",
        )

    def _silent(self, candidate: Candidate) -> Exception:
        if candidate.name.startswith("agent"):
            return self._refused("the ssh-agent did not sign in time (does it want a confirmation or a touch?)")
        return SSHException("no answer during the login")


def _public_blob(file: str) -> bytes | None:
    try:
        words = Path(f"{file}.pub").read_text(encoding="utf-8", errors="replace").split()
        return base64.b64decode(words[1]) if len(words) >= 2 else None
    except (OSError, ValueError):
        return None
