"""Figures of evaluated models: accuracy with its interval, pass@k, maj@k, lengths, by level and subject."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.types import EvalRow
from mathrl.evaluation.intervals import cluster_interval
from mathrl.evaluation.paired import Comparison, compare
from mathrl.evaluation.pass_at_k import answer_classes, maj_at_k, pass_at_k
from mathrl.grading.grade import equal_answers
from mathrl.params.evaluate import Evaluate

PAIRS = (("sft", "rl"), ("base", "rl"))


def accuracies(rows: Sequence[EvalRow]) -> dict[str, float]:
    """pass@1 of each problem: the mean over its samples."""
    return {row.problem_id: sum(row.correct) / len(row.correct) for row in rows}


def summarise(rows: Sequence[EvalRow], how: Evaluate, seed: int) -> dict[str, Any]:
    """The figures of one model on one benchmark; metric names take no @.

    Example:
        {"problems": 500, "samples": 8, "pass_at_1": 0.884, "pass_at_1_low": 0.861, "pass_at_1_high": 0.906,
         "pass_at_8": 0.945, "maj_at_8": 0.913, "response_length": 34.1, "truncated_share": 0.002,
         "no_answer_share": 0.001, "by_level": {"2": {"problems": 100, "pass_at_1": 0.97, …}},
         "by_subject": {}}
    """
    samples = len(rows[0].correct)
    out: dict[str, Any] = {"problems": len(rows), "samples": samples}
    out |= _accuracy(rows, how, seed)
    classes = [answer_classes(row.extracted, row.correct, equal_answers) for row in rows]
    for k in sorted({k for k in how.ks if k <= samples}):
        if k > 1:
            values = [pass_at_k(samples, sum(row.correct), k) for row in rows]
            out |= _named(f"pass_at_{k}", values, how, seed)
            votes = [maj_at_k(right, wrong, silent, k) for right, wrong, silent in classes]
            out |= _named(f"maj_at_{k}", votes, how, seed)
    every = len(rows) * samples
    out["response_length"] = sum(sum(row.lengths) for row in rows) / every
    out["truncated_share"] = sum(sum(row.truncated) for row in rows) / every
    out["no_answer_share"] = sum(answer is None for row in rows for answer in row.extracted) / every
    out["by_level"] = _broken_down(rows, lambda row: row.level, how, seed)
    out["by_subject"] = _broken_down(rows, lambda row: row.subject, how, seed)
    return out


def values_of(rows: Sequence[EvalRow], metric: str) -> dict[str, float]:
    """One value a problem: pass_at_1, pass_at_k or maj_at_k.

    Raises:
        UserError: no such metric, or k above the number of samples.
    """
    if metric == "pass_at_1":
        return accuracies(rows)
    name, _, k_text = metric.rpartition("_")
    samples = len(rows[0].correct)
    if name not in ("pass_at", "maj_at") or not k_text.isdigit() or not 1 <= int(k_text) <= samples:
        raise UserError(
            f"no metric {metric!r} with {samples} samples a problem; there are pass_at_K and maj_at_K with K "
            f"from 1 to {samples}"
        )
    k = int(k_text)
    if name == "pass_at":
        return {row.problem_id: pass_at_k(samples, sum(row.correct), k) for row in rows}
    return {row.problem_id: maj_at_k(*answer_classes(row.extracted, row.correct, equal_answers), k) for row in rows}


def comparisons(models: Mapping[str, Sequence[EvalRow]], how: Evaluate, seed: int) -> dict[str, Comparison]:
    """The paired tests sft → rl and base → rl where both were evaluated: {"sft_to_rl": …}."""
    return {
        f"{before}_to_{after}": compare(
            before,
            after,
            accuracies(models[before]),
            accuracies(models[after]),
            confidence=how.confidence,
            resamples=how.resamples,
            seed=seed,
        )
        for before, after in PAIRS
        if before in models and after in models
    }


def _accuracy(rows: Sequence[EvalRow], how: Evaluate, seed: int) -> dict[str, float]:
    return _named("pass_at_1", list(accuracies(rows).values()), how, seed)


def _named(name: str, values: Sequence[float], how: Evaluate, seed: int) -> dict[str, float]:
    found = cluster_interval(values, confidence=how.confidence, resamples=how.resamples, seed=seed)
    return {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}


def _broken_down(rows: Sequence[EvalRow], key: Callable[[EvalRow], Any], how: Evaluate, seed: int) -> dict[str, Any]:
    groups: dict[Any, list[EvalRow]] = {}
    for row in rows:
        if key(row) is not None:
            groups.setdefault(key(row), []).append(row)
    return {str(k): {"problems": len(groups[k]), **_accuracy(groups[k], how, seed)} for k in sorted(groups)}
