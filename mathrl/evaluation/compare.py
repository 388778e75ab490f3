"""The one comparison of models: which pairs, by which test, in which words; and two sides in full detail."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import ndtr

from mathrl.core.results import PIPELINE, Comparison
from mathrl.core.statistics import sum_in_order
from mathrl.evaluation.responses import ModelRun
from mathrl.evaluation.runs import Values, compare_runs
from mathrl.evaluation.summary import Key, Rows, group_by, interval_over, responses_behind, values_of
from mathrl.params.evaluate import Evaluate

MOST_GROUPS = 50
Groups = dict[str, dict[str, Any]]
Sides = tuple[Sequence[Values], Sequence[Values]]  # the runs before and after


def pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Which models are compared, as (before, after); the first pair gives the verdict.

    The last model against its predecessor, then every other model against the first, the baseline. Of the
    pipeline's base, sft and rl only what RL did is asked.

    >>> pairs(["sft", "rft", "dpo"])
    [('rft', 'dpo'), ('sft', 'rft'), ('sft', 'dpo')]
    >>> pairs(["base", "sft", "rl"])
    [('sft', 'rl'), ('base', 'rl')]
    """
    if len(labels) < 2:
        return []
    if tuple(labels) == PIPELINE:
        return [("sft", "rl"), ("base", "rl")]
    return list(dict.fromkeys([(labels[-2], labels[-1]), *((labels[0], label) for label in labels[1:])]))


def compare_models(
    models: Mapping[str, Sequence[Rows]], settings: Evaluate, *, by_seed: bool = False
) -> dict[str, Comparison]:
    """The tests of pass@1 for `pairs` of the models, in their order: {"sft_to_rl": …}.

    `models` has the runs (seeds) of each model by its label; `by_seed` says that they have the same seeds in the same
    order, from one start each. Pairs with fewer than two problems in common are
    left out: no test is possible. Of several tests each is shown only by its p-value corrected for all of them.
    """
    tests = {
        f"{before}_to_{after}": compare_pair(
            (before, after), (models[before], models[after]), settings, by_seed=by_seed
        )
        for before, after in pairs(list(models))
        if _common(models[before], models[after]) > 1
    }
    if len(tests) < 2:
        return tests
    corrected = holm([test.p_value for test in tests.values()])
    return {
        name: replace(test, corrected_p=p, shown=p < 1 - settings.confidence)
        for (name, test), p in zip(tests.items(), corrected, strict=True)
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests corrected so that the chance of any false claim stays what one test has (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = dict.fromkeys(range(len(p_values)), 1.0), 0.0
    for rank, number in enumerate(sorted(corrected, key=lambda number: p_values[number])):
        largest = max(largest, min(1.0, p_values[number] * (len(p_values) - rank)))
        corrected[number] = largest
    return list(corrected.values())


def compare_pair(
    names: tuple[str, str],
    sides: tuple[Sequence[Rows], Sequence[Rows]],
    settings: Evaluate,
    metric: str = "pass_at_1",
    *,
    by_seed: bool = False,
) -> Comparison:
    """The paired test of two models (before, after), each with one run or several seeds; `by_seed`: as `compare_runs`.

    Raises:
        UserError: fewer than two problems in common, or a metric that the samples do not allow.
    """
    before, after = ([values_of(rows, metric) for rows in side] for side in sides)
    responses = (responses_behind(sides[0], metric), responses_behind(sides[1], metric))
    return compare_runs(*names, before, after, responses=responses, by_seed=by_seed, confidence=settings.confidence)


def verdict_of(labels: Sequence[str], comparisons: Mapping[str, Comparison]) -> str:
    """The sentence that stands for an evaluation of the models `labels`."""
    test = leading_comparison(labels, comparisons)
    if test is not None:
        return test.verdict()
    return "one model: nothing to compare" if len(labels) < 2 else "fewer than two problems in common: nothing to test"


def leading_comparison(labels: Sequence[str], comparisons: Mapping[str, Comparison]) -> Comparison | None:
    """The test of the first of `pairs`, if it was made."""
    return next((comparisons.get(f"{before}_to_{after}") for before, after in pairs(labels)), None)


def compare_sides(
    before: Sequence[ModelRun],
    after: Sequence[ModelRun],
    names: tuple[str, str],
    metric: str,
    settings: Evaluate,
    *,
    by_seed: bool = False,
) -> dict[str, Any]:
    """Everything that `mathrl compare` prints; the runs have the same problems (`common_problems`).

    `by_seed`: a run and the run at its place on the other side have one seed and one start.

    Example:
        {"benchmark": "test", "metric": "pass_at_1", "problems": 500,
         "models": {"sft": {"runs": [0.35], "mean": 0.35, "low": 0.31, "high": 0.39, "samples": 8,
                            "pass_at_8": 0.61, "maj_at_8": 0.38, "response_length": 20.1, …}, "rl": {…}},
         "comparison": {"difference": 0.53, "low": 0.49, "high": 0.57, "p_value": 0.0001,
                        "detectable": 0.056, "shown": true, "verdict": "rl is better than sft: …", …},
         "by_level": {"2": {"problems": 100, "before": 0.4, "after": 0.9, "difference": 0.5, "low": …}},
         "by_subject": {}}

    Raises:
        UserError: a metric that the samples do not allow, or a single problem.
    """
    sides, rows = (before, after), before[0].rows
    first, second = ([values_of(run.rows, metric) for run in side] for side in sides)
    values = (first, second)
    responses = (
        responses_behind([run.rows for run in before], metric),
        responses_behind([run.rows for run in after], metric),
    )
    tested = partial(compare_runs, *names, responses=responses, by_seed=by_seed, confidence=settings.confidence)
    test = tested(*values)
    figures = [_figures(runs, side, settings) for runs, side in zip(sides, values, strict=True)]
    return {
        "benchmark": before[0].benchmark,
        "metric": metric,
        "problems": test.problems,
        "models": dict(zip(names, figures, strict=True)),
        "comparison": test.to_row(),
        "by_level": _groups(rows, lambda row: row.level, values, tested),
        "by_subject": _groups(rows, lambda row: row.subject, values, tested),
    }


def _common(before: Sequence[Rows], after: Sequence[Rows]) -> int:
    return len(set.intersection(*({row.problem_id for row in rows} for rows in (*before, *after))))


def _figures(runs: Sequence[ModelRun], values: Sequence[Values], settings: Evaluate) -> dict[str, Any]:
    samples = min(len(run.rows[0].correct) for run in runs)
    rows = [row for run in runs for row in run.rows]
    k = max((k for k in settings.ks if k <= samples), default=1)
    interval = interval_over(values, settings)
    figures: dict[str, Any] = {
        "runs": [_mean(run) for run in values],
        "from": [run.where for run in runs],
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "samples": samples,
    }
    for name in ("pass_at_1", *(f"{kind}_{k}" for kind in ("pass_at", "maj_at") if k > 1)):
        figures[name] = sum_in_order(_mean(values_of(run.rows, name)) for run in runs) / len(runs)
    responses = sum(len(row.lengths) for row in rows)
    figures["response_length"] = sum(sum(row.lengths) for row in rows) / responses
    figures["truncated_share"] = sum(sum(row.truncated) for row in rows) / responses
    return figures


def _mean(values: Values) -> float:
    return sum_in_order(values.values()) / len(values)


def _groups(rows: Rows, key: Key, values: Sides, tested: Callable[..., Comparison]) -> Groups:
    """The comparison within each level or subject, MOST_GROUPS at most."""
    compared: Groups = {}
    for name, group in islice(group_by(rows, key).items(), MOST_GROUPS):
        before, after = ([{row.problem_id: run[row.problem_id] for row in group} for run in side] for side in values)
        first, second = (sum_in_order(map(_mean, side)) / len(side) for side in (before, after))
        compared[name] = {"problems": len(group), "before": first, "after": second, "difference": second - first}
        if len(group) > 1:
            test = tested(before, after)
            compared[name] |= {"low": test.low, "high": test.high}
    return compared


MOST_LOOKS = 10
GRID = 2001  # points per look at which the density of the statistic is kept


@cache
def look_levels(looks: int, level: float) -> tuple[float, ...]:
    """The p-value below which a difference is shown at each of `looks` equal parts (O'Brien and Fleming, 1979).

    The first looks ask for much, so that the last asks for little more than a single test would. The chance that any
    look shows a difference that is not there is `level`.

    >>> [round(p, 5) for p in look_levels(2, 0.05)]
    [0.00517, 0.04799]
    """
    if looks == 1:
        return (level,)
    from scipy.optimize import brentq  # 0.3 s, and --help needs the module

    bound = brentq(lambda c: crossing_chance(looks, c) - level, 1.0, 5.0, xtol=1e-8)
    return tuple(float(2 * ndtr(-bound * math.sqrt(looks / look))) for look in range(1, looks + 1))


def crossing_chance(looks: int, bound: float) -> float:
    """The chance that a Brownian motion is outside ±bound √looks at one of the times 1 to `looks`.

    Its density is carried from look to look on a grid (Armitage, McPherson and Rowe, JRSS A 132, 1969).
    """
    limit = bound * math.sqrt(looks)
    grid, step = np.linspace(-limit, limit, GRID, retstep=True)
    weights = np.full(GRID, step)
    weights[[0, -1]] /= 2
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    kernel = np.exp(-((grid[:, None] - grid[None, :]) ** 2) / 2) / math.sqrt(2 * math.pi)
    for _ in range(looks - 1):
        density = kernel @ (density * weights)
    return 1 - float((density * weights).sum())
