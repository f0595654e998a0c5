"""Connecting: socket, host key, login, watch. Every failure is told in words, with what to type next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetctl.errors import FleetctlError, UnreachableError
from fleetctl.remote import hostkeys
from fleetctl.remote.dial import dial, reason
from fleetctl.remote.hostkeys import HostKey
from fleetctl.remote.target import SshTarget
from fleetctl.remote.watch import Watch

if TYPE_CHECKING:
    from fleetctl.remote.auth import PublicKeys
    from fleetctl.remote.transport import Transport

PATIENCE = 8.0  # seconds for a connection to stand, all its stages together
TRIES = 3
FIRST_PAUSE = 0.2  # seconds; doubled each time
QUICK = 2.0  # a failure that took longer than this is not tried again: the person has waited enough
CLOSING = 0.3  # seconds to let a connection go before it is left to itself


@dataclass(frozen=True)
class Link:
    """A connection that is logged in."""

    fabric: Any
    transport: Transport
    watch: Watch

    @property
    def alive(self) -> bool:
        return self.transport.is_active()

    def close(self) -> None:
        """Close without waiting for the peer."""
        self.watch.stop()
        # paramiko joins its own thread for up to 10 s, which a peer that does not read can make it take.
        closer = threading.Thread(target=_quietly, args=(self.fabric.close,), name="fleetctl-close", daemon=True)
        closer.start()
        closer.join(CLOSING)


def _quietly(close: Callable[[], object]) -> None:
    """What a connection says while it is let go interests nobody."""
    with suppress(Exception):
        close()


def connect(target: SshTarget, gateway: Link | None) -> Link:
    """Connect and log in. A transport failure is tried three times within seconds, anything else once.

    Raises UnreachableError within 10 s, HostKeyError, AuthenticationError.
    """
    started = time.monotonic()
    try:
        return _Attempt(target, gateway).link()
    except UnreachableError as error:
        if not _is_transient(error) or time.monotonic() - started > QUICK:
            raise
    # Only now: tenacity takes 29 ms to import, and most connections stand at the first try.
    import tenacity

    time.sleep(FIRST_PAUSE)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_transient),
        stop=tenacity.stop_any(tenacity.stop_after_attempt(TRIES - 1), tenacity.stop_after_delay(QUICK)),
        wait=tenacity.wait_exponential(multiplier=2 * FIRST_PAUSE),
        reraise=True,
    )
    return retrying(lambda: _Attempt(target, gateway).link())


def shown_host_key(target: SshTarget, gateway: Link | None) -> HostKey:
    """The key the server shows. Nothing is sent to it. Raises UnreachableError."""
    try:
        _Attempt(target, gateway, looking=True).link()
    except _Shown as shown:
        return shown.key
    raise UnreachableError(f"{target.label} shows no host key", machine=target.id)


def _is_transient(error: BaseException) -> bool:
    """Of the transport, so worth another try; never a host key or a login."""
    return type(error) is UnreachableError


class _Shown(Exception):
    def __init__(self, key: HostKey) -> None:
        super().__init__(key.fingerprint)
        self.key = key


_IMPORTING = threading.Lock()


def libraries() -> None:
    """Import fabric and paramiko, which takes a third of a `status`: by one thread, while the others wait.

    Two that import packages whose modules import each other can wait for each other, and Python then fails one of them.
    """
    with _IMPORTING:
        import fabric  # type: ignore[import-untyped]  # noqa: F401  # ships no types
        import paramiko  # noqa: F401

        from fleetctl.remote import auth, transport  # noqa: F401


class _Attempt:
    """One try to connect. `looking`: stop at the host key."""

    def __init__(self, target: SshTarget, gateway: Link | None, looking: bool = False) -> None:
        self.target = target
        self.gateway = gateway
        self.looking = looking
        self.deadline = time.monotonic() + PATIENCE

    @property
    def left(self) -> float:
        return max(self.deadline - time.monotonic(), 0.5)

    def link(self) -> Link:
        sock = self._socket()
        # After the socket is on its way: the server greets in the meantime.
        libraries()
        from paramiko.ssh_exception import SSHException

        from fleetctl.remote.auth import PublicKeys

        keys = PublicKeys(self.target, self.deadline)
        connection = self._fabric(sock, keys)
        try:
            connection.open()
            return Link(connection, connection.transport, Watch(connection.transport))
        except FleetctlError:
            raise
        except (SSHException, EOFError, OSError) as error:
            raise self._explain(error) from error
        finally:
            keys.close()
            if not connection.is_connected:
                connection.client.close()
                sock.close()

    def _socket(self) -> Any:
        if self.gateway is None:
            return dial(self.target, self.deadline)
        from paramiko.ssh_exception import SSHException

        try:
            return self.gateway.transport.open_channel(
                "direct-tcpip", (self.target.host, self.target.port), ("", 0), timeout=self.left
            )
        except (SSHException, EOFError, OSError) as error:
            raise self._explain_hop(error) from error

    def _fabric(self, sock: Any, keys: PublicKeys) -> Any:
        import fabric
        from paramiko.config import SSHConfig

        from fleetctl.remote.transport import Transport

        target, known = self.target, hostkeys.known(self.target)

        def transport(sock: Any, **options: Any) -> Transport:
            made = Transport(sock, known, **options)
            made.banner_timeout = self.left
            made.channel_timeout = PATIENCE
            return made

        connection = fabric.Connection(
            target.host,
            user=target.user,
            port=target.port,
            gateway=False,
            # An empty, lazy configuration: ssh_config is in the target already, and fabric's own files are not asked.
            config=fabric.Config(lazy=True, ssh_config=SSHConfig()),
            connect_kwargs={
                "sock": sock,
                "timeout": self.left,
                "transport_factory": transport,
                "auth_strategy": keys,
                "allow_agent": False,
                "look_for_keys": False,
            },
        )
        connection.client.set_missing_host_key_policy(_policy(target, known, self.looking))
        return connection

    def _explain(self, error: Exception) -> UnreachableError:
        target = self.target
        if time.monotonic() >= self.deadline - 0.5:
            why = f"it takes connections but does not answer within {PATIENCE:g} s (frozen, or not an SSH server)"
        elif "Incompatible" in str(error):
            why = f"its SSH server and this one have no algorithm in common ({error})"
        elif target.proxy_command is not None:
            why = f"the ProxyCommand ended: {target.proxy_command}"
        elif isinstance(error, OSError):
            why = reason(error)
        else:
            why = "the connection was closed before the login (too many logins at once, or sshd going down)"
        return UnreachableError(
            f"cannot connect to {target.label}: {why}",
            machine=target.id,
            state="nothing was started there",
            next_command=target.ssh_command,
        )

    def _explain_hop(self, error: Exception) -> UnreachableError:
        hop = self.target.jump
        code = getattr(error, "code", None)
        why = {1: "forwarding is not allowed there (AllowTcpForwarding)", 2: "it cannot connect to that address"}.get(
            code or 0, "it does not answer"
        )
        return UnreachableError(
            f"cannot reach {self.target.label} through {hop.label if hop else 'the jump host'}: {why}",
            machine=self.target.id,
            state="nothing was started there",
            next_command=self.target.ssh_command,
        )


def _policy(target: SshTarget, known: tuple[hostkeys.Entry, ...], looking: bool) -> Any:
    """paramiko asks its policy about every key, because its own table is left empty: it knows no patterns and
    compares the first type of key only."""
    from paramiko.client import MissingHostKeyPolicy

    class KnownKeysOnly(MissingHostKeyPolicy):
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            shown = HostKey(key.get_name(), key.get_base64())
            if looking:
                raise _Shown(shown)
            hostkeys.check(target, shown, known)

    return KnownKeysOnly()
