"""From samples to figures (docs/bench.md defines each). Pure. What was not measured is None, never 0."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fleetctl.bench import stats
from fleetctl.bench.samples import Sample

Measure = Callable[[Sample], "float | None"]


def ttft(sample: Sample) -> float | None:
    """Seconds to the first token of any kind, from when the request was due."""
    return None if sample.first is None else sample.first - sample.scheduled


def ttfo(sample: Sample) -> float | None:
    """Seconds to the first token of the answer itself: reasoning does not count."""
    return None if sample.answer is None else sample.answer - sample.scheduled


def latency(sample: Sample) -> float | None:
    """Seconds to the last token."""
    last = sample.last if sample.last is not None else sample.end
    return None if last is None else last - sample.scheduled


def tpot(sample: Sample) -> float | None:
    """Seconds per output token after the first. The first chunk is taken for one token: prefill makes one."""
    if sample.first is None or sample.last is None or not sample.completion_tokens or sample.completion_tokens < 2:
        return None
    return (sample.last - sample.first) / (sample.completion_tokens - 1)


def user_rate(sample: Sample) -> float | None:
    """Output tokens per second as one user sees them, waiting included."""
    took = latency(sample)
    return sample.completion_tokens / took if took and sample.completion_tokens else None


def prefill_rate(samples: Iterable[Sample]) -> float | None:
    """Prompt tokens per second until the first token, of all together: the few that there are have no median."""
    read = [(s.prompt_tokens, took) for s in samples if s.ok and s.prompt_tokens and (took := ttft(s))]
    return sum(tokens for tokens, _ in read) / sum(took for _, took in read) if read else None


def values(samples: Iterable[Sample], measure: Measure) -> list[float]:
    """The measure of every sample that has it."""
    return [value for sample in samples if sample.ok and (value := measure(sample)) is not None]


def gaps(samples: Iterable[Sample]) -> list[float]:
    """Seconds between chunks, of all requests together: an average per request would hide stalls."""
    return [gap for sample in samples if sample.ok for gap in sample.gaps]


def stalls(samples: Iterable[Sample], above: float = 1.0) -> int:
    """Requests that made their user wait longer than `above` seconds for the next chunk."""
    return sum(any(gap > above for gap in sample.gaps) for sample in samples if sample.ok)


def failures(samples: Iterable[Sample]) -> dict[str, int]:
    """Failed requests by why, most frequent first."""
    return dict(Counter(sample.why for sample in samples if sample.failed).most_common())


def failure_rate(samples: Sequence[Sample]) -> stats.Interval | None:
    return stats.rate(sum(sample.failed for sample in samples), len(samples))


def by_backend(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.backend is not None:
            found.setdefault(sample.backend, []).append(sample)
    return found


@dataclass(frozen=True)
class Window:
    """From when all users were at work to when the first had no more to do, seconds of the run."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def steady(samples: Sequence[Sample], users: int) -> Window | None:
    """The time between the first and the last moment with at least 90 % of the users in flight; None without one."""
    enough, level = max(1, round(0.9 * users)), 0
    changes = sorted(
        [(s.sent, 1) for s in samples if s.sent is not None]
        + [(s.end, -1) for s in samples if s.sent is not None and s.end is not None]
    )
    start: float | None = None
    end = 0.0
    for at, change in changes:
        if level >= enough:
            end = at
        level += change
        if level >= enough and start is None:
            start = at
    return Window(start, end) if start is not None and end > start else None


def tokens_within(sample: Sample, window: Window) -> float:
    """Output tokens of this request that came in the window, shared out over its chunks."""
    if not sample.ok or not sample.completion_tokens or sample.last is None:
        return 0.0
    if sample.first is None:
        begin = sample.sent if sample.sent is not None else sample.scheduled
        inside = min(sample.last, window.end) - max(begin, window.start)
        return sample.completion_tokens * max(0.0, inside) / max(1e-9, sample.last - begin)
    at, count = sample.first, int(window.start <= sample.first <= window.end)
    for gap in sample.gaps:
        at += gap
        count += window.start <= at <= window.end
    return sample.completion_tokens * count / (1 + len(sample.gaps))


def throughput(samples: Sequence[Sample], window: Window | None) -> float | None:
    """Output tokens per second of all requests together, within the window."""
    if window is None or window.seconds <= 0:
        return None
    return sum(tokens_within(sample, window) for sample in samples) / window.seconds


def in_flight(samples: Iterable[Sample], window: Window) -> float:
    """Requests under way, on average over the window, as this client sees it."""
    total = 0.0
    for sample in samples:
        if sample.sent is not None and sample.end is not None:
            total += max(0.0, min(sample.end, window.end) - max(sample.sent, window.start))
    return total / window.seconds


@dataclass(frozen=True)
class Imbalance:
    """max/mean over backends: of requests, of output tokens, of busy time. Equal requests are not equal work."""

    requests: float
    tokens: float | None
    busy: float


def imbalance(samples: Sequence[Sample], backends: Sequence[str]) -> Imbalance | None:
    """None when nothing says which backend answered."""
    groups = by_backend(samples)
    if not groups:
        return None
    own = [groups.get(address, []) for address in backends]
    requests = [float(len(group)) for group in own]
    tokens = [float(sum(s.completion_tokens or 0 for s in group)) for group in own]
    busy = [sum((s.end or 0) - s.sent for s in group if s.sent is not None) for group in own]
    return Imbalance(_over_mean(requests) or 1.0, _over_mean(tokens), _over_mean(busy) or 1.0)


def _over_mean(numbers: Sequence[float]) -> float | None:
    middle = statistics.fmean(numbers)
    return max(numbers) / middle if middle else None
