"""The load engine: asks, times, counts, and watches itself. aiohttp on uvloop, JSON by orjson; only `bench` imports it.

Open loop: requests leave at times fixed beforehand, however slow the answers are, and every latency counts from that
time, so that a stalled server cannot hide its stall by keeping the client waiting (coordinated omission). Closed loop:
N users who each wait for their answer before they ask again; its latencies are service times at concurrency N.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
import orjson
import uvloop

from fleetctl.bench import stats
from fleetctl.bench.answer import Stream, Whole, fail
from fleetctl.bench.samples import Failure, Sample, Writer, masked
from fleetctl.bench.target import Session, Target

T = TypeVar("T")
BEAT = 0.005
READ_BUFFER = 1 << 20  # at aiohttp's 64 KiB a long stream throttles itself (vllm#39963)
KEEP = 10.0  # seconds; below the 75 s of nginx, so that a kept connection is never one just closed
LAG_LIMIT, CPU_LIMIT, DISPATCH_LIMIT = 0.005, 0.60, 0.005


@dataclass(frozen=True)
class Ask:
    """One request to make. `pinned`: exactly `max_tokens` come, so that all requests are the same work."""

    cell: str
    session: Session
    prompt: str
    max_tokens: int
    stream: bool = True
    pinned: bool = True
    warmup: bool = False

    def body(self, model: str) -> bytes:
        document: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": self.stream,
        }
        if self.stream:
            document["stream_options"] = {"include_usage": True}
        if self.pinned:
            document |= {"ignore_eos": True, "min_tokens": self.max_tokens}
        return orjson.dumps(document)


@dataclass(frozen=True)
class Timeouts:
    """Seconds: to connect, of silence within an answer (prefill of 240K tokens takes two minutes), in all."""

    connect: float = 10.0
    silent: float = 600.0
    total: float = 3600.0


@dataclass(frozen=True)
class Limits:
    """Where a run stops by itself. `in_flight`: above that a request is counted as not sent rather than piled up.

    `foreign`: requests of others in flight, seen twice in a row; None: however many.
    """

    errors: int = 20
    seconds: float = 3600.0
    in_flight: int = 4096
    foreign: int | None = None


@dataclass
class SelfCheck:
    """Was it the client that was slow? Only of the time in which requests were under way."""

    lag: float | None = None
    lag_max: float | None = None
    cpu: float | None = None
    dispatch: float | None = None
    reasons: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, lags: list[float], cpu: float | None, dispatch: list[float]) -> SelfCheck:
        """`lag`: how late the event loop ran, `dispatch`: how late requests left, seconds at p99."""
        found = cls(cpu=cpu, lag_max=max(lags, default=None))
        found.lag, lag_name = _tail(lags)
        found.dispatch, dispatch_name = _tail(dispatch)
        if found.lag is not None and found.lag > LAG_LIMIT:
            what = f"the event loop ran {found.lag * 1000:.1f} ms late at {lag_name}"
            found.reasons.append(f"{what}, limit {LAG_LIMIT * 1000:.0f}")
        if cpu is not None and cpu > CPU_LIMIT:
            found.reasons.append(f"{cpu:.0%} of a core was used here, limit {CPU_LIMIT:.0%}")
        if found.dispatch is not None and found.dispatch > DISPATCH_LIMIT:
            what = f"requests left {found.dispatch * 1000:.1f} ms late at {dispatch_name}"
            found.reasons.append(f"{what}, limit {DISPATCH_LIMIT * 1000:.0f}")
        return found


def _missed(late: float) -> list[float]:
    """How late the loop was, at this beat and at those that it missed meanwhile: a second in which it stood still was
    met by two hundred of them and not by one."""
    return [late - number * BEAT for number in range(int(late / BEAT) + 1)]


def _tail(values: list[float]) -> tuple[float | None, str]:
    """The highest percentile up to p99 that these values carry, and its name."""
    for percent in (99, 95, 50):
        if (value := stats.quantile(values, percent).value) is not None:
            return value, f"p{percent}"
    return max(values, default=None), "most"


class Load:
    """One run's client. Use as `async with`; every sample goes to the writer as it ends and stays in `samples`.

    `asked`, `measured`, `begun`: requests, those that ended and were no warm-up, cells. `tick` is called about twice a
    second, for progress and for whoever watches the fleet.
    """

    def __init__(
        self,
        target: Target,
        writer: Writer | None = None,
        *,
        timeouts: Timeouts | None = None,
        limits: Limits | None = None,
        tick: Callable[[Load], None] | None = None,
    ) -> None:
        self.target = target
        self.writer = writer
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or Limits()
        self.samples: list[Sample] = []
        self.in_flight = 0
        self.errors = 0
        self.asked = self.measured = self.begun = 0
        self.cell = ""
        self.reason: str | None = None
        self._tick = tick
        self._origin = time.perf_counter()
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lags: list[float] = []
        self._dispatch: list[float] = []
        self._busy = self._cpu = 0.0
        self._pace: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Load:
        timeout = aiohttp.ClientTimeout(
            total=self.timeouts.total, sock_connect=self.timeouts.connect, sock_read=self.timeouts.silent
        )
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP),
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
            headers={
                "Authorization": f"Bearer {self.target.key.reveal()}",
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",
            },
        )
        self._origin = time.perf_counter()
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        await self._http.close()

    def now(self) -> float:
        """Seconds since the run's start, by a clock that does not jump."""
        return time.perf_counter() - self._origin

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self, reason: str) -> None:
        """No further requests; those under way are given up and marked as interrupted."""
        if not self.stopped:
            self.reason = reason
            self._stopped.set()
            for task in self._tasks:
                task.cancel()

    def event(self, what: str, **more: Any) -> None:
        if self.writer is not None:
            self.writer.event(self.now(), what, **more)

    async def pause(self, seconds: float) -> bool:
        """Wait; True when the run was stopped meanwhile."""
        if seconds > 0:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), seconds)
        return self.stopped

    async def beside(self, call: Callable[[], T]) -> T | None:
        """What a call that blocks answers, in a thread of its own; None when the run is stopped before it ends."""
        pool = ThreadPoolExecutor(1)
        waiting = pool.submit(call)
        pool.shutdown(wait=False)
        while not waiting.done():
            if await self.pause(0.1):
                return None
        return waiting.result()

    async def open_loop(self, arrivals: Iterable[tuple[float, Ask]]) -> None:
        """Each request at its time, in seconds from now; returns when all are answered."""
        start = self.now()
        started: set[asyncio.Task[None]] = set()
        for offset, ask in arrivals:
            if await self.pause(start + offset - self.now()):
                break
            if len(self._tasks) >= self.limits.in_flight:
                self._drop(ask, start + offset)
                continue
            started.add(self._start(self._open(ask, start + offset)))
            started = {task for task in started if not task.done()} if len(started) > 1024 else started
        await self._settle(started)

    async def closed_loop(self, users: int, asks: Iterable[Ask]) -> None:
        """`users` ask at once, each the next one when its answer is there; returns when all are answered."""
        waiting = iter(asks)

        async def user() -> None:
            for ask in waiting:
                if self.stopped:
                    return
                await self.one(ask, self.now())

        await self._settle({self._start(user()) for _ in range(users)})

    async def single(self, ask: Ask) -> Sample | None:
        """One request on its own; None when the run was stopped before it could be made."""
        before = len(self.samples)
        await self.closed_loop(1, [ask])
        return self.samples[-1] if len(self.samples) > before else None

    async def one(self, ask: Ask, scheduled: float) -> Sample:
        """One request from its time to its last byte. What goes wrong is in the sample, never raised."""
        self.asked += 1
        sample = Sample(
            number=self.asked,
            cell=ask.cell,
            session=ask.session.key,
            scheduled=scheduled,
            warmup=ask.warmup,
            stream=ask.stream,
            home=ask.session.home,
            asked_tokens=ask.max_tokens if ask.pinned else None,
        )
        self.in_flight += 1
        self.cell = ask.cell
        try:
            await self._exchange(ask, sample)
        except asyncio.CancelledError:
            fail(sample, Failure.INTERRUPTED, self.reason or "cancelled")
            raise
        except Exception as error:
            fail(sample, *_explain(error, sample, self.timeouts))
        finally:
            self.in_flight -= 1
            sample.end = self.now()
            self._take(sample)
        return sample

    async def _open(self, ask: Ask, scheduled: float) -> None:
        await self.one(ask, scheduled)

    async def _exchange(self, ask: Ask, sample: Sample) -> None:
        model = self.target.model
        answer: Stream | Whole = Stream(sample, model, ask.max_tokens) if ask.stream else Whole(sample, model)
        body = ask.body(model)
        name = f"bench-{sample.number}-{ask.session.key[-8:]}"
        headers = {self.target.session_header: ask.session.key, "X-Request-ID": name}
        sample.sent = self.now()
        url = self.target.completions
        # To be sent on elsewhere would be another way than the one that is measured.
        async with self._http.post(url, data=body, headers=headers, allow_redirects=False) as response:
            sample.headers = self.now()
            sample.status = response.status
            sample.backend = response.headers.get("X-Upstream-Addr") or None
            sample.request_id = response.headers.get("X-Request-Id") or name
            if response.status != 200:
                if (elsewhere := response.headers.get("Location")) is not None:
                    fail(sample, Failure.STATUS, f"sent on to {elsewhere}")
                    return
                said = (await response.content.read(2048)).decode(errors="replace")
                fail(sample, Failure.STATUS, " ".join(said.split()) or "no body")
                return
            if ask.stream and "event-stream" not in response.content_type:
                said = (await response.content.read(2048)).decode(errors="replace")
                fail(sample, Failure.GARBLED, f"{response.content_type} instead of a stream: {' '.join(said.split())}")
                return
            async for data in response.content.iter_any():
                at = self.now()
                answer.feed(data, at)
                if at - (sample.last or sample.role or sample.headers) > self.timeouts.silent:
                    fail(sample, Failure.TIMEOUT, f"{self.timeouts.silent:g} s without a token, and it goes on sending")
                    return
                if answer.over:
                    return
        answer.close()

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _settle(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait for all. A bug is raised, being interrupted is not."""
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def _drop(self, ask: Ask, scheduled: float) -> None:
        self.asked += 1
        sample = Sample(self.asked, ask.cell, ask.session.key, scheduled, ask.warmup, ask.stream, ask.session.home)
        fail(sample, Failure.DROPPED, f"{len(self._tasks)} requests were in flight already")
        self._take(sample)

    def _take(self, sample: Sample) -> None:
        sample.detail = sample.detail and masked(sample.detail, self.target.key.reveal())
        self.samples.append(sample)
        if self.writer is not None:
            self.writer.sample(sample)
        if sample.sent is not None and not sample.warmup:
            self._dispatch.append(sample.sent - sample.scheduled)
        self.measured += not sample.warmup
        if sample.failed:
            self.errors += 1
            if self.errors > self.limits.errors:
                self.stop(f"more than {self.limits.errors} requests failed (--max-errors)")

    async def _beat(self) -> None:
        """Looks how late the loop is, and what share of a core this process takes; enforces the time limit."""
        last_tick, cpu, busy_since = 0.0, time.process_time(), time.perf_counter()
        while True:
            due = time.perf_counter() + BEAT
            await asyncio.sleep(BEAT)
            at, used = time.perf_counter(), time.process_time()
            if self.in_flight:
                self._lags += _missed(max(0.0, at - due))
                self._busy += at - busy_since
                self._cpu += used - cpu
            busy_since, cpu = at, used
            if at - last_tick < 0.5:
                continue
            last_tick = at
            if self.now() > self.limits.seconds:
                self.stop(f"{self.limits.seconds:g} s are over (--max-seconds)")
            if self.writer is not None:
                self.writer.flush()
            if self._tick is not None:
                self._tick(self)

    def self_check(self) -> SelfCheck:
        return SelfCheck.of(self._lags, self._cpu / self._busy if self._busy > 0.5 else None, self._dispatch)


def _explain(error: Exception, sample: Sample, timeouts: Timeouts) -> tuple[Failure, str]:
    """The class of a failure, and its words."""
    began = sample.headers is not None
    if isinstance(error, aiohttp.SocketTimeoutError):
        where = "within the answer" if began else "before the answer"
        return Failure.TIMEOUT, f"{timeouts.silent:g} s of silence {where}"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Failure.CONNECT, f"no connection within {timeouts.connect:g} s"
    if isinstance(error, asyncio.TimeoutError):
        return Failure.TIMEOUT, f"not done within {timeouts.total:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure.CONNECT, str(error.os_error or error)
    if isinstance(error, aiohttp.ClientPayloadError):
        return Failure.CUT, "the connection ended within the answer"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError):
        return Failure.CUT, f"the connection ended {'within' if began else 'before'} the answer"
    return Failure.GARBLED, f"{type(error).__name__}: {error}"


def constant(rate: float, seconds: float) -> Iterator[float]:
    """Arrival times `1/rate` apart."""
    for number in range(int(rate * seconds)):
        yield number / rate


def poisson(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Arrival times of a true Poisson process: not stretched to end at a round time."""
    dice = random.Random(f"arrivals/{seed}")  # noqa: S311
    at = dice.expovariate(rate)
    while at < seconds:
        yield at
        at += dice.expovariate(rate)


def run(work: Callable[[], Awaitable[T]], stop: Callable[[], None]) -> T:
    """Run on a loop of its own; Ctrl-C calls `stop` once, so that the work can end in order, and a second one kills."""
    loop = uvloop.new_event_loop()
    switch, thresholds, handler = sys.getswitchinterval(), gc.get_threshold(), signal.getsignal(signal.SIGINT)
    # The thread that watches the fleet must not hold the interpreter for its usual 5 ms, nor the collector stop it all.
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop()

    try:
        asyncio.set_event_loop(loop)
        loop.add_signal_handler(signal.SIGINT, interrupted)
        return loop.run_until_complete(work())
    finally:
        with suppress(Exception):
            loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
        signal.signal(signal.SIGINT, handler)  # the loop leaves its own behind
        sys.setswitchinterval(switch)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
