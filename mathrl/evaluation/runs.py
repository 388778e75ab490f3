"""Several training runs (seeds) of a recipe: what to expect of a new run on new problems of the same kind.

A table of runs by problems has three sources of spread: runs, problems, and the rest (sampling, and runs that
are good at different problems). The variance of its mean is (MS_runs + MS_problems - MS_rest) / (R P), the
two-way random-effects analysis of variance (Cornfield and Tukey, 1956). The part of the runs, of which there are few,
counts with its own quantile of Student's t (`spread.half_width`). A bootstrap over three runs would give two thirds of
their variance.

The runs of two recipes are one part with the degrees of freedom of Welch's test, unless either side has only two, whose
own variances tell too little of their sum's. Runs that share a seed and a start are paired: what they have in common
takes variance away, and never adds any. benchmarks/compare_power.py has the level and power of each.

Shapes: R runs, P problems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.results import Comparison, Interval
from mathrl.evaluation.paired import paired_test
from mathrl.evaluation.spread import VariancePart, half_width, part_of, share_interval

Values = Mapping[str, float]  # of one run: problem id → value


def seeds_interval(runs: Sequence[Values], *, confidence: float = 0.95, share: bool = True) -> Interval:
    """The mean over several runs of one recipe, one value per problem and run.

    With two or three runs that differ it is wide, as it should be.

    Args:
        runs: Per run {problem id: value}; only problems that all runs have count.
        share: Whether the values are shares, from 0 to 1; lengths are not.

    Raises:
        ValueError: fewer than two runs, or fewer than two problems in common.

    >>> seeds_interval([{"x": 5.0, "y": 5.0}, {"x": 7.0, "y": 7.0}], share=False)  # sqrt(1) t(0.975, 1) = 12.7
    Interval(mean=6.0, low=-6.7..., high=18.7...)
    """
    table_RP = _table(runs, _common(runs))
    if min(table_RP.shape) < 2:
        raise ValueError(
            f"{len(runs)} runs with {table_RP.shape[1]} problems in common: two or more of each are needed"
        )
    problems_P, runs_part = table_RP.mean(axis=0), _runs_part(table_RP)
    if share:
        return share_interval(problems_P, [runs_part], confidence)
    mean, half = float(problems_P.mean()), half_width([runs_part, part_of(problems_P)], confidence)
    return Interval(mean, mean - half, mean + half)


def compare_runs(
    before: str,
    after: str,
    before_runs: Sequence[Values],
    after_runs: Sequence[Values],
    *,
    responses: tuple[float, float] = (1.0, 1.0),
    by_seed: bool = False,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two recipes by their runs on the same problems; with one run each this is `paired.compare`.

    Where only one side has several runs, the other is that one model and not a recipe.

    Args:
        responses: Number of responses that a value is the mean of, before and after (`summary.responses_behind`).
        by_seed: Whether a run of one side and the run at its place on the other have one seed and one start.

    Raises:
        UserError: fewer than two problems that all runs have, or runs to pair that are not as many on both sides.
    """
    if by_seed and len(before_runs) != len(after_runs):
        raise UserError(
            f"{before} has {len(before_runs)} runs and {after} {len(after_runs)}: to pair them by seed, give as many "
            "of both, in the same order of the seeds"
        )
    common = _common([*before_runs, *after_runs])
    if len(common) < 2:
        raise UserError(
            f"the runs of {before} and {after} have {len(common)} problems in common, two or more are "
            "needed; evaluate all of them on the same benchmark"
        )
    tables = [_table(runs, common) for runs in (before_runs, after_runs)]
    differences_P = tables[1].mean(axis=0) - tables[0].mean(axis=0)
    runs_parts = _parts_of_runs(tables, by_seed)
    spread = sum(1 / (count * len(runs)) for count, runs in zip(responses, (before_runs, after_runs), strict=True)) / 2
    test = paired_test(before, after, differences_P, runs_parts, 1 / spread, confidence)
    paired = by_seed and len(before_runs) > 1
    return replace(test, before_runs=len(before_runs), after_runs=len(after_runs), by_seed=paired)


def _common(runs: Sequence[Values]) -> list[str]:
    return sorted(set.intersection(*(set(run) for run in runs))) if runs else []


def _table(runs: Sequence[Values], common: Sequence[str]) -> np.ndarray:
    return np.array([[run[id] for id in common] for run in runs]).reshape(len(runs), len(common))


def _runs_part(table_RP: np.ndarray) -> VariancePart:
    """What runs add to the variance of the mean, as `_excess`, but never less than nothing."""
    return VariancePart(max(0.0, _excess(table_RP)), len(table_RP) - 1)


def _excess(table_RP: np.ndarray, share: float = 1.0) -> float:
    """The variance of the mean over runs, without the rest's (or a share of it), which that of the problems has too."""
    rest_RP = table_RP - table_RP.mean(axis=1, keepdims=True) - table_RP.mean(axis=0) + table_RP.mean()
    freedom = (table_RP.shape[0] - 1) * (table_RP.shape[1] - 1)
    rest = float((rest_RP**2).sum()) / freedom / table_RP.size
    return float(part_of(table_RP.mean(axis=1)).variance - share * rest)


def _parts_of_runs(tables: Sequence[np.ndarray], by_seed: bool) -> list[VariancePart]:
    """What the runs of both sides add to the variance of the difference of their means."""
    several = [table_RP for table_RP in tables if len(table_RP) > 1]
    parts = [_runs_part(table_RP) for table_RP in several]
    if by_seed and parts:
        return [_paired_part(*tables)]
    if len(parts) < 2 or min(part.freedom for part in parts) < 2:
        return parts
    return [VariancePart(max(0.0, sum(map(_excess, several))), welch_freedom(parts))]


def _paired_part(before_RP: np.ndarray, after_RP: np.ndarray) -> VariancePart:
    """The part of runs in pairs: that of their differences, but at most that of runs that have nothing in common.

    So few pairs often differ by less than the rest alone would make them, and then nothing would be left of their
    spread. So not all of the rest is taken off: nothing of two pairs, half of three, three quarters of five.
    """
    freedom = len(before_RP) - 1
    share = 1 - 1 / freedom
    apart = _excess(before_RP, share) + _excess(after_RP, share)
    return VariancePart(max(0.0, min(apart, _excess(after_RP - before_RP, share))), freedom)


def welch_freedom(parts: Sequence[VariancePart]) -> float:
    """The degrees of freedom of a sum of variances (Welch, Biometrika 34, 1947): from the least to the sum of theirs.

    >>> [welch_freedom([VariancePart(0.5, 2), VariancePart(other, 2)]) for other in (0.5, 0.0)]
    [4.0, 2.0]
    """
    total = sum(part.variance for part in parts)
    if not total:
        return sum(part.freedom for part in parts)
    return total**2 / sum(part.variance**2 / part.freedom for part in parts)
