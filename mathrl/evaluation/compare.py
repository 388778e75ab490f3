"""Two models, or two recipes of several runs each, on one benchmark: figures, the test, breakdowns."""

from collections.abc import Callable, Sequence
from typing import Any

from mathrl.core.types import EvalRow
from mathrl.evaluation.intervals import Interval, cluster_interval
from mathrl.evaluation.responses import ModelRun
from mathrl.evaluation.runs import compare_runs, seeds_interval
from mathrl.evaluation.summary import values_of
from mathrl.params.evaluate import Evaluate

MOST_GROUPS = 50


def compare_sides(
    before: Sequence[ModelRun], after: Sequence[ModelRun], names: tuple[str, str], metric: str, how: Evaluate, seed: int
) -> dict[str, Any]:
    """Everything that `mathrl compare` prints; the runs have the same problems (`common_problems`).

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
    options = {"confidence": how.confidence, "resamples": how.resamples, "seed": seed}
    values = [[values_of(run.rows, metric) for run in side] for side in (before, after)]
    test = compare_runs(*names, *values, **options)  # type: ignore[arg-type]
    models = {
        name: _figures(side, each, how, seed) for name, side, each in zip(names, (before, after), values, strict=True)
    }
    keys: dict[str, Callable[[EvalRow], Any]] = {
        "by_level": lambda row: row.level,
        "by_subject": lambda row: row.subject,
    }
    out: dict[str, Any] = {
        "benchmark": before[0].benchmark,
        "metric": metric,
        "problems": test.problems,
        "models": models,
        "comparison": test.to_row(),
    }
    for by, key in keys.items():
        groups: dict[Any, list[str]] = {}
        for row in before[0].rows:
            if key(row) is not None:
                groups.setdefault(key(row), []).append(row.problem_id)
        out[by] = {}
        for group in sorted(groups)[:MOST_GROUPS]:
            part = [[{id: run[id] for id in groups[group]} for run in side] for side in values]
            out[by][str(group)] = _group(part, names, options)
    return out


def _figures(runs: Sequence[ModelRun], values: Sequence[dict[str, float]], how: Evaluate, seed: int) -> dict[str, Any]:
    samples = min(len(run.rows[0].correct) for run in runs)
    rows = [row for run in runs for row in run.rows]
    k = max((k for k in how.ks if k <= samples), default=1)
    interval = _interval(values, how, seed)
    out: dict[str, Any] = {
        "runs": [sum(each.values()) / len(each) for each in values],
        "from": [run.where for run in runs],
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "samples": samples,
    }
    for name in ("pass_at_1", *(f"{kind}_{k}" for kind in ("pass_at", "maj_at") if k > 1)):
        found = [values_of(run.rows, name) for run in runs]
        out[name] = sum(sum(each.values()) / len(each) for each in found) / len(found)
    every = sum(len(row.lengths) for row in rows)
    out["response_length"] = sum(sum(row.lengths) for row in rows) / every
    out["truncated_share"] = sum(sum(row.truncated) for row in rows) / every
    return out


def _interval(values: Sequence[dict[str, float]], how: Evaluate, seed: int) -> Interval:
    if len(values) > 1:
        return seeds_interval(values, confidence=how.confidence)
    return cluster_interval(list(values[0].values()), confidence=how.confidence, resamples=how.resamples, seed=seed)


def _group(values: Sequence[Sequence[dict[str, float]]], names: tuple[str, str], options: Any) -> dict[str, Any]:
    means = [sum(sum(run.values()) / len(run) for run in side) / len(side) for side in values]
    row: dict[str, Any] = {"problems": len(values[0][0]), "before": means[0], "after": means[1]}
    row["difference"] = means[1] - means[0]
    if row["problems"] > 1:
        test = compare_runs(*names, *values, **options)
        row |= {"low": test.low, "high": test.high}
    return row
