"""One command on one raw channel: input, both outputs and the end, without a deadlock and without losing track."""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetctl.remote.output import Output
from fleetctl.remote.shell import Command

if TYPE_CHECKING:
    from paramiko.channel import Channel

    from fleetctl.remote.transport import Transport

CHUNK = 32_000  # bytes; one SSH packet
SLICE = 0.5  # seconds between two looks at the clock
# A background process that keeps the script's stdout open must not keep us: what it prints later than this is not ours.
LINGER = 1.0


class NotStarted(Exception):
    """The command was not handed over: nothing runs on the machine."""


class Ended(Exception):
    """The connection ended before the command did."""


class TimeIsUp(Exception):
    """The command did not end in time."""


@dataclass(frozen=True)
class Outcome:
    """Exit status, or 128 + n after signal n, and both outputs."""

    rc: int
    stdout: str
    stderr: str


def exchange(
    transport: Transport,
    command: Command,
    timeout: float,
    on_line: Callable[[str], None] | None,
    on_start: Callable[[], None],
) -> Outcome:
    """Run `command` to its end, at most `timeout` seconds. Raises NotStarted, Ended, TimeIsUp.

    `on_start` is called when the machine has taken the command.
    """
    deadline = time.monotonic() + timeout
    channel = _start(transport, command)
    on_start()
    try:
        _send(channel, command.stdin)
        out, err = Output(on_line), Output()
        _drain(channel, out, err, deadline)
        out.end()
        return Outcome(_status(transport, channel), out.text(), err.text())
    finally:
        with suppress(Exception):
            channel.close()


def _start(transport: Transport, command: Command) -> Channel:
    from paramiko.ssh_exception import SSHException

    try:
        channel = transport.open_session()
        channel.exec_command(command.line)
    except (SSHException, EOFError, OSError) as error:
        raise NotStarted(str(error) or type(error).__name__) from error
    return channel


def _send(channel: Channel, stdin: bytes) -> None:
    """Hand over the input: at once when one packet holds it, else while the output is read."""
    if len(stdin) <= CHUNK:
        _send_all(channel, stdin)
    else:
        threading.Thread(target=_send_all, args=(channel, stdin), name="fleetctl-stdin", daemon=True).start()


def _send_all(channel: Channel, stdin: bytes) -> None:
    # A script that ends without reading its input closes the channel: not an error.
    with suppress(OSError, EOFError):
        for start in range(0, len(stdin), CHUNK):
            channel.sendall(stdin[start : start + CHUNK])
        channel.shutdown_write()


def _drain(channel: Channel, out: Output, err: Output, deadline: float) -> None:
    """Read both outputs until the command has ended."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    ended: float | None = None
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeIsUp
        poll.poll(min(left, SLICE) * 1000)
        if _read(channel, out, err):
            continue
        if channel.eof_received or channel.closed:
            # The pipe stays readable after the end of output, so wait for the status instead of spinning on it.
            while _read(channel, out, err):
                pass
            if channel.status_event.wait(min(max(deadline - time.monotonic(), 0), SLICE)):
                return
        elif channel.status_event.is_set():
            ended = ended or time.monotonic()
            if time.monotonic() - ended > LINGER:
                return


def _read(channel: Channel, out: Output, err: Output) -> bool:
    """Take what has arrived, without waiting. False when there was nothing."""
    some = False
    if channel.recv_ready():
        out.feed(channel.recv(1 << 20))
        some = True
    if channel.recv_stderr_ready():
        err.feed(channel.recv_stderr(1 << 20))
        some = True
    return some


def _status(transport: Transport, channel: Channel) -> int:
    """The exit status; without one and without a signal the session itself has ended."""
    if channel.exit_status >= 0:
        return channel.exit_status
    name = transport.signals.pop(channel.chanid, None)
    if name is None:
        raise Ended
    return 128 + getattr(signal.Signals, f"SIG{name}", signal.Signals.SIGTERM).value
