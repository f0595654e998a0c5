"""What may be said from how much data. Pure; where dice are thrown the seed is fixed: same samples, same words.

Every function says None, with the reason, rather than a number that its n does not carry (facts/bench-status, 0).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import itemgetter

from fleetctl.bench import special

CONFIDENCE = 0.95
RULE_OF_THREE = 3
FEWEST_PAIRS = 6
RESAMPLES = 999
UNFAIR, SUSPICIOUS = 0.001, 0.01
EXACT_UP_TO = 600  # requests; above that the exact distribution of the largest count takes seconds


@dataclass(frozen=True)
class Quantile:
    """`value` is None when n samples do not carry the percentile; `why` then says how many would."""

    percent: float
    n: int
    value: float | None
    why: str | None = None


def needed(percent: float) -> int:
    """Fewest samples for a percentile: ceil(3 / (1 - p)): 6 for the median, 60 for p95, 300 for p99.

    With fewer, less than 95 % of all runs have even one sample beyond the true percentile, and what is printed
    is the maximum under another name. By symmetry percentiles below the median count from the other side.
    """
    share = Fraction(str(percent)) / 100
    return math.ceil(RULE_OF_THREE / min(share, 1 - share))


def quantile(values: Iterable[float], percent: float) -> Quantile:
    """A percentile (0 < percent < 100), between samples by linear interpolation."""
    ordered = sorted(values)
    least = needed(percent)
    if len(ordered) < least:
        return Quantile(percent, len(ordered), None, f"p{percent:g} needs {least} samples, there are {len(ordered)}")
    place = (len(ordered) - 1) * percent / 100
    below = min(int(place), len(ordered) - 2)
    value = ordered[below] + (ordered[below + 1] - ordered[below]) * (place - below)
    return Quantile(percent, len(ordered), value)


@dataclass(frozen=True)
class Interval:
    """A confidence interval around an estimate."""

    value: float
    low: float
    high: float


def mean(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """The mean with its t interval; None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = statistics.fmean(values)
    half = special.t_quantile((1 + confidence) / 2, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return Interval(middle, middle - half, middle + half)


def rate(events: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """The share `events` / n with its exact (Clopper-Pearson) interval; None for n = 0.

    For no events at all the upper end is one-sided, 1 - 0.05^(1/n), which is the rule of three: about 3/n. For
    nothing but events so is the lower end.
    """
    if n == 0:
        return None
    tail = 1 - confidence
    if events == 0:
        return Interval(0.0, 0.0, 1 - tail ** (1 / n))
    if events == n:
        return Interval(1.0, tail ** (1 / n), 1.0)
    low = special.beta_quantile(tail / 2, events, n - events + 1)
    high = special.beta_quantile(1 - tail / 2, events + 1, n - events)
    return Interval(events / n, low, high)


@dataclass(frozen=True)
class ChiSquare:
    statistic: float
    degrees: int
    p: float


def chi_square(counts: Sequence[int], weights: Sequence[float] | None = None) -> ChiSquare:
    """Do the counts fit shares proportional to `weights` (equal by default)? Needs about 5 expected in each cell."""
    shares = weights or [1.0] * len(counts)
    expected = [sum(counts) * share / sum(shares) for share in shares]
    statistic = sum((seen - due) ** 2 / due for seen, due in zip(counts, expected, strict=True)) if sum(counts) else 0.0
    return ChiSquare(statistic, len(counts) - 1, special.chi_square_tail(statistic, len(counts) - 1))


@dataclass(frozen=True)
class FairMaximum:
    """The fullest of k cells that a fair hash fills with n keys: as max/mean, expected and in 95 of 100 runs."""

    n: int
    cells: int
    expected: float
    usual: float


def fair_maximum(n: int, cells: int) -> FairMaximum:
    """What max/mean a *fair* hash shows. At n = 300 and 16 cells 1.4 is normal: no threshold of 1.2 can be met."""
    fair = n / cells
    below, at_most, expected = 0.0, math.ceil(fair), 0.0
    usual: int | None = None
    while below < 1 - 1e-9 and at_most <= n:
        now = maximum_at_most(at_most, n, cells)
        expected += (now - below) * at_most
        usual = at_most if usual is None and now >= 0.95 else usual
        below, at_most = now, at_most + 1
    return FairMaximum(n, cells, expected / fair, (usual or n) / fair)


@lru_cache(maxsize=4096)
def maximum_at_most(limit: int, n: int, cells: int) -> float:
    """P(no cell holds more than `limit`) when n keys fall fairly into the cells. Exact up to 600 keys.

    n! [x^n] (sum over j <= limit of (x/k)^j / j!)^k, scaled by Poisson probabilities so that nothing under- or
    overflows. Above 600 keys: the cells as if they were independent. What lies beyond is a hair too small then: by less
    than a thousandth of itself where it is a thousandth.
    """
    if limit * cells < n:
        return 0.0
    if limit >= n:
        return 1.0
    if n > EXACT_UP_TO:
        inside = special.beta_cdf(1 - 1 / cells, n - limit, limit + 1)
        return float(inside**cells)
    return _all_cells(range(limit + 1), n, cells)


@lru_cache(maxsize=4096)
def minimum_at_least(limit: int, n: int, cells: int) -> float:
    """P(every cell holds `limit` or more); exact up to 600 keys, the cells as if independent above."""
    if limit * cells > n:
        return 0.0
    if limit <= 0:
        return 1.0
    if n > EXACT_UP_TO:
        return float((1 - special.beta_cdf(1 - 1 / cells, n - limit + 1, limit)) ** cells)
    return _all_cells(range(limit, n + 1), n, cells)


def _all_cells(allowed: range, n: int, cells: int) -> float:
    """P(every cell's count is in `allowed`)."""
    cell = [0.0] * (allowed[-1] + 1)
    for count in allowed:
        cell[count] = _poisson(count, n / cells)
    power, product, left = cell, [1.0], cells
    while left > 1:
        if left % 2:
            product = _times(product, power, n)
        power, left = _times(power, power, n), left // 2
    # Of the last product only one coefficient is wanted.
    way = sum(product[i] * power[n - i] for i in range(len(product)) if 0 <= n - i < len(power))
    return min(1.0, way / _poisson(n, n))


def _poisson(count: int, rate: float) -> float:
    return math.exp(count * math.log(rate) - rate - math.lgamma(count + 1))


def _times(left: Sequence[float], right: Sequence[float], degree: int) -> list[float]:
    """The product of two polynomials, cut above `degree`."""
    result = [0.0] * min(degree + 1, len(left) + len(right) - 1)
    for i, a in enumerate(left):
        if a:
            for j, b in enumerate(right[: len(result) - i], i):
                result[j] += a * b
    return result


@dataclass(frozen=True)
class Balance:
    """Is the spread over the cells what a fair hash gives? `p` is corrected for the tests that were made.

    `imbalance` is max/mean as seen; `fair` what a fair hash shows, None for unequal weights.
    """

    n: int
    counts: tuple[int, ...]
    p: float
    how: str
    imbalance: float
    fair: FairMaximum | None

    @property
    def verdict(self) -> str:
        return "unfair" if self.p < UNFAIR else "suspicious" if self.p < SUSPICIOUS else "fair"


def balance(counts: Sequence[int], weights: Sequence[float] | None = None) -> Balance | None:
    """Chi-square and, for equal shares, the exact tests of the fullest and the emptiest cell; None without data.

    A fair hash is called unfair once in a thousand runs at most, whatever n is: no fixed limit can promise that.
    Where fewer than 5 are due in a cell, chi-square gives way to a Monte-Carlo test that is exact at any n.
    """
    n, cells = sum(counts), len(counts)
    if n == 0 or cells < 2:
        return None
    equal = weights is None or len(set(weights)) == 1
    shares = [1.0] * cells if weights is None else weights
    enough = n * min(shares) / sum(shares) >= 5
    tests = {"chi-square": chi_square(counts, shares).p} if enough else {"Monte Carlo": _by_chance(counts, shares)}
    if equal:
        tests["fullest"] = 1 - maximum_at_most(max(counts) - 1, n, cells)
        tests["emptiest"] = 1 - minimum_at_least(min(counts) + 1, n, cells)
    how = min(tests, key=lambda name: tests[name])
    p = min(1.0, max(0.0, tests[how]) * len(tests))
    fair = fair_maximum(n, cells) if equal else None
    return Balance(n, tuple(counts), p, how, max(counts) * cells / n, fair)


def _by_chance(counts: Sequence[int], weights: Sequence[float], draws: int = 9999) -> float:
    """How often fair draws are at least as uneven: exact in the sense that P(p <= x) <= x."""
    dice = random.Random(1)  # noqa: S311
    seen, n, cells = chi_square(counts, weights).statistic, sum(counts), range(len(counts))
    as_bad = 0
    for _ in range(draws):
        drawn = [0] * len(counts)
        for cell in dice.choices(cells, weights, k=n):
            drawn[cell] += 1
        as_bad += chi_square(drawn, weights).statistic >= seen - 1e-9
    return (as_bad + 1) / (draws + 1)


@dataclass(frozen=True)
class Difference:
    """B against A in percent of A, with its interval; `detectable` is what this n would find in 80 of 100 runs.

    `why` says what is missing when there is no interval.
    """

    n: int
    percent: float | None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    why: str | None = None

    @property
    def shown(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def verdict(self, *, more_is_better: bool) -> str:
        """`B better`, `A better`, `no difference shown (less than x %)` or `not decided: why`."""
        if self.low is None or self.high is None or self.percent is None:
            return f"not decided: {self.why}"
        if not self.shown:
            return f"no difference shown (less than {max(abs(self.low), abs(self.high)):.1f} %)"
        return "B better" if (self.percent > 0) is more_is_better else "A better"


def paired(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Difference:
    """The relative difference of pairs (the same instance under A and under B), by studentised bootstrap.

    On logarithms, so that +10 % and its way back are the same distance. The plain percentile bootstrap is wrong in
    7 to 8 of 100 A/A runs of 16 pairs; the studentised one keeps its 5 (tests/live/bench/test_stats.py).
    Raises ValueError for lists of unequal length or values that are not above zero.
    """
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    n = len(logs)
    if n == 0:
        return Difference(0, None, why="no pairs")
    middle = statistics.fmean(logs)
    if n < FEWEST_PAIRS:
        return Difference(n, _percent(middle), why=f"an interval needs {FEWEST_PAIRS} pairs, there are {n}")
    error = statistics.stdev(logs) / n**0.5
    if error < 1e-12:
        return Difference(n, _percent(middle), _percent(middle), _percent(middle), 0.0)
    low, high = _studentised(logs, middle, error, confidence)
    power = special.t_quantile((1 + confidence) / 2, n - 1) + special.t_quantile(0.8, n - 1)
    return Difference(n, _percent(middle), _percent(low), _percent(high), _percent(power * error))


def _percent(log: float) -> float:
    return 100 * math.expm1(min(log, 700.0))  # beyond that there is no float


@lru_cache(maxsize=8)
def _resamples(n: int) -> tuple[Callable[[Sequence[float]], tuple[float, ...]], ...]:
    """Which of n values are drawn, for every resample: the same each time."""
    dice = random.Random(n)  # noqa: S311
    return tuple(itemgetter(*dice.choices(range(n), k=n)) for _ in range(RESAMPLES))  # several indices give a tuple


def _studentised(values: Sequence[float], middle: float, error: float, confidence: float) -> tuple[float, float]:
    n = len(values)
    centred = [value - middle for value in values]
    squares = [value * value for value in centred]
    scores = []
    for draw in _resamples(n):
        own = sum(draw(centred)) / n
        spread = sum(draw(squares)) / n - own * own
        # All the same value drawn n times: no spread, no score; it says nothing.
        if spread > 1e-18:
            scores.append(own / math.sqrt(spread / (n - 1)))
    scores.sort()
    last = len(scores) - 1
    tail = (1 - confidence) / 2
    return middle - scores[round(last * (1 - tail))] * error, middle - scores[round(last * tail)] * error


def ratio(before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE) -> Difference:
    """The relative difference of the means of two unpaired groups, by bootstrap with a fixed seed."""
    fewest = min(len(before), len(after))
    if fewest == 0:
        return Difference(0, None, why="no data in one of the groups")
    percent = 100 * (statistics.fmean(after) / statistics.fmean(before) - 1)
    if fewest < FEWEST_PAIRS:
        return Difference(fewest, percent, why=f"an interval needs {FEWEST_PAIRS} in each group, there are {fewest}")
    dice = random.Random(1)  # noqa: S311
    drawn = sorted(
        statistics.fmean(dice.choices(after, k=len(after))) / statistics.fmean(dice.choices(before, k=len(before)))
        for _ in range(RESAMPLES)
    )
    tail = (1 - confidence) / 2
    low, high = drawn[round((RESAMPLES - 1) * tail)], drawn[round((RESAMPLES - 1) * (1 - tail))]
    return Difference(fewest, percent, 100 * (low - 1), 100 * (high - 1))


@dataclass(frozen=True)
class Trend:
    """Does a series of windows rise or fall? `slope` per window (Theil-Sen), `p` two-sided (Mann-Kendall)."""

    n: int
    slope: float
    p: float

    @property
    def shown(self) -> bool:
        return self.p < 1 - CONFIDENCE


def trend(values: Sequence[float]) -> Trend | None:
    """None for fewer than five windows, with which no order of them is rare enough to show anything."""
    n = len(values)
    if n < 5:
        return None
    pairs = [(j - i, values[j] - values[i]) for i in range(n) for j in range(i + 1, n)]
    score = sum((rise > 0) - (rise < 0) for _, rise in pairs)
    slope = statistics.median(rise / apart for apart, rise in pairs)
    return Trend(n, slope, _kendall(n, abs(score)))


@lru_cache(maxsize=4096)
def _kendall(n: int, score: int) -> float:
    """P(|S| >= score) over all orders of n values: from the number of permutations by inversions."""
    if n > 60:
        z = max(0, score - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return math.erfc(z / math.sqrt(2))
    ways = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(ways) + size - 1)
        for i, count in enumerate(ways):
            for j in range(size):
                longer[i + j] += count
        ways = longer
    total = n * (n - 1) // 2
    extreme = sum(count for inversions, count in enumerate(ways) if abs(total - 2 * inversions) >= score)
    return extreme / math.factorial(n)


def crossover(units: Sequence[str], arms: Sequence[str], seed: int = 1) -> tuple[dict[str, str], ...]:
    """Which unit runs which arm in which round: as many rounds as arms, every unit runs every arm once.

    In each round the arms are as evenly spread as the units allow. The orders are Williams's and their mirror images
    in turn: drift over the rounds hits all arms alike, and every arm comes equally often after every other. `units` in
    the order of their machines: the units of one machine get different arms.
    """
    count = len(arms)
    steps = [(number + 1) // 2 * (1 if number % 2 else -1) for number in range(count)]  # 0, 1, -1, 2, -2 ...
    dice = random.Random(seed)  # noqa: S311
    starts = list(range(count))
    dice.shuffle(starts)
    rounds: list[dict[str, str]] = [{} for _ in arms]
    for place, unit in enumerate(units):
        start, backward = starts[place % count], (place // count) % 2 == 1
        for number, step in enumerate(steps):
            rounds[number][unit] = arms[(start - step if backward else start + step) % count]
    return tuple(rounds)
