"""How bad it may still be when nothing was seen to fail."""

from __future__ import annotations

import pytest

from fleetctl.verify.bounds import _at_most, upper
from fleetctl.verify.check import Look, Status, Where, settle


@pytest.mark.parametrize(
    ("wrong", "n", "bound"),
    # One-sided limits of Clopper and Pearson at 95 %.
    [(0, 160, 0.01855), (0, 200, 0.01487), (0, 1, 0.95), (1, 10, 0.39416), (3, 160, 0.04772), (10, 10, 1.0)],
)
def test_the_bound_is_the_exact_one(wrong: int, n: int, bound: float) -> None:
    found = upper(wrong, n)
    assert found is not None
    assert found == pytest.approx(bound, abs=5e-5)


def test_without_a_look_nothing_is_proved() -> None:
    assert upper(0, 0) is None


def test_at_the_bound_so_few_failures_have_one_chance_in_twenty() -> None:
    for wrong, n in ((1, 30), (5, 80), (40, 300)):
        bound = upper(wrong, n)
        assert bound is not None
        assert _at_most(wrong, n, bound) == pytest.approx(0.05, abs=1e-6)


def test_what_is_worth_a_look_is_not_proved_right() -> None:
    looks = [Look("67/0"), Look("67/1", "differs", soft=True)]
    found = settle("temperature-0", Where.DIRECT, "the same text twice", looks)
    assert (found.status, found.wrong, found.bound) == (Status.WARN, 0, upper(1, 2))
