"""One client process: N streams at once, and how late each chunk was received.

    python client.py ours|aiohttp|httpx PORT STREAMS

Prints one JSON line: lag in ms (receipt minus the server's stamp), CPU, and for ours what its self-check says.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

LAGS: list[float] = []
BODY = {"model": "clock", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": True}


def look(line: str) -> None:
    """What the seed's scripts and most others do with a line."""
    if not line.startswith("data: {"):
        return
    at = time.perf_counter()
    event = json.loads(line[6:])
    for choice in event["choices"]:
        if text := choice["delta"].get("content"):
            LAGS.append(at - float(text))


async def with_httpx(url: str, streams: int) -> None:
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:

        async def one() -> None:
            async with client.stream("POST", url, json=BODY) as response:
                async for line in response.aiter_lines():
                    look(line)

        await asyncio.gather(*(one() for _ in range(streams)))


async def with_aiohttp(url: str, streams: int) -> None:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> None:
            async with session.post(url, json=BODY) as response:
                lines: AsyncIterator[bytes] = response.content
                async for line in lines:
                    look(line.decode())

        await asyncio.gather(*(one() for _ in range(streams)))


def ours(url: str, streams: int) -> dict[str, Any]:
    from fleetctl.bench import answer, load
    from fleetctl.bench.load import Ask, Load
    from fleetctl.bench.target import Session, Target
    from fleetctl.fleet.secrets import Secret

    class Stamped(answer.Stream):
        """The engine's own reader; only the difference to the stamp is taken beside what it does anyway."""

        def _chunk(self, event: dict[str, Any], at: float) -> None:
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    LAGS.append(at + origin[0] - float(text))
            super()._chunk(event, at)

    load.Stream = Stamped  # type: ignore[misc]
    origin: list[float] = []

    async def work() -> dict[str, Any]:
        target = Target(url.removesuffix("/v1/chat/completions"), Secret("sk-bench"), "clock", ())
        async with Load(target) as run:
            origin.append(time.perf_counter() - run.now())
            asks = [Ask("c", Session(f"s{n}", None), "x", 240) for n in range(streams)]
            await run.closed_loop(streams, asks)
            failed = sum(not sample.ok for sample in run.samples)
            return {**asdict(run.self_check()), "failed": failed}

    return load.run(work, lambda: None)


def main() -> None:
    kind, url, streams = sys.argv[1], f"http://127.0.0.1:{sys.argv[2]}/v1/chat/completions", int(sys.argv[3])
    began, used = time.perf_counter(), time.process_time()
    said: dict[str, Any] = {}
    if kind == "ours":
        said = ours(url, streams)
    else:
        asyncio.run({"aiohttp": with_aiohttp, "httpx": with_httpx}[kind](url, streams))
    cpu = (time.process_time() - used) / (time.perf_counter() - began)
    LAGS.sort()
    at = {name: 1000 * LAGS[min(len(LAGS) - 1, int(len(LAGS) * share))] for name, share in SHARES.items()}
    print(json.dumps({"client": kind, "streams": streams, "chunks": len(LAGS), **at, "cpu": cpu, "check": said}))


SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
main()
