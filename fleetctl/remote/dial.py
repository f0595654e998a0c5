"""Sockets for SSH: plain TCP without Nagle's delay, or the two ends of a ProxyCommand.

Standard library only, so that machines are already answering while paramiko is still being imported.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time

from fleetctl.errors import UnreachableError
from fleetctl.remote.target import SshTarget


def dial(target: SshTarget, deadline: float) -> socket.socket:
    """A connected socket to `target`, which no jump host is in front of. `deadline` is on the monotonic clock.

    Raises UnreachableError. Every address of the name is tried in turn.
    """
    if target.proxy_command is not None:
        return _proxy(target)
    failure: OSError | None = None
    addresses = _addresses(target, deadline)
    for tried, (family, address) in enumerate(addresses):
        try:
            return _connect(family, address, max(deadline - time.monotonic(), 0.5) / (len(addresses) - tried))
        except OSError as error:
            failure = error
    raise _unreachable(target, failure or OSError("the name has no address"))


def _connect(family: int, address: tuple[str, int], timeout: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it Nagle's algorithm and delayed ACKs cost 40 ms at the login and again at every command.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(timeout)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _addresses(target: SshTarget, deadline: float) -> list[tuple[int, tuple[str, int]]]:
    """The addresses of the target's name. The resolver knows no deadline: it is asked in a thread that may be left."""
    found: list[tuple[int, tuple[str, int]]] = []
    failure: list[OSError] = []

    def ask() -> None:
        try:
            for family, _, _, _, address in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
                found.append((family, address))  # type: ignore[arg-type]  # IPv6 addresses carry two more fields
        except OSError as error:
            failure.append(error)

    if _is_numeric(target.host):
        ask()
    else:
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(max(deadline - time.monotonic(), 0.1))
        if thread.is_alive():
            raise _unreachable(target, TimeoutError("the name server does not answer"))
    if failure:
        raise _unreachable(target, failure[0])
    return list(found)


def _is_numeric(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except OSError:
        return False
    return True


def _proxy(target: SshTarget) -> socket.socket:
    """Our end of a socket pair whose other end is the ProxyCommand's stdin and stdout.

    paramiko.ProxyCommand spins at 100 % CPU when its command ends, and knows no shell.
    """
    command = target.proxy_command or ""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us: the command ends when its socket does
        )
    threading.Thread(target=process.wait, name="fleetctl-proxy", daemon=True).start()  # leaves no zombie
    return ours


def _unreachable(target: SshTarget, error: OSError) -> UnreachableError:
    return UnreachableError(
        f"cannot reach {target.label}: {reason(error)}",
        machine=target.id,
        state="nothing was started there",
        next_command=target.ssh_command,
    )


def reason(error: BaseException) -> str:
    """An operating system error in words for a person."""
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused (nothing listens on that port)"
    if isinstance(error, TimeoutError):
        return (
            str(error) if error.args and error.errno is None and str(error) != "timed out" else "no answer within 8 s"
        )
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
