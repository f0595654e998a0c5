"""paramiko's transport with what fleetctl needs from it. Imported late: paramiko takes 120 ms to import."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import paramiko
from paramiko.channel import Channel
from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_GLOBAL_REQUEST
from paramiko.message import Message
from paramiko.packet import Packetizer

from fleetctl.remote.hostkeys import Entry, preferred

# paramiko writes lost connections as tracebacks to stderr when nobody handles its logger.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class ListeningPacketizer(Packetizer):
    """Remembers when the peer was last heard, on the monotonic clock."""

    def __init__(self, socket: Any) -> None:
        super().__init__(socket)
        self.heard = time.monotonic()

    def read_message(self) -> tuple[int, Message]:
        packet: tuple[int, Message] = super().read_message()
        self.heard = time.monotonic()
        return packet


def _on_channel_request(channel: Channel, message: Message) -> None:
    """Keep the name of the signal that ended a command: paramiko drops it, and then it looks like a lost connection."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal" and isinstance(channel.transport, Transport):
        message.get_boolean()
        channel.transport.signals[channel.chanid] = message.get_text()
    message.packet.seek(start)
    channel._handle_request(message)  # type: ignore[attr-defined]  # the stubs leave private names out


class Transport(paramiko.Transport):
    """Asks for the host key types that are known, hears whether the peer lives, knows what signal ended a command."""

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # the stubs leave private names out
        MSG_CHANNEL_REQUEST: _on_channel_request,
    }

    def __init__(self, sock: Any, known: Sequence[Entry] = (), **options: Any) -> None:
        super().__init__(sock, packetizer_class=ListeningPacketizer, **options)
        security = self.get_security_options()
        security.key_types = preferred(known, security.key_types)
        self.signals: dict[int, str] = {}

    @property
    def heard(self) -> float:
        """When the last packet came, on the monotonic clock."""
        return self.packetizer.heard if isinstance(self.packetizer, ListeningPacketizer) else time.monotonic()

    def ask_for_life(self) -> None:
        """Send a request that any living SSH server answers, and do not wait for the answer.

        paramiko's set_keepalive asks for no answer, and global_request(wait=True) waits for ever.
        """
        message = Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        self._send_user_message(message)  # type: ignore[attr-defined]  # the stubs leave private names out
