"""A full `rollout --mtp N` of a fleet in use: what users notice, and how long it takes. After `make demo`.

    python benchmarks/rollout/bench.py [--rate 12] [--mtp 5]

Open loop: requests begin on time whatever is answered, four of five short, the fifth a stream of some three seconds,
each with a session of its own. Ends with 1 when a request failed, a stream was cut, more than `max_unavailable` were
out of rotation at once, or the rollout took more than 1.2 times ceil(instances / max_unavailable) times the median time
of one instance in that run (from its drain to its return), the canary's apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp

from fleetctl.fleet import load

ROOT = Path(__file__).parents[2]
SHORT, LONG = 5, 180  # tokens
HEALTH_SECONDS = 0.1


class Users:
    """What everybody saw. `least`: the fewest instances in rotation at any look."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self.url, self.model = url, model
        self.headers = {"Authorization": f"Bearer {key}"}
        self.seen: Counter[str] = Counter()
        self.least = 10**6
        self.enough = asyncio.Event()

    async def come(self, rate: float) -> None:
        timeout = aiohttp.ClientTimeout(total=120)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=self.headers) as http:
            look = asyncio.create_task(self.look(http))
            tasks, started, number = set(), time.monotonic(), 0
            while not self.enough.is_set():
                number += 1
                tasks.add(asyncio.create_task(self.one(http, number)))
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
            await asyncio.gather(*tasks)
            await look

    async def one(self, http: aiohttp.ClientSession, number: int) -> None:
        stream = number % 5 == 0
        body = {
            "model": self.model,
            "max_tokens": LONG if stream else SHORT,
            "ignore_eos": True,
            "stream": stream,
            "messages": [{"role": "user", "content": f"hello {number}"}],
        }
        try:
            headers = {"X-Session-ID": f"user-{number}"}
            async with http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                text = await answer.text()
                whole = "data: [DONE]" in text if stream else '"finish_reason"' in text
                kind = "stream" if stream else "short"
                self.seen[f"{kind} whole" if answer.status == 200 and whole else f"{kind} {answer.status} cut"] += 1
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            self.seen[f"failed: {type(error).__name__}"] += 1

    async def look(self, http: aiohttp.ClientSession) -> None:
        while not self.enough.is_set():
            async with http.get(f"{self.url}/health") as answer:
                self.least = min(self.least, (await answer.json(content_type=None))["up"])
            await asyncio.sleep(HEALTH_SECONDS)


async def rollout(words: list[str]) -> tuple[float, float, dict[str, float]]:
    """Seconds in all, those of the canary, and of each instance from its drain until the balancer sends to it again."""
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleetctl", *words, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    seconds = time.monotonic() - started
    if process.returncode != 0:
        sys.exit(f"fleetctl {' '.join(words)} ended with {process.returncode}:\n{err.decode()[-3000:]}")
    took: dict[str, float] = {}
    steps = json.loads(out)["results"]
    for step in steps:
        if "/" in step["target"]:
            took[step["target"]] = took.get(step["target"], 0.0) + step["seconds"]
    canary = next(step["target"] for step in steps if step["step"] == "canary")
    return seconds, took[canary], took


async def measure(options: argparse.Namespace) -> int:
    fleet = load.load(load.find(None))
    model, total = fleet.inventory.model.name, len(fleet.instances)
    share = str(fleet.inventory.rollout.max_unavailable)
    out = total * int(share[:-1]) // 100 if share.endswith("%") else int(share)
    users = Users(os.environ["FLEET_URL"], os.environ["FLEET_API_KEY"], model)
    coming = asyncio.create_task(users.come(options.rate))
    await asyncio.sleep(3)
    seconds, canary, took = await rollout(["rollout", "--mtp", str(options.mtp), "--yes"])
    await asyncio.sleep(2)
    users.enough.set()
    await coming
    each = statistics.median(took.values())
    bound = 1.2 * math.ceil(total / out) * each
    whole = sum(count for kind, count in users.seen.items() if kind.endswith("whole"))
    rows = [
        ("requests", f"{sum(users.seen.values())}", "", True),
        ("failed or cut", f"{sum(users.seen.values()) - whole}", "0", sum(users.seen.values()) == whole),
        ("fewest in rotation", f"{users.least} of {total}", f"at least {total - out}", users.least >= total - out),
        ("one instance, median", f"{each:.1f} s", f"n = {len(took)}", len(took) == total),
        ("the canary alone", f"{canary:.1f} s", "", True),
        ("the rollout without it", f"{seconds - canary:.1f} s", f"at most {bound:.1f} s", seconds - canary <= bound),
    ]
    for name, value, wanted, kept in rows:
        print(f"{name:<24}{value:>12}   {wanted:<20}{'' if not wanted else 'met' if kept else 'NOT MET'}")
    print(json.dumps({"schema": 1, "seen": users.seen, "least": users.least, "seconds": seconds, "canary": canary,
                      "median": each, "bound": bound}))  # fmt: skip
    return 0 if all(kept for *_, kept in rows) else 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=12.0)
    parser.add_argument("--mtp", type=int, default=5)
    sys.exit(asyncio.run(measure(parser.parse_args())))


main()
