"""The generator: a small HTTP client on asyncio that reports what a user of the balancer would see."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field

STAMP = re.compile(rb"data: (\d+\.\d+)\n")


def question(wishes: dict[str, str]) -> bytes:
    """The body; wishes are what the user says, the one thing that every router passes on as it is."""
    words = " ".join(f"{name.replace('_', '-').lower()}={value}" for name, value in wishes.items())
    messages = [{"role": "user", "content": words or "hello"}]
    return json.dumps({"model": "m", "messages": messages, "stream": "X_Chunks" in wishes}).encode()


HELLO = question({})


@dataclass
class Answer:
    """Status 0: the connection ended without an answer. `whole`: the body ended as HTTP says it must."""

    status: int
    seconds: float
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    whole: bool = True
    late: list[float] = field(default_factory=list)

    @property
    def backend(self) -> str:
        return self.headers.get("x-upstream-addr", "")


class Client:
    """One kept-alive connection. Like browsers and SDKs, it looks for a closed connection before it reuses one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, session: str, **wishes: str) -> Answer:
        """One completion. `wishes`: what the backend is to do (backend.py), such as X_Delay_Ms="20"."""
        started = time.perf_counter()
        try:
            await self._connect()
            return await self._ask(session, wishes, started)
        except (ConnectionError, asyncio.IncompleteReadError, OSError):
            self.close()
            return Answer(0, time.perf_counter() - started, whole=False)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    async def _connect(self) -> None:
        if self.reader is not None and self.reader.at_eof():
            self.close()
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def _ask(self, session: str, wishes: dict[str, str], started: float) -> Answer:
        assert self.reader is not None
        assert self.writer is not None
        body = question(wishes) if wishes else HELLO
        self.writer.write(
            (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"X-Session-ID: {session}\r\nX-SMG-Routing-Key: {session}\r\nAuthorization: Bearer sk-bench\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            ).encode()
            + body
        )
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        sent = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if ": " in line)}
        answer = Answer(int(head[0].split(" ")[1]), 0.0, headers=sent)
        if sent.get("transfer-encoding") == "chunked":
            await self._chunks(answer)
        else:
            answer.body = await self.reader.readexactly(int(sent.get("content-length", "0")))
        if sent.get("connection", "").lower() == "close":
            self.close()
        answer.seconds = time.perf_counter() - started
        return answer

    async def _chunks(self, answer: Answer) -> None:
        assert self.reader is not None
        try:
            while size := int(await self.reader.readline() or b"", 16):
                data = (await self.reader.readexactly(size + 2))[:-2]
                now = time.time()
                answer.late += [now - float(stamp) for stamp in STAMP.findall(data)]
                answer.body += data
            await self.reader.readline()
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            answer.whole = False
            self.close()


async def once(port: int, session: str, **wishes: str) -> Answer:
    client = Client(port)
    answer = await client.ask(session, **wishes)
    client.close()
    return answer


async def get(port: int, path: str, method: str = "GET", **headers: str) -> bytes:
    """The body of a small answer, from a loopback listener or a backend."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    writer.write(f"{method} {path} HTTP/1.0\r\nHost: x\r\n{extra}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = await (reader.readexactly(int(length[0].split(b":")[1])) if length else reader.read())
    writer.close()
    return body
