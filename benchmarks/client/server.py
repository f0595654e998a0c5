"""Streams at a known pace: every chunk carries the time at which it was handed to the kernel.

    python server.py PORT CHUNKS [PER_SECOND]

One process; streams are spread over the milliseconds of a period, so that the server itself makes no bursts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

MODEL = "clock"
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
    b"X-Upstream-Addr: 127.0.0.1:1\r\n\r\n"
)
COMMON = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1790000000, "model": MODEL}


def piece(event: dict[str, object]) -> bytes:
    data = b"data: " + json.dumps({**COMMON, **event}).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


ROLE = piece({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
# About 250 bytes, as vLLM's chunks are; the stamp has a fixed width, so that only it has to be put in.
TOKEN = piece({"choices": [{"index": 0, "delta": {"content": "@" * 20}, "logprobs": None, "finish_reason": None}]})
LAST = piece({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]})


class Stream(asyncio.Protocol):
    """One connection; a request is anything that ends with its whole body."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.left = 0
        self.got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, end, body = self.got.partition(b"\r\n\r\n")
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        if end and len(body) >= int(length.split(b":")[1]):
            self.got = b""
            self.left = self.server.chunks
            self.transport.write(HEAD + ROLE)  # type: ignore[attr-defined]
            self.server.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.left = 0

    def send(self) -> None:
        self.left -= 1
        write = self.transport.write  # type: ignore[attr-defined]
        write(TOKEN.replace(b"@" * 20, f"{time.perf_counter():020.6f}".encode()))
        if not self.left:
            usage = {"prompt_tokens": 10, "completion_tokens": self.server.chunks, "total_tokens": 10}
            done = b"data: [DONE]\n\n"
            end = f"{len(done):x}\r\n".encode() + done + b"\r\n0\r\n\r\n"
            write(LAST + piece({"choices": [], "usage": usage}) + end)


class Server:
    def __init__(self, chunks: int, per_second: float) -> None:
        self.chunks = chunks
        self.period = round(1000 / per_second)
        self.slots: list[list[Stream]] = [[] for _ in range(self.period)]
        self.count = 0

    def add(self, stream: Stream) -> None:
        # 7 and the period have no common factor: neighbours in time are far apart in the period.
        self.slots[self.count * 7 % self.period].append(stream)
        self.count += 1

    async def run(self) -> None:
        began, tick = time.perf_counter(), 0
        while True:
            tick += 1
            await asyncio.sleep(max(0.0, began + tick / 1000 - time.perf_counter()))
            slot = self.slots[tick % self.period]
            for stream in slot:
                if stream.left:
                    stream.send()
            slot[:] = [stream for stream in slot if stream.left]


async def main() -> None:
    port, chunks = int(sys.argv[1]), int(sys.argv[2])
    server = Server(chunks, float(sys.argv[3]) if len(sys.argv) > 3 else 40.0)
    await asyncio.get_running_loop().create_server(lambda: Stream(server), "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await server.run()


uvloop.run(main())
