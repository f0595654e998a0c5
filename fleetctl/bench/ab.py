"""`bench ab`: engine settings against each other on the instances of one fleet, as a crossover (decisions/bench-ab.md).

In every round each instance runs one arm (a number of speculative tokens) and is measured; after the last round each
has run every arm. Pairs are instances under two arms. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from fleetctl.bench import counters, measures, stats
from fleetctl.bench.measures import Measure
from fleetctl.bench.samples import Run, Sample
from fleetctl.bench.tables import FAILED, OK, UNKNOWN, Check

K = TypeVar("K")
S0, S1 = 80, 300  # output tokens of the first report's short and ordinary answers (12.3, 13.3)
PAIRS = 8  # by default: with fewer an interval is right less often than it says
SWEEPS = 60  # to tell arms from rounds; it converges in a dozen


@dataclass(frozen=True)
class Cell:
    """One kind of work, asked one at a time of every instance. `prompt` 0: a short question."""

    name: str
    output: int
    prompt: int = 0
    stream: bool = True

    @property
    def is_rate(self) -> bool:
        """Output tokens a second, waiting included; otherwise seconds to the first token."""
        return self.prompt == 0

    @property
    def measure(self) -> Measure:
        return measures.user_rate if self.is_rate else measures.ttft


def cells(tokens: int, lengths: Iterable[int]) -> tuple[Cell, ...]:
    """The first report's 13.3. `tokens`: output of S5; the others never ask for more."""
    return (
        Cell("S0", min(S0, tokens)),
        Cell("S1 stream", min(S1, tokens)),
        Cell("S1 whole", min(S1, tokens), stream=False),
        Cell("S5", tokens),
        *(Cell(f"TTFT {length}", 1, prompt=length) for length in lengths),
    )


@dataclass(frozen=True)
class Ab:
    """What is compared, on what. `backend`: instances and machines, all where empty. `times`: requests of a kind to an
    instance in a round. `passes` 0: so many that there are pairs enough for an interval."""

    arms: tuple[int, ...] = (3, 4, 5)
    backend: str = ""
    tokens: int = 5000
    lengths: tuple[int, ...] = (10_000, 240_000)
    times: int = 4
    passes: int = 0


def rounds(instances: Sequence[str], arms: Sequence[int], passes: int, seed: int) -> list[dict[str, int]]:
    """Which instance runs which arm, round by round; a pass is as many rounds as there are arms."""
    needed = passes or math.ceil(PAIRS / len(instances))
    places = [f"{number} {one}" for number in range(needed) for one in instances]
    order = stats.crossover(places, [str(arm) for arm in arms], seed)
    return [
        {one: int(order[position][f"{number} {one}"]) for one in instances}
        for number in range(needed)
        for position in range(len(arms))
    ]


@dataclass(frozen=True)
class Point:
    """The mean of one kind of work in one start of an engine. `unit`: instance and pass; `place`: round of its pass."""

    unit: str
    arm: int
    place: int
    log: float


@dataclass(frozen=True)
class Row:
    """Two arms beside each other. `first`, `second`: means over the pairs, tok/s or seconds."""

    cell: str
    arms: tuple[int, int]
    first: float
    second: float
    difference: stats.Difference
    is_rate: bool

    @property
    def verdict(self) -> str:
        return verdict(self.arms, self.difference, is_rate=self.is_rate)

    @property
    def faster(self) -> int | None:
        """The arm that is shown to be faster."""
        if not self.difference.shown or self.difference.percent is None:
            return None
        return self.arms[1] if (self.difference.percent > 0) is self.is_rate else self.arms[0]


def verdict(arms: tuple[int, int], difference: stats.Difference, *, is_rate: bool) -> str:
    """`mtp 3 faster by 4.2 % (2.1 to 6.3)`, `no difference shown (less than x %)`, or `not decided: why`.

    By how much is a ratio of speeds, whichever of the two is the faster one.
    """
    low, high = difference.low, difference.high
    if low is None or high is None or difference.percent is None or not difference.shown:
        return difference.verdict(more_is_better=is_rate)
    second = (difference.percent > 0) is is_rate
    ends = [1 + value / 100 for value in (difference.percent, low, high)]
    # B's speed over A's is the ratio of rates, or one over that of times.
    ratios = ends if second is is_rate else [1 / end for end in ends]
    middle, *rest = (100 * (ratio - 1) for ratio in ratios)
    least, most = sorted(rest)
    return f"mtp {arms[1] if second else arms[0]} faster by {middle:.1f} % ({least:.1f} to {most:.1f})"


def arms_of(run: Run) -> dict[str, int]:
    """Instance -> speculative tokens, in this round."""
    return {str(name): int(tokens) for name, tokens in run.header.parameters["arms"].items()}


def fitting(samples: Iterable[Sample], address: str) -> list[Sample] | None:
    """Those of an instance, all answered by itself; None when one failed: what is left is no fair sample."""
    own = [sample for sample in samples if sample.home == address]
    return own if own and all(sample.ok and not sample.moved for sample in own) else None


def points(run: Run, cell: Cell) -> list[Point]:
    """One for every instance of a round whose requests were all answered."""
    arms, size = arms_of(run), len(run.header.parameters["all_arms"])
    number = int(run.header.parameters["number"]) - 1
    found = []
    for backend in run.header.backends:
        own = fitting(run.of(cell.name), backend.address) if backend.id in arms else None
        seen = measures.values(own or [], cell.measure)
        if seen and statistics.fmean(seen) > 0:
            unit, mean = f"{backend.id} {number // size}", statistics.fmean(seen)
            found.append(Point(unit, arms[backend.id], number % size, math.log(mean)))
    return found


def without_drift(found: Sequence[Point]) -> dict[tuple[str, int], float]:
    """The logs by unit and arm, less what is the round's own: the hour, the neighbours, a warm room.

    By least squares, log = unit + arm + round: with units that are no multiple of the orders an arm has come oftener
    early than late, and drift would be taken for it.
    """
    arm: dict[int, float] = {}
    place: dict[int, float] = {}
    for _ in range(SWEEPS):
        unit = _means((p.unit, p.log - arm.get(p.arm, 0.0) - place.get(p.place, 0.0)) for p in found)
        arm = _means((p.arm, p.log - unit[p.unit] - place.get(p.place, 0.0)) for p in found)
        place = _means((p.place, p.log - unit[p.unit] - arm[p.arm]) for p in found)
    return {(p.unit, p.arm): p.log - place.get(p.place, 0.0) for p in found}


def _means(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    listed: dict[K, list[float]] = {}
    for key, value in pairs:
        listed.setdefault(key, []).append(value)
    return {key: statistics.fmean(own) for key, own in listed.items()}


def compare(cell: Cell, found: Sequence[Point], arms: Sequence[int]) -> list[Row]:
    """Every two arms, over the units that ran all of them."""
    ran: dict[str, set[int]] = {}
    for point in found:
        ran.setdefault(point.unit, set()).add(point.arm)
    whole = [unit for unit, own in ran.items() if own == set(arms)]
    kept = [point for point in found if point.unit in set(whole)]
    if not whole:
        return []
    means = {arm: statistics.fmean(math.exp(point.log) for point in kept if point.arm == arm) for arm in arms}
    logs, wider = {(point.unit, point.arm): point.log for point in kept}, 1.0
    if len(whole) >= stats.FEWEST_PAIRS:
        # What the rounds took is taken from the spread too: of (n-1)(k-1) degrees of freedom k-1 are gone.
        logs, wider = without_drift(kept), math.sqrt((len(whole) - 1) / (len(whole) - 2))
    rows = []
    for a, b in combinations(arms, 2):
        apart = [logs[unit, b] - logs[unit, a] for unit in whole]
        middle = statistics.fmean(apart)
        ratios = [math.exp(middle + wider * (one - middle)) for one in apart]
        difference = stats.paired([1.0] * len(ratios), ratios)
        rows.append(Row(cell.name, (a, b), means[a], means[b], difference, cell.is_rate))
    return rows


def drafted(run: Run) -> Check:
    """Did each engine run the arm it was given? Draft tokens by drafts are its number of speculative tokens."""
    what, arms = "drafts as long as its arm says", arms_of(run)
    seen = {}
    for name, change in counters.by_instance(run.end or {}).items():
        drafts = change.get(counters.DRAFTS, 0.0)
        if name in arms:
            seen[name] = change.get(counters.DRAFT_TOKENS, 0.0) / drafts if drafts else 0.0
    # Near the end of an answer an engine may draft fewer.
    other = [f"{name} {length:.1f} for {arms[name]}" for name, length in seen.items() if abs(length - arms[name]) > 0.5]
    if not seen:
        return Check(what, UNKNOWN, "all", "the engines' counters could not be read", 0)
    return Check(what, FAILED if other else OK, "all", ", ".join(other) or "all", len(seen))


def by_arm(run: Run) -> Mapping[int, list[str]]:
    """Addresses by arm."""
    arms = arms_of(run)
    found: dict[int, list[str]] = {}
    for backend in run.header.backends:
        if backend.id in arms:
            found.setdefault(arms[backend.id], []).append(backend.address)
    return dict(sorted(found.items()))
