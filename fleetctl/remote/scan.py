"""Which host keys the servers on the way to a machine show, before anybody is logged in to."""

from __future__ import annotations

from fleetctl.errors import HostKeyError
from fleetctl.remote import hostkeys
from fleetctl.remote.connection import Connection
from fleetctl.remote.hostkeys import HostKey
from fleetctl.remote.target import SshTarget


def scan(target: SshTarget) -> HostKey:
    """The key `target` shows now, over its jump host if it has one; nothing is sent to `target` itself.

    Raises UnreachableError, and HostKeyError for a jump host that is not known: `target.hops` gives the order to go in.
    """
    connection = Connection(target)
    try:
        return connection.host_key()
    finally:
        connection.close()


def untrusted(target: SshTarget) -> tuple[SshTarget, HostKey] | None:
    """The first server on the way to `target` whose key is unknown or has changed, and the key it shows; None when
    all are known. Raises UnreachableError."""
    for hop in target.hops:
        key = scan(hop)
        try:
            hostkeys.check(hop, key, hostkeys.known(hop))
        except HostKeyError:
            return hop, key
    return None
