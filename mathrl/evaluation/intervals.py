"""Intervals of a mean over problems: the problem is the unit, its k samples are one cluster."""

import math
from collections.abc import Sequence

import numpy as np

from mathrl.core.results import Interval
from mathrl.core.statistics import score_interval
from mathrl.evaluation.spread import VariancePart, half_width, part_of, with_further

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
