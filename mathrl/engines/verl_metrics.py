"""A step of verl under mathrl's names: its own figures, and those of the responses that mathrl's reward graded."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mathrl.core.types import Completion, Graded, Problem
from mathrl.params.engines import VERL_METRICS
from mathrl.params.train import Rl
from mathrl.rewards.counters import merged_counters
from mathrl.trainers.rollouts import metrics_by_source, rollout_groups, rollout_metrics

# Wall-clock figures and those of the machine, which equal runs do not share.
TIMINGS = ("timing_s/", "timing_per_token_ms/", "perf/")


@dataclass(frozen=True)
class RowProblems:
    """The problems of the rows of a run: `numbers` has the number of each row's problem.

    Example: RowProblems([1, 0, 1, 2], problems, prompts) for two steps of two prompts.
    """

    numbers: Sequence[int]
    problems: Sequence[Problem]
    prompts: Sequence[Sequence[int] | None]


def verl_figures(data: Mapping[str, float | None], gpus: int) -> dict[str, float]:
    """verl's row under mathrl's names; a figure that is not finite, which verl writes as null, is NaN.

    >>> verl_figures({"actor/grad_norm": None, "timing_s/gen": 2.0, "actor/pg_loss": 0.5, "perf/throughput": 10.0}, 2)
    {'grad_norm': nan, 'time/rollout': 2.0, 'verl/actor/pg_loss': 0.5, 'throughput/tokens_per_second': 20.0}
    """
    figures: dict[str, float] = {}
    for name, figure in data.items():
        value = math.nan if figure is None else float(figure)
        if name in VERL_METRICS:
            figures[VERL_METRICS[name]] = value
        elif name == "perf/throughput":  # per GPU
            figures["throughput/tokens_per_second"] = value * gpus
        elif name.startswith(TIMINGS):
            figures[f"time/verl/{name}"] = value
        else:
            figures[f"verl/{name}"] = value
    return figures


def take_graded(folder: Path) -> list[dict[str, Any]]:
    """What verl's processes have graded into the folder, in the rows' order; the folder is removed."""
    files = sorted(folder.glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    shutil.rmtree(folder, ignore_errors=True)
    return sorted(rows, key=lambda row: int(row["index"]))


def step_figures(rows: Sequence[Mapping[str, Any]], of: RowProblems, rl: Rl) -> tuple[dict[str, float], int]:
    """The figures of a step's graded responses, and how many tokens were sampled."""
    indices = sorted({int(row["index"]) for row in rows})
    numbers = [of.numbers[index] for index in indices]
    graded = [
        [_graded(row, of.problems[number]) for row in rows if row["index"] == index]
        for index, number in zip(indices, numbers, strict=True)
    ]
    groups = rollout_groups(numbers, [of.prompts[number] for number in numbers], graded)
    sampled = sum(group.sampled_tokens for group in groups)
    trained = rl.epochs * (sampled + sum(len(group.prompt) * len(group.responses) for group in groups))
    figures = {
        **rollout_metrics(groups, groups),
        **metrics_by_source(groups, of.problems),
        **merged_counters([row["counters"] for row in rows]),
        "trained_tokens": trained,
        "time/reward": sum(row["seconds"] for row in rows),
    }
    return figures, sampled


def dev_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Accuracy and length of the graded responses to the dev problems; nothing without any.

    >>> dev_figures([{"correct": True, "tokens": [5, 2]}, {"correct": False, "tokens": [5, 6, 7, 2]}])
    {'dev/accuracy': 0.5, 'dev/response_length': 3.0}
    """
    if not rows:
        return {}
    return {
        "dev/accuracy": sum(row["correct"] for row in rows) / len(rows),
        "dev/response_length": sum(len(row["tokens"]) for row in rows) / len(rows),
    }


def _graded(row: Mapping[str, Any], problem: Problem) -> Graded:
    """Without log-probs: verl keeps those that it sampled with."""
    completion = Completion(
        tokens=np.asarray(row["tokens"], np.int32),
        logprobs=np.zeros(0, np.float32),
        text=row["text"],
        finish_reason="length" if row["truncated"] else "stop",
    )
    return Graded(
        problem_id=problem.id,
        completion=completion,
        correct=row["correct"],
        reward=row["reward"],
        parts=row["parts"],
        extracted=row["extracted"],
        rule=row["rule"],
        disagrees=row["disagrees"],
    )
