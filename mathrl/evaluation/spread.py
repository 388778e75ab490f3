"""The spread of a mean whose variance has several parts, each with its degrees of freedom.

A bootstrap over 30 problems shows 29/30 of their variance and takes it for known, and a test by random signs takes
differences for symmetric; benchmarks are small, and their pass rates and differences skewed. So the intervals here are
by Student's t, and the variance of few problems is bounded from below by that of a few more, which might have come
out either way (`with_further`).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from mathrl.core.results import Interval
from mathrl.core.statistics import score_interval

POWER = 0.8
SMALLEST_P = 1e-12


class VariancePart(NamedTuple):
    """A part of the variance of a mean, and its degrees of freedom."""

    variance: float
    freedom: float


def half_width(parts: Sequence[VariancePart], confidence: float) -> float:
    """Half of the interval of a mean: the root of the sum of t² variance over the parts (Howe, JASA 69, 1974).

    With one part it is Student's. Satterthwaite's degrees of freedom, the usual choice, miss the truth too often
    where a part has one degree of freedom and most of the variance, as with two runs that differ.

    >>> round(half_width([VariancePart(0.0001, 9)], 0.95), 6)  # t(0.975, 9) = 2.262157
    0.022622
    """
    return math.sqrt(sum(float(stdtrit(part.freedom, 0.5 + confidence / 2)) ** 2 * part.variance for part in parts))


def two_sided_p(mean: float, parts: Sequence[VariancePart]) -> float:
    """The p-value of a mean against 0: 1 minus the confidence at which its interval ends at 0, at least SMALLEST_P."""
    if len(parts) == 1:
        return max(SMALLEST_P, float(2 * stdtr(parts[0].freedom, -abs(mean) / math.sqrt(parts[0].variance))))

    def outside(log_p: float) -> float:
        return half_width(parts, 1 - math.exp(log_p)) - abs(mean)

    log_smallest = math.log(SMALLEST_P)
    if outside(log_smallest) < 0:
        return SMALLEST_P
    from scipy.optimize import brentq  # 0.3 s, which most processes that import this module do without

    return 1.0 if mean == 0 else math.exp(brentq(outside, log_smallest, 0.0, xtol=1e-12))


def detectable(parts: Sequence[VariancePart], confidence: float) -> float:
    """The smallest true difference that is shown with a probability of POWER."""
    return half_width(parts, confidence) + half_width(parts, 2 * POWER - 1)


def part_of(values: np.ndarray) -> VariancePart:
    """The variance of the mean of `values`."""
    return VariancePart(float(values.var(ddof=1)) / len(values), len(values) - 1)


def with_further(values_P: np.ndarray, further: Sequence[float]) -> tuple[float, VariancePart]:
    """Mean and variance of the mean with further values of weight 1/2 each.

    Thirty problems without an exception do not exclude one. For one model half a problem is added that is always solved
    and half one that never is (as in Jeffreys' prior), for the difference of two models half a problem of each of the
    four outcomes (Agresti and Min, Statistics in Medicine 24, 2005).

    >>> with_further(np.array([1.0, 1.0, 1.0]), (0.0, 1.0))  # 3.5 of 4; variance (3.5 - 4 x 0.875²) / 3 / 4
    (0.875, VariancePart(variance=0.036458333333333336, freedom=2))
    """
    extra = np.asarray(further)
    count = len(values_P) + len(extra) / 2
    mean = (float(values_P.sum()) + float(extra.sum()) / 2) / count
    squares = float((values_P**2).sum()) + float((extra**2).sum()) / 2
    return mean, VariancePart((squares - count * mean**2) / (count - 1) / count, max(1, len(values_P) - 1))


EITHER_WAY = (0.0, 1.0)  # further problems: one never solved, one always


def cluster_interval(values: Sequence[float], *, confidence: float = 0.95, share: bool = True) -> Interval:
    """The mean of one value per problem.

    Shares have Wilson's interval with the effective number of problems (Korn and Graubard, Survey Methodology 24, 1998;
    see `share_interval`), other values (lengths) Student's.

    Raises:
        ValueError: no value.
    """
    values_P = np.asarray(values, dtype=float)
    if not len(values_P):
        raise ValueError("an interval over no problems is not defined")
    if share:
        return share_interval(values_P, [], confidence)
    mean, parts = float(values_P.mean()), [part_of(values_P)] if len(values_P) > 1 else []
    half = half_width(parts, confidence)
    return Interval(mean, mean - half, mean + half)


def share_interval(values_P: np.ndarray, others: Sequence[VariancePart], confidence: float) -> Interval:
    """The mean of shares, one per problem; `others` are parts of its variance beside that of the problems.

    The effective number of problems is that at which a share of right answers would have this variance. Two halves of a
    problem are added, one solved and one not, so that 0 of 40 has a width too.
    """
    mean, problems = with_further(values_P, EITHER_WAY)
    parts = [problems, *others]
    variance = sum(part.variance for part in parts)
    quantile = half_width(parts, confidence) / math.sqrt(variance)
    low, high = score_interval(mean, mean * (1 - mean) / variance, quantile)
    measured = float(values_P.mean())
    return Interval(measured, max(0.0, min(low, measured)), min(1.0, max(high, measured)))
