"""Intervals of a mean over problems: the problem is the unit, its k samples are one cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mathrl.core.seeding import derive_seed
from mathrl.core.statistics import wilson

TINY = 1e-9  # spreads below are of rounding
ROWS = 256  # resampled sets of problems held at a time


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its bounds.

    Example:
        Interval(mean=0.884, low=0.861, high=0.906)
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def cluster_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0, share: bool = True
) -> Interval:
    """Percentile bootstrap over problems of the mean of one value a problem.

    Where all values are equal (all 0, all 1) the bootstrap has no width; then Wilson's interval with the
    number of problems as its sample size stands in, unless the values are no shares (lengths).

    Raises:
        ValueError: no value.
    """
    found = np.asarray(values)
    if not len(found):
        raise ValueError("an interval of no problem is not defined")
    mean = float(found.mean())
    if share and np.ptp(found) < TINY:
        return Interval(mean, *wilson(mean * len(found), len(found), confidence))
    means = bootstrap_means(found, resamples, seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(mean, float(low), float(high))


def bootstrap_means(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means of `resamples` draws of len(values) problems with replacement; shape (resamples,)."""
    rng = np.random.default_rng(derive_seed(seed, "bootstrap"))
    parts = [
        values[rng.integers(0, len(values), (min(ROWS, resamples - start), len(values)))].mean(axis=1)
        for start in range(0, resamples, ROWS)
    ]
    return np.concatenate(parts)
