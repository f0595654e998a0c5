"""Continuous batching: one step at a time for all running sequences, as the real engine core.

A step prefills at most max-num-batched-tokens and gives every decoding sequence one token plus the draft
tokens that were accepted. The times follow the report (sections 12, 13, 15): about 60 tokens/s for one
sequence with MTP 3 to 5, less each as more run together, 3,300 prompt tokens/s.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from . import seconds
from .brain import Token
from .metrics import Metrics

ACCEPTANCE = 0.75
RATE_BY_DRAFT = (0.55, 0.8, 0.95, 1.017, 0.978, 0.975)
BLOCK = 128
CACHED_BLOCKS = 16384


@dataclass(frozen=True)
class Limits:
    sequences: int
    batched_tokens: int
    draft_tokens: int
    prefix_caching: bool
    cache_tokens: int = 2_097_152


class Request:
    """What a handler waits on: the tokens of its sequences as they come, (index, tokens, finish reason)."""

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.news: list[tuple[int, list[Token], str | None]] = []
        self.sequences: list[Sequence] = []
        self._event = asyncio.Event()

    def tell(self, index: int, tokens: list[Token], finish: str | None) -> None:
        self.news.append((index, tokens, finish))
        if self.stream or all(sequence.finish for sequence in self.sequences):
            self._event.set()

    async def wait(self) -> list[tuple[int, list[Token], str | None]]:
        await self._event.wait()
        self._event.clear()
        news, self.news = self.news, []
        return news


class Sequence:
    """One reply being made."""

    def __init__(self, request: Request, index: int, prompt: int, limit: int, tokens: Iterator[Token | None]):
        self.request = request
        self.index = index
        self.prompt = prompt
        self.limit = limit
        self.minimum = 0
        self.ignore_eos = False
        self.stop: tuple[str, ...] = ()
        self.blocks: list[int] = []
        self.cached = 0
        self.prefill = prompt
        self.produced = 0
        self.tail = ""
        self.ended = False
        self.finish: str | None = None
        self.arrived = time.monotonic()
        self.started = self.first = self.last = 0.0
        self._tokens = tokens
        self._dice = zlib.crc32(str(prompt).encode()) | 1

    def accepted(self, draft_tokens: int) -> int:
        """How many draft tokens hold in this step; the first that fails ends the row."""
        count = 0
        while count < draft_tokens:
            self._dice = (self._dice * 1103515245 + 12345) % 2**31
            if (self._dice >> 8) % 100 >= ACCEPTANCE * 100:
                break
            count += 1
        return count

    def take(self, count: int) -> list[Token]:
        """Up to `count` tokens; sets `finish` when this reply ends with them."""
        taken: list[Token] = []
        while len(taken) < count and not self.finish:
            if self.ended and not self.ignore_eos and self.produced >= self.minimum:
                self.finish = "stop"
                break
            token = next(self._tokens)
            if token is None:
                self.ended = True
                continue
            taken.append(token)
            self.produced += 1
            self.tail = (self.tail + token[1])[-256:] if self.stop else ""
            if self.stop and self.produced >= self.minimum and (cut := self._stopped()):
                self.finish = "stop"
                taken[-1] = (token[0], token[1][: max(0, len(token[1]) - cut)])
            elif self.produced >= self.limit:
                self.finish = "length"
        return taken

    def _stopped(self) -> int:
        """How many characters at the end belong to a stop string or follow it; 0 when none was met."""
        starts = [self.tail.index(stop) for stop in self.stop if stop in self.tail]
        return len(self.tail) - min(starts) if starts else 0


class Scheduler:
    """The engine core. `paused` and the faults hang and mtp0 are set from outside."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.paused = False
        self.faults: frozenset[str] = frozenset()
        self.steps = 0
        self._wake = asyncio.Event()
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._rate = max(0.01, seconds("SIM_TOKENS_PER_SECOND", 60.0))
        self._prefill_rate = max(1.0, seconds("SIM_PREFILL_TOKENS_PER_SECOND", 3300.0))

    @property
    def stalled(self) -> bool:
        return self.paused or "hang" in self.faults

    def submit(self, sequence: Sequence, prompt: str) -> None:
        if self.limits.prefix_caching:
            step, key, data = BLOCK * 4, 0, prompt.encode(errors="replace")
            for start in range(0, len(data) - step + 1, step):
                key = zlib.crc32(data[start : start + step], key)
                sequence.blocks.append(key)
        self.waiting.append(sequence)
        self._gauges()
        self._wake.set()

    def abort(self, request: Request) -> None:
        """Drops what is left of a request (its client has gone)."""
        for sequence in request.sequences:
            if not sequence.finish:
                sequence.finish = "abort"
                self.metrics.add("vllm:request_success_total", 1, finished_reason="abort")
        self.waiting = deque(sequence for sequence in self.waiting if not sequence.finish)
        self.running = [sequence for sequence in self.running if not sequence.finish]
        self._gauges()

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            if self.stalled:
                await asyncio.sleep(0.2)
                continue
            if not self.waiting and not self.running:
                self._wake.clear()
                await self._wake.wait()
                due = time.monotonic()
                continue
            self._admit()
            chunks = self._chunks()
            due = max(due, time.monotonic() - 0.25) + self.step_seconds(sum(chunks.values()))
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not self.stalled:
                self._step(chunks)

    def step_seconds(self, prefilled: int = 0) -> float:
        """How long one step takes with what runs now and this many prompt tokens."""
        draft = self.limits.draft_tokens
        per_step = sum(ACCEPTANCE**position for position in range(draft + 1))
        share = RATE_BY_DRAFT[draft] if draft < len(RATE_BY_DRAFT) else max(0.4, 0.975 - 0.04 * (draft - 5))
        load = 1 + 0.06 * (max(1, len(self.running)) - 1)
        return per_step / (self._rate * share) * load + prefilled / self._prefill_rate

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.limits.sequences:
            sequence = self.waiting.popleft()
            sequence.started = time.monotonic()
            for key in sequence.blocks:
                if key not in self._cache:
                    break
                self._cache.move_to_end(key)
                sequence.cached += BLOCK
            sequence.cached = min(sequence.cached, sequence.prompt - 1)
            sequence.prefill = sequence.prompt - sequence.cached
            self._cache.update((key, None) for key in sequence.blocks)
            while len(self._cache) > CACHED_BLOCKS:
                self._cache.popitem(last=False)
            self.metrics.add("vllm:prefix_cache_queries_total", sequence.prompt)
            self.metrics.add("vllm:prefix_cache_hits_total", sequence.cached)
            self.running.append(sequence)
        self._gauges()

    def _chunks(self) -> dict[Sequence, int]:
        """Prompt tokens of this step by sequence, first come first served."""
        budget, chunks = self.limits.batched_tokens, {}
        for sequence in self.running:
            if sequence.prefill and budget > 0:
                chunks[sequence] = min(sequence.prefill, budget)
                budget -= chunks[sequence]
        return chunks

    def _step(self, chunks: dict[Sequence, int]) -> None:
        now, draft, count = time.monotonic(), self.limits.draft_tokens, 0
        for sequence in self.running:
            if sequence in chunks:
                sequence.prefill -= chunks[sequence]
                count += chunks[sequence]
            elif not sequence.prefill and sequence.first and draft:
                accepted = 0 if "mtp0" in self.faults else sequence.accepted(draft)
                self._speculated(draft, accepted)
                count += self._emit(sequence, 1 + accepted, now)
                continue
            if not sequence.prefill:
                count += self._emit(sequence, 1, now)
        self.running = [sequence for sequence in self.running if not sequence.finish]
        self.steps += 1
        self.metrics.observe("vllm:iteration_tokens_total", count)
        self._gauges()

    def _emit(self, sequence: Sequence, count: int, now: float) -> int:
        tokens = sequence.take(count)
        metrics = self.metrics
        if not sequence.first:
            sequence.first = now
            metrics.observe("vllm:time_to_first_token_seconds", now - sequence.arrived)
            metrics.add("vllm:prompt_tokens_total", sequence.prompt)
            computed = sequence.prompt - sequence.cached
            metrics.add("vllm:prompt_tokens_by_source_total", computed, source="local_compute")
            metrics.add("vllm:prompt_tokens_by_source_total", sequence.cached, source="local_cache_hit")
            metrics.add("vllm:prompt_tokens_cached_total", sequence.cached)
        elif tokens:
            metrics.observe("vllm:inter_token_latency_seconds", now - sequence.last)
        sequence.last = now
        metrics.add("vllm:generation_tokens_total", len(tokens))
        if sequence.finish:
            self._finished(sequence, now)
        sequence.request.tell(sequence.index, tokens, sequence.finish)
        return len(tokens)

    def _speculated(self, draft: int, accepted: int) -> None:
        self.metrics.add("vllm:spec_decode_num_drafts_total", 1)
        self.metrics.add("vllm:spec_decode_num_draft_tokens_total", draft)
        self.metrics.add("vllm:spec_decode_num_accepted_tokens_total", accepted)
        for position in range(accepted):
            self.metrics.add("vllm:spec_decode_num_accepted_tokens_per_pos_total", 1, position=str(position))

    def _finished(self, sequence: Sequence, now: float) -> None:
        see = self.metrics.observe
        decode = now - sequence.first
        self.metrics.add("vllm:request_success_total", 1, finished_reason=sequence.finish or "stop")
        see("vllm:request_prompt_tokens", sequence.prompt)
        see("vllm:request_generation_tokens", sequence.produced)
        see("vllm:request_max_num_generation_tokens", sequence.produced)
        see("vllm:request_params_n", len(sequence.request.sequences))
        see("vllm:request_params_max_tokens", sequence.limit)
        see("vllm:e2e_request_latency_seconds", now - sequence.arrived)
        see("vllm:request_queue_time_seconds", sequence.started - sequence.arrived)
        see("vllm:request_inference_time_seconds", now - sequence.started)
        see("vllm:request_prefill_time_seconds", sequence.first - sequence.started)
        see("vllm:request_decode_time_seconds", decode)
        see("vllm:request_time_per_output_token_seconds", decode / max(1, sequence.produced - 1))
        see("vllm:request_num_preemptions", 0)
        see("vllm:request_prefill_kv_computed_tokens", sequence.prompt - sequence.cached)

    def _gauges(self) -> None:
        used = sum(sequence.prompt + sequence.produced for sequence in self.running)
        self.metrics.set("vllm:num_requests_running", len(self.running))
        self.metrics.set("vllm:num_requests_waiting", len(self.waiting))
        self.metrics.set("vllm:num_requests_waiting_by_reason", len(self.waiting), reason="capacity")
        self.metrics.set("vllm:kv_cache_usage_perc", round(used / self.limits.cache_tokens, 6))
