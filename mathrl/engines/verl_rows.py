"""The problems of a run as verl's parquet rows with what its reward needs beside them; and, of a step of verl, its own
figures and those of the graded responses under mathrl's names."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mathrl.core.files import write_json
from mathrl.core.types import Completion, Graded, Problem
from mathrl.data.export import to_verl, write_parquet
from mathrl.engines.prompt_texts import PromptTexts, ordered_problems
from mathrl.engines.verl_config import VerlFiles
from mathrl.engines.verl_reward import DEV, input_text
from mathrl.params import Params
from mathrl.params.engines import VERL_METRICS
from mathrl.params.train import Rl
from mathrl.rewards.cascade import merged_counters
from mathrl.rollout.sampler import PromptRenderer
from mathrl.trainers.rollouts import metrics_by_source, rollout_groups, rollout_metrics


def write_rows(
    renderer: PromptRenderer,
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int] | None],
    dev: Sequence[Problem],
    params: Params,
    files: VerlFiles,
) -> tuple[list[int], int]:
    """Write a row per prompt of the run in mathrl's order, a row per dev problem, and the settings of the reward.

    Returns the number of each row's problem, and the length of the longest prompt in tokens. Without a dev problem
    that fits, dev has the first row, since verl needs one.

    Raises:
        UserError: no prompt fits, or verl would read one as other tokens.
    """
    numbers = ordered_problems(problems, prompts, params)
    texts = PromptTexts(renderer, "verl", adds_start=False)
    text_of = {number: texts.text(problems[number], prompts[number] or ()) for number in sorted(set(numbers))}
    held_out = [(problem, tokens) for problem in dev if (tokens := renderer.prompt_tokens(problem)) is not None]
    longest = max(len(prompts[number] or ()) for number in text_of)
    longest = max([longest, *(len(tokens) for _, tokens in held_out)])
    train = [
        _row(renderer, problems[number], text_of[number], index, "rl", params) for index, number in enumerate(numbers)
    ]
    rows = [
        _row(renderer, problem, texts.text(problem, tokens), index, DEV, params)
        for index, (problem, tokens) in enumerate(held_out)
    ]
    files.rows.mkdir(parents=True, exist_ok=True)
    write_parquet(files.train, train)
    write_parquet(files.dev, rows or train[:1])
    return numbers, longest


def write_reward_settings(params: Params, ends: Sequence[int], files: VerlFiles) -> None:
    """What `mathrl.engines.verl_reward` reads; `ends` are the tokens that end a response."""
    settings = {
        "reward": params.reward.model_dump(mode="json", by_alias=True),
        "ends": list(ends),
        "graded": str(files.graded_folder),
        "prompts_per_step": params.rl.prompts_per_step,
    }
    write_json(files.reward, settings)


def _row(
    renderer: PromptRenderer, problem: Problem, text: str, index: int, split: str, params: Params
) -> dict[str, Any]:
    """A row of `mathrl data export`, whose prompt is the rendered text, and the reward's input without the response."""
    nothing = Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), "", "stop")
    item = renderer.reward_input(problem, nothing, params.rl.max_tokens)
    row = to_verl(problem, index)
    extra = {"split": split, "index": index, "id": problem.id, "reward_input": input_text(item)}
    return {**row, "prompt": [{"role": "user", "content": text}], "extra_info": extra}


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
        [_graded_response(row, of.problems[number]) for row in rows if row["index"] == index]
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


def _graded_response(row: Mapping[str, Any], problem: Problem) -> Graded:
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
