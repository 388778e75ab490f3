"""Intervals of a mean over problems: the problem is the unit, its k samples are one cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from mathrl.core.seeding import derive_seed
from mathrl.data.difficulty import wilson

_CELLS = 4_000_000  # resampled values held at a time


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
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Percentile bootstrap over problems of the mean of one value a problem.

    Where all values are equal (all 0, all 1) the bootstrap has no width; then Wilson's interval with the
    number of problems as its sample size stands in.

    Raises:
        ValueError: no value.
    """
    found = np.asarray(values, dtype=np.float64)
    if not len(found):
        raise ValueError("an interval of no problem is not defined")
    mean = float(found.mean())
    if np.all(found == found[0]):
        low, high = wilson_of_share(mean, len(found), confidence)
        return Interval(mean, low, high)
    means = bootstrap_means(found, resamples, seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(mean, float(low), float(high))


def bootstrap_means(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means of `resamples` draws of len(values) problems with replacement; shape (resamples,)."""
    rng = np.random.default_rng(derive_seed(seed, "bootstrap"))
    chunk = max(1, _CELLS // len(values))
    parts = [
        values[rng.integers(0, len(values), (min(chunk, resamples - start), len(values)))].mean(axis=1)
        for start in range(0, resamples, chunk)
    ]
    return np.concatenate(parts)


def wilson_of_share(share: float, problems: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval of a share that need not be a whole count over the problems."""
    if share in (0.0, 1.0):
        return wilson(round(share * problems), problems, confidence)
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    middle = (share + z2 / (2 * problems)) / (1 + z2 / problems)
    half = (z2 * (share * (1 - share) / problems + z2 / (4 * problems**2))) ** 0.5 / (1 + z2 / problems)
    return middle - half, middle + half
