"""What is asked of a fleet, and in which order: one class a scenario, its fields its parameters (docs/bench.md).

Nothing is judged here: samples go to disk, and results.py makes tables and verdicts of them, today or next year.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, cycle, islice
from typing import Any, ClassVar, Protocol

from fleetctl.bench.load import Ask, Load, constant, poisson
from fleetctl.bench.prompts import Prompts
from fleetctl.bench.samples import Backend
from fleetctl.bench.target import Session, Sessions, Target
from fleetctl.errors import CommandError, UsageError

SHORT, LONG = 500, 4000  # prompt tokens of the two requests that calibrate the length of prompts
PER_USER = 10
Rival = Callable[[Sequence[str]], dict[str, float]]  # prompts -> what another client measured with them


@dataclass
class Bench:
    """A run under way. `kill` ends an instance the hard way; None where nobody may. `rival` as in perform.Eyes."""

    load: Load
    target: Target
    seed: int
    sessions: Sessions
    prompts: Prompts
    kill: Callable[[Backend], None] | None = None
    rival: Rival | None = None

    @classmethod
    def of(
        cls, load: Load, seed: int, kill: Callable[[Backend], None] | None = None, rival: Rival | None = None
    ) -> Bench:
        return cls(load, load.target, seed, Sessions(load.target, seed), Prompts(seed), kill, rival)

    def cell(self, name: str, **more: Any) -> None:
        self.load.begun += 1
        self.load.event("cell", cell=name, **more)

    async def warm_up(self, cell: str, sessions: Iterator[Session], users: int, tokens: int) -> None:
        """Every lane once, unmeasured: the first requests of a shape pay for compilation and caches."""
        asks = [Ask(cell, next(sessions), self.prompts.short(), min(tokens, 32), warmup=True) for _ in range(users)]
        await self.load.closed_loop(users, asks)

    async def calibrate(self) -> None:
        """Learn from the server's own counts how many characters make a token. Raises CommandError without them."""
        seen = []
        for tokens in (SHORT, LONG):
            ask = Ask("calibration", self.sessions.any(), self.prompts.of(tokens), 1, pinned=False, warmup=True)
            sample = await self.load.single(ask)
            if sample is None or self.load.stopped:
                return
            if sample.prompt_tokens is None:
                raise CommandError(f"the prompt's length cannot be calibrated: {sample.why}: {sample.detail}")
            seen.append((len(ask.prompt), sample.prompt_tokens))
        (short, few), (long, many) = seen
        self.prompts.calibrate(long - short, many - few)


class Scenario(Protocol):
    """`settled` gives the parameters that were left open their values for this target."""

    name: ClassVar[str]

    def settled(self, target: Target) -> Scenario: ...

    async def run(self, bench: Bench) -> None: ...


def parameters(scenario: Any) -> dict[str, Any]:
    """For the header: what the run is repeated with."""
    return asdict(scenario)


@dataclass(frozen=True)
class Distribution:
    """M1, M2: many sessions once each. `keys` 0: 20 for every backend, at least 300."""

    name: ClassVar[str] = "distribution"
    keys: int = 0
    users: int = 8

    def settled(self, target: Target) -> Distribution:
        return replace(self, keys=self.keys or max(300, 20 * len(target.backends)))

    async def run(self, bench: Bench) -> None:
        bench.cell("keys", users=self.users)
        asks = (Ask("keys", bench.sessions.any(), bench.prompts.short(), 1) for _ in range(self.keys))
        await bench.load.closed_loop(self.users, asks)


@dataclass(frozen=True)
class Affinity:
    """M2b: every session several times, first one after the other, then all at once."""

    name: ClassVar[str] = "affinity"
    sessions: int = 60
    serial: int = 2
    at_once: int = 3
    users: int = 8

    def settled(self, target: Target) -> Affinity:
        return self

    async def run(self, bench: Bench) -> None:
        sessions = [bench.sessions.any() for _ in range(self.sessions)]
        for cell, rounds, users in (
            ("serial", [[one] for one in sessions * self.serial], self.users),
            ("at once", [[one] * self.at_once for one in sessions], self.users * self.at_once),
        ):
            bench.cell(cell, users=users)
            asks = (Ask(cell, one, bench.prompts.short(), 1) for group in rounds for one in group)
            await bench.load.closed_loop(users, asks)


@dataclass(frozen=True)
class Instance:
    """12.2: concurrency of one instance: all sessions land on it. `backend`: 67/2; the table's first by default."""

    name: ClassVar[str] = "instance"
    backend: str = ""
    users: tuple[int, ...] = (1, 2, 4, 8)
    tokens: int = 300
    seconds: float = 20.0

    def settled(self, target: Target) -> Instance:
        chosen = find(target, self.backend or target.backends[0].id)
        if max(self.users) > target.max_sequences:
            raise UsageError(f"an instance runs {target.max_sequences} requests at once, not {max(self.users)}")
        return replace(self, backend=chosen.id)

    async def run(self, bench: Bench) -> None:
        backend = find(bench.target, self.backend)
        for users in self.users:
            lanes = bench.sessions.aimed((backend,))
            await _closed_cell(bench, f"c={users}", lanes, users, self.tokens, self.seconds)


@dataclass(frozen=True)
class Sequential:
    """12.3: one request after the other, the backends in turn. `requests` 0: four for every backend, at least 60."""

    name: ClassVar[str] = "sequential"
    requests: int = 0
    tokens: int = 300

    def settled(self, target: Target) -> Sequential:
        return replace(self, requests=self.requests or max(60, 4 * len(target.backends)))

    async def run(self, bench: Bench) -> None:
        lanes = bench.sessions.spread()
        await bench.warm_up("one user", lanes, len(bench.target.backends), self.tokens)
        bench.cell("one user", users=1)
        asks = (Ask("one user", next(lanes), bench.prompts.short(), self.tokens) for _ in range(self.requests))
        await bench.load.closed_loop(1, asks)


@dataclass(frozen=True)
class Scaling:
    """M3: more and more users, evenly over the backends, in passes up and down so that drift shows.

    `users` empty: 1, 2, 4 ... up to what the fleet runs at once. A cell ends after `seconds` and ten requests a user.
    """

    name: ClassVar[str] = "scaling"
    users: tuple[int, ...] = ()
    tokens: int = 300
    seconds: float = 20.0
    passes: int = 3
    stream: bool = True

    def settled(self, target: Target) -> Scaling:
        most = len(target.backends) * target.max_sequences
        doubling = tuple(2**n for n in range(most.bit_length()) if 2**n <= most)
        return replace(self, users=self.users or doubling)

    async def run(self, bench: Bench) -> None:
        for number in range(1, self.passes + 1):
            order = self.users if number % 2 else tuple(reversed(self.users))
            for users in order:
                cell = f"c={users} pass {number}"
                lanes = bench.sessions.spread()
                await _closed_cell(bench, cell, lanes, users, self.tokens, self.seconds, stream=self.stream)


@dataclass(frozen=True)
class Mixed:
    """M4: small requests at a steady rate to one instance and to others, while that one reads long prompts."""

    name: ClassVar[str] = "mixed"
    prompt: int = 65_536
    times: int = 3
    rate: float = 2.0
    tokens: int = 32
    apart: float = 20.0
    backend: str = ""

    def settled(self, target: Target) -> Mixed:
        if len(target.backends) < 2:
            raise UsageError("mixed needs two backends: one that reads, and others")
        chosen = find(target, self.backend or target.backends[0].id)
        return replace(self, prompt=fitting(target, self.prompt, self.tokens), backend=chosen.id)

    async def run(self, bench: Bench) -> None:
        backend = find(bench.target, self.backend)
        others = tuple(one for one in bench.target.backends if one != backend)
        await bench.calibrate()
        long = [Ask("large", bench.sessions.on(backend), bench.prompts.of(self.prompt), 1) for _ in range(self.times)]
        same, other = bench.sessions.aimed((backend,)), bench.sessions.aimed(others)
        await bench.warm_up("same", same, 2, self.tokens)
        await bench.warm_up("other", other, len(others), self.tokens)
        bench.cell("mixed", backend=backend.address)
        over = asyncio.Event()

        async def small(cell: str, lanes: Iterator[Session]) -> None:
            def arrivals() -> Iterator[tuple[float, Ask]]:
                for number in count():
                    if over.is_set():
                        return
                    yield number / self.rate, Ask(cell, next(lanes), bench.prompts.short(), self.tokens)

            await bench.load.open_loop(arrivals())

        async def large() -> None:
            try:
                for ask in long:
                    if await bench.load.pause(self.apart):
                        return
                    await bench.load.single(ask)
                await bench.load.pause(self.apart)
            finally:
                over.set()

        await asyncio.gather(small("same", same), small("other", other), large())


@dataclass(frozen=True)
class Soak:
    """M5: requests at a fixed offered rate, whatever becomes of them. `rate` 0: one every two seconds a backend."""

    name: ClassVar[str] = "soak"
    rate: float = 0.0
    seconds: float = 300.0
    window: float = 30.0
    tokens: int = 300

    def settled(self, target: Target) -> Soak:
        return replace(self, rate=self.rate or len(target.backends) / 2)

    async def run(self, bench: Bench) -> None:
        await bench.warm_up("soak", bench.sessions.spread(), 2 * len(bench.target.backends), self.tokens)
        bench.cell("soak", rate=self.rate, at_zero=bench.load.now())
        times = poisson(self.rate, self.seconds, bench.seed)
        arrivals = ((at, Ask("soak", bench.sessions.any(), bench.prompts.short(), self.tokens)) for at in times)
        await bench.load.open_loop(arrivals)


@dataclass(frozen=True)
class LongContext:
    """Time to the first token of long, cold prompts, one at a time, the backends in turn.

    Six times: the fewest with which minimum and maximum enclose the median with 95 % confidence.
    """

    name: ClassVar[str] = "longctx"
    lengths: tuple[int, ...] = (10_000, 240_000)
    times: int = 6
    tokens: int = 16

    def settled(self, target: Target) -> LongContext:
        return replace(self, lengths=tuple(fitting(target, length, self.tokens) for length in self.lengths))

    async def run(self, bench: Bench) -> None:
        await bench.calibrate()
        lanes = bench.sessions.spread()
        await bench.warm_up("warm-up", lanes, len(bench.target.backends), self.tokens)
        for length in self.lengths:
            cell = f"{length} tokens"
            bench.cell(cell, users=1, length=length)
            # Before one is under way: to write a prompt of a megabyte takes longer than the loop may be late.
            asks = [Ask(cell, next(lanes), bench.prompts.of(length), self.tokens) for _ in range(self.times)]
            await bench.load.closed_loop(1, asks)


@dataclass(frozen=True)
class Failover:
    """An instance dies under load: how long until its sessions are answered again, and until it is back.

    `rate`: requests per second to its sessions, and as many to all others together; what can be seen is as fine as
    that. `before`, `after`: seconds. After the kill it goes on until the instance answers again, at most `after`.
    """

    name: ClassVar[str] = "failover"
    backend: str = ""
    rate: float = 10.0
    sessions: int = 8
    tokens: int = 4
    before: float = 5.0
    after: float = 120.0

    def settled(self, target: Target) -> Failover:
        if len(target.backends) < 2:
            raise UsageError("failover needs two backends: one that dies, and one that takes over")
        if not self.backend:
            raise UsageError("failover kills an instance: name it with --backend 67/2")
        return replace(self, backend=find(target, self.backend).id)

    async def run(self, bench: Bench) -> None:
        if bench.kill is None:
            raise CommandError("nobody here can kill an instance")
        victim = find(bench.target, self.backend)
        others = tuple(one for one in bench.target.backends if one != victim)
        own = list(islice(bench.sessions.aimed((victim,)), self.sessions))
        rest = list(islice(bench.sessions.aimed(others), max(self.sessions, len(others))))
        await bench.warm_up("warm-up", iter(own + rest), len(own + rest), self.tokens)
        over, kill = asyncio.Event(), bench.kill

        async def ask(cell: str, sessions: list[Session]) -> None:
            lanes = cycle(sessions)

            def arrivals() -> Iterator[tuple[float, Ask]]:
                for at in constant(self.rate, self.before + self.after):
                    if over.is_set():
                        return
                    yield at, Ask(cell, next(lanes), bench.prompts.short(), self.tokens)

            await bench.load.open_loop(arrivals())

        async def strike() -> None:
            if await bench.load.pause(self.before):
                return
            bench.load.event("killing", backend=victim.address)
            await asyncio.get_running_loop().run_in_executor(None, kill, victim)
            bench.load.event("killed", backend=victim.address)
            killed = bench.load.now()
            while not await bench.load.pause(0.5):
                again = [s for s in bench.load.samples if s.ok and s.backend == victim.address and s.scheduled > killed]
                if len(again) > 2 * self.rate:
                    break
                if bench.load.now() > killed + self.after:
                    break
            over.set()

        await asyncio.gather(ask("its sessions", own), ask("others", rest), strike())


def find(target: Target, name: str) -> Backend:
    """A backend by id or address. Raises UsageError for one that the balancer does not have."""
    for backend in target.backends:
        if name in (backend.id, backend.address):
            return backend
    known = ", ".join(backend.id for backend in target.backends)
    raise UsageError(f"{name}: the balancer has {known}")


def fitting(target: Target, prompt: int, tokens: int) -> int:
    """Raises UsageError for a prompt that the model does not take; 1 % is left for its length being estimated."""
    longest = target.longest
    if longest is not None and prompt * 1.01 + tokens + 64 > longest:
        raise UsageError(f"a prompt of {prompt} tokens does not fit into max-model-len {longest}")
    return prompt


async def _closed_cell(
    bench: Bench,
    cell: str,
    lanes: Iterator[Session],
    users: int,
    tokens: int,
    seconds: float,
    *,
    stream: bool = True,
) -> None:
    """One cell of N users: warmed up, then at least `seconds` and ten requests a user."""
    await bench.warm_up(cell, lanes, users, tokens)
    if bench.load.stopped:
        return
    bench.cell(cell, users=users)
    end = bench.load.now() + seconds

    def asks() -> Iterator[Ask]:
        for number in count():
            if number >= PER_USER * users and bench.load.now() >= end:
                return
            yield Ask(cell, next(lanes), bench.prompts.short(), tokens, stream=stream)

    await bench.load.closed_loop(users, asks())


ALL: dict[str, type[Any]] = {
    one.name: one for one in (Distribution, Affinity, Instance, Sequential, Scaling, Mixed, Soak, LongContext, Failover)
}
