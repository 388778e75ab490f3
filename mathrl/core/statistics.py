"""Statistics that several rooms need."""

from collections.abc import Iterable
from math import sqrt
from statistics import NormalDist


def sum_in_order(values: Iterable[float]) -> float:
    """The sum from left to right, each step rounded, for figures in outputs.

    The built-in `sum` compensates for rounding from Python 3.12 on, so that its last bit depends on the version.

    >>> sum_in_order([0.1] * 10)
    0.9999999999999999
    """
    total = 0.0
    for value in values:
        total += value
    return total


def wilson(correct: float, samples: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share (JASA 22, 1927); within 0 and 1 also for 0 of k and k of k.

    >>> tuple(round(bound, 4) for bound in wilson(0, 8))
    (0.0, 0.3244)
    """
    low, high = score_interval(correct / samples, samples, NormalDist().inv_cdf(0.5 + confidence / 2))
    # At 0 of k and k of k the bound is exactly 0 or 1; rounding must not put it a hair inside.
    return (0.0 if correct == 0 else low), (1.0 if correct == samples else high)


def score_interval(share: float, samples: float, quantile: float) -> tuple[float, float]:
    """The shares that lie within `quantile` standard errors, those of the share itself, of the measured one."""
    squared = quantile * quantile
    middle = (share + squared / (2 * samples)) / (1 + squared / samples)
    half = quantile / (1 + squared / samples) * sqrt(share * (1 - share) / samples + squared / (4 * samples**2))
    return middle - half, middle + half
