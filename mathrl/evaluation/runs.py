"""Several training runs (seeds) of a recipe: what to expect of a new run on new problems of the same kind.

A table of runs by problems has three sources of spread: runs, problems, and the rest (sampling, and runs that
are good at different problems). The variance of its mean is (MS_runs + MS_problems - MS_rest) / (R P), the
two-way random-effects analysis of variance (Cornfield and Tukey, 1956); Student's t with Satterthwaite's
degrees of freedom (1946) accounts for the small number of runs. A bootstrap over three runs would give two
thirds of the variance.

Shapes: R runs, P problems.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtr, stdtrit

from mathrl.core.errors import UserError
from mathrl.core.results import Comparison, Interval
from mathrl.core.statistics import sum_in_order
from mathrl.evaluation.intervals import TINY, cluster_interval
from mathrl.evaluation.paired import POWER, compare

Values = Mapping[str, float]  # of one run: problem id → value
Share = tuple[float, int]  # of the variance of the mean, and its degrees of freedom


def seeds_interval(runs: Sequence[Values], *, confidence: float = 0.95, share: bool = True) -> Interval:
    """The mean over several runs of one recipe, one value per problem and run.

    With two or three runs that differ it is wide, as it should be.

    Args:
        runs: Per run {problem id: value}; only problems that all runs have count.
        share: Whether the values are shares, from 0 to 1; lengths are not.

    Raises:
        ValueError: fewer than two runs, or fewer than two problems in common.

    >>> seeds_interval([{"x": 0.5, "y": 0.5}, {"x": 0.7, "y": 0.7}])  # sqrt(0.01) t(0.975, 1) = 1.27
    Interval(mean=0.6, low=-0.67..., high=1.87...)
    """
    table_RP = _table(runs, _common(runs))
    if min(table_RP.shape) < 2:
        raise ValueError(
            f"{len(runs)} runs with {table_RP.shape[1]} problems in common: two or more of each are needed"
        )
    problems_P = table_RP.mean(axis=0)
    error, freedom = _standard_error([_runs_part(table_RP), _mean_variance(problems_P)], [_rest_part(table_RP)])
    if error < TINY:
        return cluster_interval(problems_P.tolist(), confidence=confidence, share=share)
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * error
    mean = float(problems_P.mean())
    return Interval(mean, mean - half, mean + half)


def compare_runs(
    before: str,
    after: str,
    before_runs: Sequence[Values],
    after_runs: Sequence[Values],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare two recipes by their runs on the same problems; with one run each this is `paired.compare`.

    Where only one side has several runs, the other is that one model and not a recipe. The runs of the two
    sides are not paired with one another.

    Raises:
        UserError: fewer than two problems that all runs have.
    """
    if len(before_runs) == len(after_runs) == 1:
        return compare(
            before, after, before_runs[0], after_runs[0], confidence=confidence, resamples=resamples, seed=seed
        )
    common = _common([*before_runs, *after_runs])
    if len(common) < 2:
        raise UserError(
            f"the runs of {before} and {after} have {len(common)} problems in common, two or more are "
            "needed; evaluate all of them on the same benchmark"
        )
    tables = [_table(runs, common) for runs in (before_runs, after_runs)]
    differences_P = tables[1].mean(axis=0) - tables[0].mean(axis=0)
    several = [table_RP for table_RP in tables if len(table_RP) > 1]
    error, freedom = _standard_error(
        [*(_runs_part(table_RP) for table_RP in several), _mean_variance(differences_P)],
        [_rest_part(table_RP) for table_RP in several],
    )
    mean = float(differences_P.mean())
    if error < TINY:  # no spread to judge by: what the paired test does then
        means = [dict(zip(common, table_RP.mean(axis=0).tolist(), strict=True)) for table_RP in tables]
        test = compare(before, after, *means, confidence=confidence, resamples=resamples)
        return replace(test, before_runs=len(before_runs), after_runs=len(after_runs))
    quantile = float(stdtrit(freedom, 0.5 + confidence / 2))
    half, detectable = quantile * error, (quantile + float(stdtrit(freedom, POWER))) * error
    p_value = float(2 * stdtr(freedom, -abs(mean) / error))
    return Comparison(
        before,
        after,
        len(common),
        mean,
        max(-1.0, mean - half),
        min(1.0, mean + half),
        p_value,
        detectable,
        shown=p_value < 1 - confidence,
        before_runs=len(before_runs),
        after_runs=len(after_runs),
    )


def _common(runs: Sequence[Values]) -> list[str]:
    return sorted(set.intersection(*(set(run) for run in runs))) if runs else []


def _table(runs: Sequence[Values], common: Sequence[str]) -> np.ndarray:
    return np.array([[run[id] for id in common] for run in runs]).reshape(len(runs), len(common))


def _mean_variance(values: np.ndarray) -> Share:
    """The variance of the mean of `values`, and its degrees of freedom."""
    return float(values.var(ddof=1)) / len(values), len(values) - 1


def _runs_part(table_RP: np.ndarray) -> Share:
    return _mean_variance(table_RP.mean(axis=1))


def _rest_part(table_RP: np.ndarray) -> Share:
    """MS_rest / (R P), which the parts of runs and of problems both contain, and its degrees of freedom."""
    rest_RP = table_RP - table_RP.mean(axis=1, keepdims=True) - table_RP.mean(axis=0) + table_RP.mean()
    freedom = (table_RP.shape[0] - 1) * (table_RP.shape[1] - 1)
    return float((rest_RP**2).sum()) / freedom / table_RP.size, freedom


def _standard_error(parts: Sequence[Share], contained_twice: Sequence[Share]) -> tuple[float, float]:
    """The standard error of the mean and Satterthwaite's degrees of freedom (nan where the error is 0).

    What the parts contain twice is subtracted once; the variance is never below the largest part.
    """
    total = sum_in_order(value for value, _ in parts) - sum_in_order(value for value, _ in contained_twice)
    variance = max(total, *(value for value, _ in parts))
    spread = sum_in_order(value**2 / freedom for value, freedom in [*parts, *contained_twice])
    return variance**0.5, variance**2 / spread if spread else math.nan
