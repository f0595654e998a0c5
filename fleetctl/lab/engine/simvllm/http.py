"""A small HTTP/1.1 server on asyncio: keep-alive, chunked streams, one write an answer.

asyncio sets TCP_NODELAY on every connection by itself. Header names arrive in lower case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
MAX_HEAD = 65536


@dataclass(frozen=True)
class HttpRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    client: str
    target: str


class Reply:
    """How a handler answers one request: `send` once, or `start`, `chunk`..., `end`."""

    def __init__(self, connection: Connection, keep: bool) -> None:
        self._connection = connection
        self._keep = keep
        self.headers: dict[str, str] = {}
        self.status = 0
        self.sent = 0

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        self.status = status
        self._keep = self._keep and not self._connection.server.closing
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
        merged = {"date": _date(), "server": "uvicorn", **headers, **self.headers}
        lines += [f"{name}: {value}" for name, value in merged.items()]
        if not self._keep:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    def send(self, status: int, body: bytes = b"", kind: str | None = "application/json") -> None:
        headers = {"content-length": str(len(body))}
        if kind and body:
            headers["content-type"] = kind
        self.sent = len(body)
        self._connection.write(self._head(status, headers) + body)

    def start(self, kind: str) -> None:
        self._connection.write(
            self._head(200, {"content-type": kind, "transfer-encoding": "chunked", "cache-control": "no-cache"})
        )

    def chunk(self, data: bytes) -> None:
        self.sent += len(data)
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._connection.write(b"0\r\n\r\n")

    @property
    def keep(self) -> bool:
        return self._keep


Handler = Callable[[HttpRequest, Reply], Awaitable[None]]


class Server:
    """Shared by all connections: the handler, the idle limit in seconds, and who is connected."""

    def __init__(self, handler: Handler, idle: float) -> None:
        self.handler = handler
        self.idle = idle
        self.closing = False
        self.connections: set[Connection] = set()

    @property
    def busy(self) -> int:
        return sum(connection.task is not None for connection in self.connections)

    def shut(self, abort: bool) -> None:
        """Closes idle connections, or all of them with what is in flight."""
        self.closing = True
        for connection in list(self.connections):
            if abort or connection.task is None:
                connection.close(abort)


class Connection(asyncio.Protocol):
    """One client; requests are answered one after the other."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._scanned = 0
        self._continued = False
        self._timer: asyncio.TimerHandle | None = None
        self._client = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self._client = f"{peer[0]}:{peer[1]}"
        self.server.connections.add(self)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        self._transport = None
        self._busy()
        if self.task:
            self.task.cancel()

    def write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def close(self, abort: bool = False) -> None:
        if self._transport:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.task is None:
            self._next()

    def _rest(self) -> None:
        self._busy()
        self._timer = asyncio.get_running_loop().call_later(self.server.idle, self.close)

    def _busy(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> None:
        """Starts the next request when all of it is here."""
        end = self._buffer.find(b"\r\n\r\n", max(0, self._scanned - 3))
        self._scanned = len(self._buffer)
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self._refuse(431)
            return
        self._scanned = end
        try:
            first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            method, target, version = first.split(" ")
            headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
            body, used = self._body(headers, end + 4)
        except ValueError:
            self._refuse(400)
            return
        if body is None:
            if headers.get("expect", "").lower() == "100-continue" and not self._continued:
                self._continued = True
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        del self._buffer[:used]
        self._scanned, self._continued = 0, False
        self._busy()
        wish = headers.get("connection", "").lower()
        keep = wish != "close" and (version == "HTTP/1.1" or wish == "keep-alive")
        request = HttpRequest(method, target.partition("?")[0], headers, body, self._client, target)
        self.task = asyncio.get_running_loop().create_task(self._answer(request, Reply(self, keep)))

    def _body(self, headers: dict[str, str], start: int) -> tuple[bytes | None, int]:
        """The body and where it ends, None while some of it is missing."""
        if headers.get("transfer-encoding", "").lower() != "chunked":
            end = start + int(headers.get("content-length") or 0)
            return (bytes(self._buffer[start:end]), end) if len(self._buffer) >= end else (None, 0)
        body = bytearray()
        while (line := self._buffer.find(b"\r\n", start)) >= 0:
            size = int(bytes(self._buffer[start:line]).split(b";")[0], 16)
            start = line + 2 + size + 2
            if len(self._buffer) < start:
                break
            if size == 0:
                return bytes(body), start
            body += self._buffer[line + 2 : line + 2 + size]
        return None, 0

    def _refuse(self, status: int) -> None:
        Reply(self, False).send(status, b"Invalid HTTP request received.", "text/plain; charset=utf-8")
        self.close()

    async def _answer(self, request: HttpRequest, reply: Reply) -> None:
        try:
            await self.server.handler(request, reply)
        finally:
            self.task = None
        if not reply.keep or self.server.closing:
            self.close()
            return
        self._rest()
        if self._buffer:
            self._next()


_now = (0, "")


def _date() -> str:
    global _now  # noqa: PLW0603  one cached string a second
    second = int(time.time())
    if _now[0] != second:
        _now = (second, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second)))
    return _now[1]
