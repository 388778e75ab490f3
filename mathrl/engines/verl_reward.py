"""mathrl's reward in verl's processes: its `custom_reward_function`, which also writes down what it graded.

verl calls `compute_score` for each response. Whatever mathrl's metrics need of it goes to a file of this process in the
folder of its step, which mathrl reads once verl has reported the step (mathrl/engines/verl_graded.py).
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from mathrl.params.run import Reward
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult, build_reward

DEV = "dev"
# Key under which the reward manager hands over the response's token ids.
TOKENS = "response_tokens"
_grading = threading.Lock()  # the reward counts, and verl calls from several threads


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any], *, settings: str
) -> dict[str, float]:
    """The composed reward as `score`, the verdict as `acc`, and the parts of the reward that every route has.

    verl puts what it gets into columns of a batch, so that every response must have the same keys.

    `extra_info` are a row's of `mathrl.engines.verl_rows`, with the response's token ids; `settings` is the file that
    it has written.
    """
    start = time.perf_counter()
    file_settings = _settings(settings)
    tokens = [int(token) for token in extra_info[TOKENS]]
    truncated = not tokens or tokens[-1] not in file_settings["ends"]
    item = reward_input(str(extra_info["reward_input"]))
    item = replace(item, response=item.response + solution_str, length=len(tokens), truncated=truncated)
    with _grading:
        reward = _reward(settings)
        (result,) = reward.score([item])
        reward.audit([item], [result])
        row = {
            "index": int(extra_info["index"]),
            "tokens": tokens,
            "text": solution_str,
            "truncated": truncated,
            **_verdict(result),
            "counters": reward.counters(),
            "seconds": time.perf_counter() - start,
        }
        _write(file_settings, str(extra_info["split"]), row)
    parts = {name: result.parts[name] for name in reward.common_parts()}
    return {**parts, "score": result.overall, "acc": float(result.correct)}  # whatever a part is called


def reward_input(text: str) -> RewardInput:
    """The input of a reward, written by `input_text`."""
    values = json.loads(text)
    for name in ("ground_truth", "routes"):
        values[name] = tuple(values[name])
    return RewardInput(**values)


def input_text(item: RewardInput) -> str:
    """The input as JSON.

    >>> reward_input(input_text(RewardInput("", ("2", "-2"), routes=("sums",)))).ground_truth
    ('2', '-2')
    """
    return json.dumps(asdict(item))


def folder_of(graded: Path, split: str, index: int, prompts_per_step: int) -> Path:
    """Where the responses to a row are written down: a folder per step, and one for dev.

    >>> folder_of(Path("graded"), "rl", 64, 32).as_posix()
    'graded/step-3'
    """
    return graded / (DEV if split == DEV else f"step-{index // prompts_per_step + 1}")


def _verdict(result: RewardResult) -> dict[str, Any]:
    return {
        "correct": result.correct,
        "reward": result.overall,
        "parts": result.parts,
        "extracted": result.verdict.extracted,
        "rule": result.verdict.rule,
        "disagrees": result.disagrees,
    }


def _write(file_settings: Mapping[str, Any], split: str, row: Mapping[str, Any]) -> None:
    folder = folder_of(Path(file_settings["graded"]), split, row["index"], file_settings["prompts_per_step"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{os.uname().nodename}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


@cache
def _settings(file: str) -> dict[str, Any]:
    return dict(json.loads(Path(file).read_text(encoding="utf-8")))


@cache
def _reward(file: str) -> RewardFunction:
    return build_reward(Reward.model_validate(_settings(file)["reward"]), processes=1)
