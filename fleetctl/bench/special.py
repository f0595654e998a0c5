"""The distributions that statistics.py of the standard library lacks. Pure; good to about 1e-12.

Series and continued fractions as in Numerical Recipes, 6.2 and 6.4; inverses by bisection, which never misses.
"""

from __future__ import annotations

import math
from collections.abc import Callable

TINY = 1e-300
PRECISION = 1e-15
STEPS = 10_000


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(X >= statistic) of a chi-square distribution with `degrees` degrees of freedom."""
    if statistic <= 0:
        return 1.0
    a, x = degrees / 2, statistic / 2
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    return 1.0 - scale * _gamma_series(a, x) if x < a + 1 else scale * _gamma_fraction(a, x)


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X <= x) of a beta distribution: the regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return scale * _beta_fraction(a, b, x) / a
    return 1.0 - scale * _beta_fraction(b, a, 1 - x) / b


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x at which `beta_cdf` is p."""
    return _bisect(lambda x: beta_cdf(x, a, b) - p, 0.0, 1.0)


def t_quantile(p: float, degrees: int) -> float:
    """The p quantile (0.5 < p < 1) of Student's t distribution."""
    x = beta_quantile(2 * (1 - p), degrees / 2, 0.5)
    return math.sqrt(degrees * (1 - x) / x)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """A zero of an increasing function."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _gamma_series(a: float, x: float) -> float:
    term = total = 1 / a
    for step in range(1, STEPS):
        term *= x / (a + step)
        total += term
        if term < total * PRECISION:
            break
    return total


def _gamma_fraction(a: float, x: float) -> float:
    b = x + 1 - a
    c, d = 1 / TINY, 1 / b
    result = d
    for step in range(1, STEPS):
        factor = -step * (step - a)
        b += 2
        d = 1 / _away(factor * d + b)
        c = _away(b + factor / c)
        result *= d * c
        if abs(d * c - 1) < PRECISION:
            break
    return result


def _beta_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for factor in (even, odd):
            d = 1 / _away(1 + factor * d)
            c = _away(1 + factor / c)
            result *= d * c
        if abs(d * c - 1) < PRECISION:
            break
    return result


def _away(value: float) -> float:
    """Not zero, so that it can be divided by."""
    return value if abs(value) > TINY else TINY
