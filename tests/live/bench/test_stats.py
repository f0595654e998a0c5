"""Statistics by simulation and against numbers worked out elsewhere."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.bench import special, stats


@pytest.mark.parametrize(
    ("percent", "least"), [(50, 6), (90, 30), (95, 60), (99, 300), (99.9, 3000), (5, 60), (1, 300)]
)
def test_a_percentile_needs_its_samples_and_says_how_many(percent: float, least: int) -> None:
    assert stats.needed(percent) == least
    refused = stats.quantile([1.0] * (least - 1), percent)
    assert refused.value is None
    assert f"needs {least} samples, there are {least - 1}" in (refused.why or "")
    assert stats.quantile([1.0] * least, percent).value == 1.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=6), st.integers(1, 99))
def test_a_percentile_is_between_the_extremes_and_splits_the_samples(values: list[float], percent: int) -> None:
    found = stats.quantile(values, percent).value
    if found is None:
        assert len(values) < stats.needed(percent)
        return
    assert min(values) <= found <= max(values)
    assert sum(value < found for value in values) <= math.ceil(len(values) * percent / 100)


def test_percentiles_are_those_of_numpy() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0, 55.0, 61.0]
    assert stats.quantile(values, 50).value == 40.0
    assert stats.quantile([float(n) for n in range(1, 61)], 95).value == pytest.approx(57.05)


def test_no_errors_in_n_bound_the_rate_by_the_rule_of_three() -> None:
    for n, bound in ((50, 0.0582), (200, 0.0149), (300, 0.00994)):
        found = stats.rate(0, n)
        assert found is not None
        assert found.high == pytest.approx(bound, rel=0.01)
        assert found.high == pytest.approx(3 / n, rel=0.04)


def test_error_rates_have_the_exact_interval() -> None:
    found = stats.rate(2, 100)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.00243, abs=1e-5), pytest.approx(0.07038, abs=1e-5))
    assert stats.rate(0, 0) is None


@given(st.integers(1, 400), st.data())
def test_the_exact_interval_encloses_what_was_seen(n: int, data: st.DataObject) -> None:
    events = data.draw(st.integers(0, n))
    found = stats.rate(events, n)
    assert found is not None
    assert 0 <= found.low <= events / n <= found.high <= 1


def test_distributions_agree_with_tables() -> None:
    assert special.chi_square_tail(24.996, 15) == pytest.approx(0.05, abs=1e-5)
    assert special.chi_square_tail(37.697, 15) == pytest.approx(0.001, abs=1e-6)
    assert special.t_quantile(0.975, 15) == pytest.approx(2.13145, abs=1e-5)
    assert special.t_quantile(0.975, 5) == pytest.approx(2.57058, abs=1e-5)
    assert special.beta_cdf(0.3, 2, 5) == pytest.approx(0.579825)


def test_the_fullest_cell_of_a_fair_hash_is_counted_exactly() -> None:
    """All 3^5 ways of five keys into three cells."""
    maxima = Counter(max(Counter(way).values()) for way in product(range(3), repeat=5))
    minima = Counter(min(Counter({0: 0, 1: 0, 2: 0} | Counter(way)).values()) for way in product(range(3), repeat=5))
    for limit in range(1, 6):
        assert stats.maximum_at_most(limit, 5, 3) == pytest.approx(sum(maxima[m] for m in range(limit + 1)) / 3**5)
        assert stats.minimum_at_least(limit, 5, 3) == pytest.approx(sum(minima[m] for m in range(limit, 6)) / 3**5)


def test_exact_and_approximate_counts_agree_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = [stats.maximum_at_most(limit, 500, 16) for limit in (44, 46, 48, 50)]
    stats.maximum_at_most.cache_clear()
    monkeypatch.setattr(stats, "EXACT_UP_TO", 0)
    close = [stats.maximum_at_most(limit, 500, 16) for limit in (44, 46, 48, 50)]
    stats.maximum_at_most.cache_clear()
    assert all(a == pytest.approx(e, abs=0.01) for a, e in zip(close, exact, strict=True))
    assert all(a >= e for a, e in zip(close, exact, strict=True))


def test_the_first_reports_threshold_would_fail_fair_hashes_two_times_in_three() -> None:
    """M2: CV < 0.2 of 300 keys over 16. And M1's 24 of 160 in one cell, reported as normal, is suspicious."""
    dice = random.Random(1)
    passed = 0
    for _ in range(2000):
        counts = Counter(dice.choices(range(16), k=300))
        passed += math.sqrt(sum((counts[c] - 18.75) ** 2 for c in range(16)) / 16) / 18.75 < 0.2
    assert 0.25 < passed / 2000 < 0.40
    fair = stats.fair_maximum(300, 16)
    assert fair.expected == pytest.approx(1.43, abs=0.01)
    first = stats.balance([24, 5, *[9] * 7, *[10] * 5, 9, 9])
    assert first is not None
    assert first.n == 160
    assert first.verdict == "suspicious"


def test_the_distribution_check_raises_at_most_15_of_10000_fair_draws() -> None:
    """100,000 fair draws of 320 keys over 16 backends; a hex digit is a backend."""
    dice, n, raised = random.Random(3), 320, 0
    for _ in range(100_000):
        draw = f"{dice.getrandbits(4 * n):0{n}x}"
        counts = [draw.count(digit) for digit in "0123456789abcdef"]
        # What none of the three tests could object to is not looked at further: only for speed.
        if min(counts) > 8 and max(counts) < 34 and sum(c * c for c in counts) < 7100:
            continue
        found = stats.balance(counts)
        assert found is not None
        raised += found.verdict == "unfair"
    assert raised / 100_000 <= 0.0015


def test_the_shortcut_of_that_simulation_hides_no_alarm() -> None:
    edge = stats.balance([9, 33, *[20] * 8, *[19] * 2, *[20] * 4])
    assert edge is not None
    assert edge.verdict != "unfair"
    assert stats.chi_square([16, 24] * 8).p > 0.001
    assert special.chi_square_tail(7100 * 16 / 320 - 320, 15) > 0.001 / 3


def test_a_hash_that_forgets_a_backend_is_unfair() -> None:
    found = stats.balance([22] * 14 + [12, 0])
    assert found is not None
    assert found.verdict == "unfair"


def test_few_keys_and_weights_are_judged_too() -> None:
    few = stats.balance([3, 2, 1, 2])
    assert few is not None
    assert few.how in ("Monte Carlo", "fullest", "emptiest")
    assert few.verdict == "fair"
    weighted = stats.balance([200, 100], [2, 1])
    assert weighted is not None
    assert weighted.verdict == "fair"
    equal = stats.balance([200, 100])
    assert equal is not None
    assert equal.verdict == "unfair"
    assert stats.balance([0, 0]) is None


def test_an_a_a_comparison_of_16_pairs_raises_at_most_65_of_1000() -> None:
    dice = random.Random(5)

    def arm() -> list[float]:
        return [60 * dice.gauss(1, 0.04) for _ in range(16)]

    raised = sum(stats.paired(arm(), arm()).shown for _ in range(2000))
    assert raised / 2000 <= 0.065


def test_a_planted_tenth_is_found() -> None:
    dice = random.Random(6)
    found = 0
    for _ in range(200):
        first = [60 * dice.gauss(1, 0.04) for _ in range(16)]
        second = [66 * dice.gauss(1, 0.04) for _ in range(16)]
        found += stats.paired(first, second).verdict(more_is_better=True) == "B better"
    assert found / 200 >= 0.80


def test_no_difference_is_a_verdict_with_its_size_and_too_few_pairs_are_none() -> None:
    same = stats.paired([60, 61, 59, 60, 62, 58, 60, 61], [61, 60, 60, 59, 60, 60, 61, 60])
    assert same.verdict(more_is_better=True).startswith("no difference shown (less than ")
    assert same.detectable is not None
    few = stats.paired([60, 61], [70, 71])
    assert few.low is None
    assert few.verdict(more_is_better=True) == "not decided: an interval needs 6 pairs, there are 2"
    assert stats.paired([], []).percent is None
    alike = stats.paired([2.0] * 8, [3.0] * 8)
    assert alike.percent == pytest.approx(50)
    assert alike.verdict(more_is_better=False) == "A better"


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=6, max_size=20))
def test_the_same_pairs_give_the_same_interval_and_swapped_arms_the_opposite_one(
    pairs: list[tuple[float, float]],
) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = stats.paired(first, second)
    assert found == stats.paired(first, second)
    back = stats.paired(second, first)
    assert found.percent is not None
    assert back.percent is not None
    assert (1 + found.percent / 100) * (1 + back.percent / 100) == pytest.approx(1)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.high


def test_a_factor_between_groups_has_an_interval_only_with_enough_in_both() -> None:
    found = stats.ratio([1.0, 1.1, 0.9, 1.0, 1.05, 0.95], [2.0, 2.1, 1.9, 2.0, 2.05, 1.95])
    assert found.percent == pytest.approx(100)
    assert found.low is not None
    assert found.low > 80
    assert stats.ratio([1.0] * 10, [2.0] * 3).low is None
    assert stats.ratio([], [1.0]).percent is None


def test_a_rising_series_is_shown_and_a_wobbling_one_is_not() -> None:
    rising, wobbling = stats.trend([1, 2, 3, 4, 5, 6]), stats.trend([3, 1, 2, 5, 4, 2])
    assert rising is not None
    assert wobbling is not None
    assert rising.shown
    assert rising.slope == 1
    assert rising.p == pytest.approx(2 / math.factorial(6))
    assert not wobbling.shown
    assert stats.trend([1, 2, 3, 4]) is None


def test_orders_of_a_series_are_counted_exactly() -> None:
    from itertools import permutations

    def score(order: tuple[int, ...]) -> int:
        return sum((order[j] > order[i]) - (order[j] < order[i]) for i in range(5) for j in range(i + 1, 5))

    scores = [abs(score(order)) for order in permutations(range(5))]
    for least in (0, 2, 4, 8, 10):
        assert stats._kendall(5, least) == pytest.approx(sum(s >= least for s in scores) / 120)


@given(st.integers(2, 24), st.integers(2, 5), st.integers(0, 50))
def test_a_crossover_gives_every_unit_every_arm_once_and_every_round_even_arms(
    units: int, arms: int, seed: int
) -> None:
    names, labels = [f"u{n}" for n in range(units)], [f"a{n}" for n in range(arms)]
    rounds = stats.crossover(names, labels, seed)
    assert len(rounds) == arms
    for unit in names:
        assert sorted(one[unit] for one in rounds) == labels
    for one in rounds:
        counts = Counter(one.values())
        assert max(counts.values()) - min(counts[label] for label in labels) <= 2
