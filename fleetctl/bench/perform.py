"""One run from its first request to its last line on disk, while somebody watches the fleet."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from os import cpu_count
from pathlib import Path
from typing import Any

from fleetctl import __version__
from fleetctl.bench import load as engine
from fleetctl.bench.load import Limits, Load, Timeouts
from fleetctl.bench.samples import Backend, Failure, Header, Run, Writer, read
from fleetctl.bench.scenarios import Bench, Rival, Scenario
from fleetctl.bench.target import Target
from fleetctl.errors import FleetctlError

WATCH_SECONDS = 2.0
BLIND = 3  # looks in a row that saw nothing: it cannot be seen
SETTLE_SECONDS = 1.5  # the balancer's workers add up their counters every half second

Counters = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Eyes:
    """Ways to look at the fleet from beside the load. Each may block, and answers None for what cannot be seen.

    `in_flight`: requests in flight at the balancer, everybody's. `requests`: requests it has sent on so far. `rival`
    asks the same prompts with another client, and gives what that one measured.
    """

    in_flight: Callable[[], int | None] = lambda: None
    requests: Callable[[], int | None] = lambda: None
    counters: Callable[[], Counters | None] = lambda: None
    kill: Callable[[Backend], None] | None = None
    rival: Rival | None = None


def about_client() -> tuple[dict[str, str], dict[str, Any]]:
    """Versions of what measures, and the computer that it runs on."""
    versions = {"fleetctl": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("aiohttp", "uvloop", "orjson")}
    return versions, {"cpus": cpu_count(), "machine": platform.machine(), "system": platform.release()}


def perform(
    scenario: Scenario,
    target: Target,
    header: Header,
    path: Path,
    *,
    eyes: Eyes | None = None,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    tick: Callable[[Load], None] | None = None,
) -> Run:
    """Run it; the samples are in `path`, which must not exist, and are read back from there.

    Ctrl-C ends the run in order: what was measured is valid, and marked as partial.
    """
    stop: list[Callable[[str], None]] = []
    begun = time.time() - time.monotonic()
    header.versions, header.client = about_client()
    header.started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    writer = Writer(path, header, mask=target.key.reveal())

    async def work() -> None:
        load = Load(target, writer, limits=limits, timeouts=timeouts, tick=tick)
        stop.append(load.stop)
        watch = _Watch(load, eyes or Eyes())
        async with load:
            await watch.before()
            try:
                await scenario.run(Bench.of(load, header.seed, watch.eyes.kill, watch.eyes.rival))
            except BaseException as error:
                load.stop(str(getattr(error, "cause", None) or repr(error)))
                raise
            finally:
                await watch.after()
                writer.end(_ending(load, watch, clock=time.time() - time.monotonic() - begun))

    try:
        engine.run(work, lambda: stop[0]("interrupted") if stop else None)
    finally:
        writer.close()
    return read(path)


def _ending(load: Load, watch: _Watch, clock: float) -> dict[str, Any]:
    """`clock`: seconds by which the wall clock jumped; nothing here is timed by it, but its dates are its own."""
    return {
        "at": round(load.now(), 6),
        "partial": load.stopped,
        "reason": load.reason,
        "self_check": asdict(load.self_check()),
        "foreign_requests": watch.foreign,
        "counters_before": watch.counters_before,
        "counters_after": watch.counters_after,
        "clock_jumped": round(clock, 1) if abs(clock) > 1 else 0,
    }


class _Watch:
    """Other people's traffic while the load runs, and the counters before and after it."""

    def __init__(self, load: Load, eyes: Eyes) -> None:
        self.load = load
        self.eyes = eyes
        self.foreign: int | None = None
        self.counters_before: Counters | None = None
        self.counters_after: Counters | None = None
        self._requests: int | None = None
        self._watching: asyncio.Task[None] | None = None

    async def before(self) -> None:
        self.counters_before = await self._look(self.eyes.counters)
        self._requests = await self._look(self.eyes.requests)
        self._watching = asyncio.create_task(self._watch())

    async def after(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._requests is not None:
            await asyncio.sleep(SETTLE_SECONDS)
            requests = await self._look(self.eyes.requests)
            if requests is not None and requests >= self._requests:
                # Those that were given up before an answer may have reached the balancer or not.
                sent = sum(s.sent is not None and s.failure is not Failure.CONNECT for s in self.load.samples)
                self.foreign = max(0, requests - self._requests - sent)
        if self.counters_before is not None:
            self.counters_after = await self._look(self.eyes.counters)

    async def _watch(self) -> None:
        """What is in flight beyond our own: at least that many are somebody else's."""
        failed, limit, before = 0, self.load.limits.foreign, 0
        while failed < BLIND:
            mine, asked = self.load.in_flight, self.load.asked
            seen = await self._look(self.eyes.in_flight)
            failed = failed + 1 if seen is None else 0
            if seen is not None:
                own = max(mine, self.load.in_flight) + self.load.asked - asked
                foreign = max(0, seen - own)
                self.load.event("foreign", in_flight=foreign)
                if limit is not None and min(before, foreign) > limit:
                    self.load.stop(f"{foreign} foreign requests in flight, twice more than {limit} (--max-foreign)")
                before = foreign
            await asyncio.sleep(WATCH_SECONDS)

    async def _look(self, eye: Callable[[], Any]) -> Any:
        """In a thread of its own. What cannot be seen does not end the run."""
        with suppress(FleetctlError, OSError):
            return await asyncio.get_running_loop().run_in_executor(None, eye)
        return None
