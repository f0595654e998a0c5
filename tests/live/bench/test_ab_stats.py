"""`bench ab`'s statistics over many simulated experiments: false alarms where nothing differs, and what is found."""

from __future__ import annotations

import math
import random

import pytest

from fleetctl.bench import ab
from fleetctl.bench.ab import Cell, Point

ARMS = (3, 4, 5)
SD = 0.04  # of a pair's difference


def experiment(dice: random.Random, instances: int, *, drift: float = 0.0, effect: float = 0.0) -> list[ab.Row]:
    """Instances differ by 5 %, starts of one by SD / sqrt 2, rounds by `drift` each, the last arm by `effect`."""
    own = {f"i{n}": dice.gauss(0, 0.05) for n in range(instances)}
    order = ab.rounds(list(own), ARMS, 0, dice.randrange(10**6))
    points = [
        Point(
            f"{name} {number // 3}",
            arm,
            number % 3,
            own[name]
            + dice.gauss(0, SD / math.sqrt(2))
            + drift * (number % 3)
            + (math.log1p(effect) if arm == 5 else 0.0),
        )
        for number, row in enumerate(order)
        for name, arm in row.items()
    ]
    return ab.compare(Cell("S1", 300), points, ARMS)


@pytest.mark.parametrize(("instances", "drift", "runs"), [(16, 0.0, 700), (16, 0.1, 300), (8, 0.0, 300), (8, 0.1, 300)])
def test_arms_that_do_not_differ_are_told_apart_in_at_most_65_of_1000_comparisons(
    instances: int, drift: float, runs: int
) -> None:
    dice = random.Random(instances)
    rows = [row for _ in range(runs) for row in experiment(dice, instances, drift=drift)]
    # Three sigma of so many comparisons, of which three are of one experiment.
    slack = 3 * math.sqrt(0.065 * 0.935 / len(rows)) if len(rows) < 2000 else 0.0
    assert sum(row.difference.shown for row in rows) / len(rows) <= 0.065 + slack


@pytest.mark.parametrize("instances", [8, 16])
def test_ten_percent_are_found_in_at_least_80_of_100_and_laid_to_the_right_arm(instances: int) -> None:
    dice = random.Random(1)
    rows = [row for _ in range(100) for row in experiment(dice, instances, drift=0.05, effect=0.1) if 5 in row.arms]
    assert sum(row.faster == 5 for row in rows) >= 0.8 * len(rows)
    assert not any(row.faster in (3, 4) for row in rows)
