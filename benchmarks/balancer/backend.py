"""One backend of the benchmark: answers like a vLLM server, does as its message says, stamps its chunks.

x-delay-ms=N: wait before the answer. x-chunks=N x-gap-ms=N: a stream. Header X-Health-Ms (in a PUT to /health): /health
becomes that slow. GET /stats: how many completions began and ended. Usage: backend.py PORT
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

stats = {"began": 0, "ended": 0}
health = {"seconds": 0.0}

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


async def headers_of(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    return method, path, {k.lower(): v for k, v in (line.split(": ", 1) for line in lines if ": " in line)}


async def body_of(reader: asyncio.StreamReader, sent: dict[str, str]) -> bytes:
    if sent.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(sent.get("content-length", "0")))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


async def stream(writer: asyncio.StreamWriter, chunks: int, gap: float) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(chunks):
        await asyncio.sleep(gap)
        data = b"data: %.6f\n\n" % time.time()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()
    end = b"data: [DONE]\n\n"
    writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))


MESSAGE = re.compile(rb'"content":\s*"(x-[^"]*)"')


def wishes(body: bytes) -> dict[str, str]:
    found = MESSAGE.search(body)
    return dict(word.split("=", 1) for word in found[1].decode().split()) if found else {}


async def completion(writer: asyncio.StreamWriter, sent: dict[str, str], port: int) -> None:
    stats["began"] += 1
    if "x-chunks" in sent:
        await stream(writer, int(sent["x-chunks"]), int(sent.get("x-gap-ms", "20")) / 1000)
    else:
        await asyncio.sleep(int(sent.get("x-delay-ms", "0")) / 1000)
        body = b'{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":' + (
            b'{"role":"assistant","content":"%d"},"finish_reason":"stop"}]}' % port
        )
        writer.write(OK % (len(body), body))
    stats["ended"] += 1


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    try:
        while (head := await headers_of(reader)) is not None:
            method, path, sent = head
            body = await body_of(reader, sent)
            if path == "/health":
                if method == "PUT":
                    health["seconds"] = int(sent["x-health-ms"]) / 1000
                else:
                    await asyncio.sleep(health["seconds"])
                writer.write(OK % (0, b""))
            elif path == "/stats":
                numbers = json.dumps(stats).encode()
                writer.write(OK % (len(numbers), numbers))
            elif method == "POST":
                await completion(writer, wishes(body), port)
            else:
                models = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
                writer.write(OK % (len(models), models))
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(lambda r, w: serve(r, w, port), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
