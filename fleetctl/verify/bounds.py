"""What a count of failures proves. Pure.

"No failure" says nothing without the number of looks: 0 of 200 still allows 1.5 % (facts/bench-status.md, section 0).
"""

from __future__ import annotations

import math

CONFIDENCE = 0.95


def upper(wrong: int, n: int, confidence: float = CONFIDENCE) -> float | None:
    """The highest failure rate (0..1) that `wrong` failures of `n` looks leave possible; None without a look.

    Exact (Clopper and Pearson), one-sided: a higher rate would show so few failures with less than 1 - confidence.
    """
    if n <= 0:
        return None
    if wrong >= n:
        return 1.0
    if wrong == 0:
        return float(1 - (1 - confidence) ** (1 / n))
    low, high = wrong / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(wrong, n, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(count: int, n: int, rate: float) -> float:
    """P(X <= count) of a binomial."""
    logs = (
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(rate)
        + (n - k) * math.log1p(-rate)
        for k in range(count + 1)
    )
    return math.fsum(map(math.exp, logs))
