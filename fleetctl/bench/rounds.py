"""What is asked in a round of `bench ab`, and by `bench cross-check`. Judged elsewhere, as every scenario is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fleetctl.bench.ab import Cell, cells
from fleetctl.bench.load import Ask
from fleetctl.bench.prompts import Prompts
from fleetctl.bench.samples import Backend
from fleetctl.bench.scenarios import Bench, find, fitting
from fleetctl.bench.target import Target
from fleetctl.errors import CommandError, UsageError


@dataclass(frozen=True)
class Round:
    """One round: every instance of `arms` (instance -> speculative tokens) is asked the same at the same time.

    One request at a time an instance, the same texts to each and in every round: seed and place decide, not the order
    in which answers come. `in_force`: what the release has. `experiment`: names the
    command, in all its rounds.
    """

    name: ClassVar[str] = "ab"
    arms: Mapping[str, int]
    all_arms: tuple[int, ...]
    number: int
    rounds: int
    tokens: int
    lengths: tuple[int, ...]
    times: int
    in_force: int
    experiment: str

    def settled(self, target: Target) -> Round:
        """Raises UsageError for a prompt that does not fit or an instance that takes no requests."""
        for name in self.arms:
            find(target, name)
        fitting(target, 100, self.tokens)
        return replace(self, lengths=tuple(fitting(target, length, 1) for length in self.lengths))

    async def run(self, bench: Bench) -> None:
        if self.lengths:
            await bench.calibrate()
        own = [find(bench.target, name) for name in self.arms]
        texts = {one: Prompts(bench.seed, characters_per_token=bench.prompts.characters_per_token) for one in own}
        await asyncio.gather(*(self._warm_up(bench, one, texts[one]) for one in own))
        for cell in cells(self.tokens, self.lengths):
            if bench.load.stopped:
                return
            # Before anything is under way: to write a prompt of a megabyte takes longer than the loop may be late.
            asks = [self._asks(bench, cell, one, texts[one]) for one in own]
            bench.cell(cell.name, users=len(own))
            await asyncio.gather(*(bench.load.closed_loop(1, lane) for lane in asks))

    def _asks(self, bench: Bench, cell: Cell, backend: Backend, texts: Prompts) -> list[Ask]:
        return [
            Ask(cell.name, bench.sessions.on(backend), _text(cell, texts), cell.output, stream=cell.stream)
            for _ in range(self.times)
        ]

    async def _warm_up(self, bench: Bench, backend: Backend, texts: Prompts) -> None:
        """Each shape once: fresh engines compile at their first requests."""
        work = [(texts.short(), min(32, self.tokens)) for _ in range(2)]
        work += [(texts.of(min(self.lengths)), 1)] if self.lengths else []
        asks = [Ask("warm-up", bench.sessions.on(backend), text, tokens, warmup=True) for text, tokens in work]
        await bench.load.closed_loop(1, asks)


def _text(cell: Cell, texts: Prompts) -> str:
    if cell.prompt:
        return texts.of(cell.prompt)
    return texts.endless() if cell.name == "S5" else texts.short()


@dataclass(frozen=True)
class CrossCheck:
    """The same prompts by our engine and by the serving image's own `vllm bench serve`, one after the other in turn.

    `times`: rounds; the two begin alternately.
    """

    name: ClassVar[str] = "cross-check"
    backend: str = ""
    users: int = 4
    requests: int = 32
    tokens: int = 128
    times: int = 6

    def settled(self, target: Target) -> CrossCheck:
        if self.users > target.max_sequences:
            raise UsageError(f"an instance runs {target.max_sequences} requests at once, not {self.users}")
        return replace(self, backend=find(target, self.backend or target.backends[0].id).id)

    async def run(self, bench: Bench) -> None:
        if bench.rival is None:
            raise CommandError("nobody here can run `vllm bench serve`")
        lanes = bench.sessions.aimed((find(bench.target, self.backend),))
        await bench.warm_up("warm-up", lanes, self.users, self.tokens)
        for number in range(1, self.times + 1):
            for ours in (True, False) if number % 2 else (False, True):
                if bench.load.stopped:
                    return
                await (self._ours(bench, number) if ours else self._theirs(bench, number))

    async def _ours(self, bench: Bench, number: int) -> None:
        cell, texts = f"round {number}", Prompts(bench.seed + number)
        lanes = bench.sessions.aimed((find(bench.target, self.backend),))
        bench.cell(cell, users=self.users)
        asks = [Ask(cell, next(lanes), texts.short(), self.tokens) for _ in range(self.requests)]
        await bench.load.closed_loop(self.users, asks)

    async def _theirs(self, bench: Bench, number: int) -> None:
        """The same texts; the mark in front is another one, so that no cache knows them."""
        texts, rival = Prompts(bench.seed + number), bench.rival
        prompts = [texts.short() for _ in range(self.requests)]
        if rival is not None:
            figures = await bench.load.beside(lambda: rival(prompts))
            if figures is not None:
                bench.load.event("vllm", cell=f"round {number}", figures=figures)
