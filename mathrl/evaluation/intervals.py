"""Intervals of a mean over problems: the problem is the unit, its k samples are one cluster."""

from collections.abc import Sequence

import numpy as np

from mathrl.core.results import Interval
from mathrl.core.seeding import derive_seed
from mathrl.core.statistics import wilson

TINY = 1e-9  # spreads below are rounding errors
BATCH = 256  # resampled sets of problems held at a time


def cluster_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0, share: bool = True
) -> Interval:
    """Percentile bootstrap over problems of the mean of one value per problem.

    Where all values are equal (all 0, all 1) the bootstrap has no width; Wilson's interval with the number of
    problems as its sample size replaces it, unless the values are not shares (lengths).

    Raises:
        ValueError: no value.
    """
    values_P = np.asarray(values)
    if not len(values_P):
        raise ValueError("an interval over no problems is not defined")
    mean = float(values_P.mean())
    if share and np.ptp(values_P) < TINY:
        return Interval(mean, *wilson(mean * len(values_P), len(values_P), confidence))
    means = bootstrap_means(values_P, resamples, seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(mean, float(low), float(high))


def bootstrap_means(values_P: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means of `resamples` samples of P of the P problems, drawn with replacement; shape (resamples,).

    To the bit what scipy.stats.bootstrap draws in batches of BATCH (a test compares them); scipy.stats itself
    takes longer to import than all of this to run.
    """
    rng = np.random.default_rng(derive_seed(seed, "bootstrap"))
    batches = [
        values_P[rng.integers(0, len(values_P), (min(BATCH, resamples - start), len(values_P)))].mean(axis=1)
        for start in range(0, resamples, BATCH)
    ]
    return np.concatenate(batches)
