"""What the balancer adds at a load that a fleet really has: 1,000 requests a second, and 32 streams."""

from __future__ import annotations

import asyncio
import statistics
import time

from client import Client, once


async def paced(port: int, rate: int, seconds: float) -> list[float]:
    """Seconds of each request, sent on a clock whether or not the last one is back."""
    free: list[Client] = []
    taken: list[float] = []

    async def one(number: int) -> None:
        client = free.pop() if free else Client(port)
        answer = await client.ask(f"user-{number % 300}")
        if answer.status == 200:
            taken.append(answer.seconds)
        free.append(client)

    started, tasks = time.perf_counter(), []
    for number in range(int(rate * seconds)):
        wait = started + number / rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    for client in free:
        client.close()
    return taken


async def lateness(port: int, streams: int = 32, chunks: int = 100) -> list[float]:
    """Seconds from a chunk's stamp at the backend to its arrival here."""
    answers = await asyncio.gather(
        *(once(port, f"stream-{number}", X_Chunks=str(chunks), X_Gap_Ms="20") for number in range(streams))
    )
    return [late for answer in answers for late in answer.late]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def p50(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")
