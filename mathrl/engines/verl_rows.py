"""The problems of a run as verl's parquet rows, and what its reward needs beside them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mathrl.core.files import write_json
from mathrl.core.types import Completion, Problem
from mathrl.data.export import to_verl, write_parquet
from mathrl.engines.prompt_texts import PromptTexts, ordered_problems
from mathrl.engines.verl_config import VerlFiles
from mathrl.engines.verl_reward import DEV, input_text
from mathrl.params import Params
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import PromptRenderer


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
        "graded": str(files.graded),
        "prompts_per_step": params.rl.prompts_per_step,
    }
    write_json(files.reward, settings)


def _row(
    renderer: PromptRenderer, problem: Problem, text: str, index: int, split: str, params: Params
) -> dict[str, Any]:
    """A row of `mathrl data export`, whose prompt is the rendered text, and the reward's input without the response."""
    sampling = Sampling(params.rl.group_size, params.rl.temperature, params.rl.max_tokens)
    nothing = Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), "", "stop")
    item = renderer.reward_input(problem, nothing, sampling)
    row = to_verl(problem, index)
    extra = {"split": split, "index": index, "id": problem.id, "reward_input": input_text(item)}
    return {**row, "prompt": [{"role": "user", "content": text}], "extra_info": extra}
