"""Difficulty: the pass rate of a policy over k samples per problem, with its Wilson interval.

Measured counts are cached, so that another run, mixture or larger set reuses them: one file per policy,
`state_root()/pass_rates/<digest>.jsonl`, named by the digest of the model folder, the prompt (with its few-shot
examples), the reward, the engine, the sampling and the seed; one line per problem,
`{"problem": digest, "correct": 3}`.
"""

import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from math import comb, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from mathrl.core.hashing import derive_seed, digest
from mathrl.core.statistics import sum_in_order, wilson
from mathrl.core.types import NO_CONTROL, Problem


def pass_rate_row(problem: Problem, correct: int, samples: int) -> dict[str, Any]:
    """One line of pass_rates.jsonl.

    Example:
        {"id": "chain/rl/00012", "correct": 3, "samples": 8, "pass_rate": 0.375, "low": 0.1368,
         "high": 0.6943, "level": 3, "source": "chain"}
    """
    low, high = wilson(correct, samples)
    return {
        "id": problem.id,
        "source": problem.source,
        "level": problem.level,
        "correct": correct,
        "samples": samples,
        "pass_rate": correct / samples,
        "low": round(low, 4),
        "high": round(high, 4),
    }


def seeded_subset(problems: Sequence[Problem], count: int | None, seed: int) -> list[Problem]:
    """`count` problems chosen by the seed, in their order; all of them if there are no more."""
    if count is None or count >= len(problems):
        return list(problems)
    at = sorted(random.Random(derive_seed(seed, "difficulty", "choose")).sample(range(len(problems)), count))
    return [problems[i] for i in at]


def summarise(rows: Sequence[dict[str, Any]], ks: Sequence[int] = (1, 2, 4, 8)) -> dict[str, Any]:
    """Figures of a set of pass rates: pass_at_k, the shares never and always solved, and `level_agreement`,
    Spearman's rho with the levels of the source over the `level_agreement_problems` problems that have one."""
    summary: dict[str, Any] = {"problems": len(rows), "samples": min(row["samples"] for row in rows)}
    for k in ks:
        if k <= summary["samples"]:
            summary[f"pass_at_{k}"] = sum_in_order(_pass(row, k) for row in rows) / len(rows)
    summary["never_solved"] = sum(row["correct"] == 0 for row in rows) / len(rows)
    summary["always_solved"] = sum(row["correct"] == row["samples"] for row in rows) / len(rows)
    levelled = [(row["level"], row["pass_rate"]) for row in rows if row["level"] is not None]
    levels = sorted({level for level, _ in levelled})
    summary["by_level"] = {
        str(level): {"problems": len(rates), "pass_rate": sum_in_order(rates) / len(rates)}
        for level in levels
        if (rates := [rate for row_level, rate in levelled if row_level == level])
    }
    summary["level_agreement_problems"] = len(levelled)
    summary["level_agreement"] = rank_correlation([-level for level, _ in levelled], [rate for _, rate in levelled])
    return summary


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rho with mean ranks for ties; None where one side is constant."""
    a, b = _ranks(first), _ranks(second)
    n = len(a)
    if n < 2 or len(set(a)) == 1 or len(set(b)) == 1:
        return None
    mean_a, mean_b = sum_in_order(a) / n, sum_in_order(b) / n
    shared = sum_in_order((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    squares_a, squares_b = (sum_in_order((x - mean) ** 2 for x in c) for c, mean in ((a, mean_a), (b, mean_b)))
    return shared / sqrt(squares_a * squares_b)


def problem_key(problem: Problem) -> str:
    """Digest of what the prompt and the verdict depend on: neither id nor split nor level."""
    control = [problem.control.to_row()] if problem.control != NO_CONTROL else []
    return digest([problem.question, problem.answers, problem.source, problem.extra, *control])


def cache_file(root: Path, policy: str, *settings: Any, few_shot: Sequence[Problem] = ()) -> Path:
    """The file of a policy's digest under these settings (JSON-able: prompt, reward, sampling, seed)."""
    examples = [[example.question, example.answers, example.solution] for example in few_shot]
    return root / "pass_rates" / f"{digest([policy, examples, *settings])}.jsonl"


def read_cached_counts(file: Path, problems: Iterable[Problem]) -> dict[str, int]:
    """Correct samples by problem key, for the problems measured before; a torn last line is ignored."""
    keys = {problem_key(problem) for problem in problems}
    counts: dict[str, int] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        if not line:
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # a write that was cut short
        if row["problem"] in keys:
            counts[row["problem"]] = int(row["correct"])
    return counts


def add_cached_counts(file: Path, correct: Mapping[str, int]) -> None:
    """Append counts to the cache; several processes may do so at once."""
    if not correct:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"problem": key, "correct": count}) + "\n" for key, count in sorted(correct.items()))
    with FileLock(file.with_suffix(".lock")), file.open("a", encoding="utf-8") as stream:
        # The line break comes first: it ends a line whose write was cut short.
        stream.write("\n" + lines if file.stat().st_size else lines)
        stream.flush()
        os.fsync(stream.fileno())


def _pass(row: dict[str, Any], k: int) -> float:
    n, c = row["samples"], row["correct"]
    return 1 - comb(n - c, k) / comb(n, k)


def _ranks(values: Sequence[float]) -> list[float]:
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: list[float] = (np.cumsum(counts) - (counts + 1) / 2)[groups].tolist()
    return ranks
