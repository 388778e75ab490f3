"""Whether the prompts and answers of the data fit a stage's maximum lengths, in tokens of its pretrained model.

The dry run, the plan and the stages ask this one function, with at most ROWS problems, chosen by the run's seed.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from mathrl.core.files import encodable
from mathrl.core.types import Problem
from mathrl.data.difficulty import seeded_subset
from mathrl.data.templates import prompt_lengths, worked_solution
from mathrl.models.shapes import positions_of
from mathrl.params import Params
from mathrl.params.messages import Doubt
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import SAMPLING

ROWS = 2000  # that are counted; the share that is cut off is then known to about 1.3 points
MOST_CUT = 0.1  # share of the prompts, or of the answers, that may be longer than the length


def length_doubts(
    params: Params,
    stage: str,
    problems: Sequence[Problem],
    tokenizer: Any,
    few_shot: Sequence[Problem] = (),
    of: str = "the data",
) -> list[Doubt]:
    """The lengths of the stage that more than a tenth of the problems exceed, with what to write instead.

    The length of an answer is that of the worked solution, where a problem has one, else of the final answer. A length
    that takes all the positions of the model is not doubted. Random weights are not judged. `of` says whose problems
    they are.
    """
    base = params.model.base
    if not isinstance(base, PretrainedModel) or not problems:
        return []
    chosen = seeded_subset(problems, ROWS, params.run.seed)
    room = positions_of(base.path)
    prompts = prompt_lengths(chosen, params.prompt, tokenizer, few_shot)
    most = params.prompt.max_tokens
    doubts = [_doubt("prompt.max_tokens", most, prompts, f"prompts of {of}", room and room // 2)]
    if stage in SAMPLING:
        answers = answer_lengths(chosen, tokenizer)
        what = "solutions" if all(problem.solution for problem in chosen) else "solutions and answers"
        length = getattr(params, stage).max_tokens
        doubts.append(_doubt(f"{stage}.max_tokens", length, answers, f"{what} of {of}", room and room - most))
    return [doubt for doubt in doubts if doubt is not None]


def answer_lengths(problems: Sequence[Problem], tokenizer: Any) -> list[int]:
    """Tokens of each problem's worked solution, where it has one, else of its final answer."""
    texts = [worked_solution(p) if p.solution else next(iter(p.answers), "") for p in problems]
    encoded = tokenizer([encodable(text) for text in texts], add_special_tokens=False) if texts else {"input_ids": []}
    return [len(tokens) for tokens in encoded["input_ids"]]


def nearly_all(lengths: Sequence[int]) -> int:
    """The 95th percentile, a length that occurs."""
    return int(np.percentile(lengths, 95, method="higher"))


def _doubt(key: str, most: int, lengths: Sequence[int], what: str, room: int | None) -> Doubt | None:
    """`room` is the largest length that the model's positions allow."""
    share = float(np.mean(np.array(lengths) > most))
    if share <= MOST_CUT or (room is not None and most >= room):
        return None
    longest = nearly_all(lengths)
    suited = 32 * ceil(longest / 32)
    return Doubt(
        key,
        f"{key} is {most}, and {share:.1%} of {len(lengths):,} {what} are longer (95th percentile: {longest:,} tokens)",
        f"set {key}={suited if room is None else min(suited, room)}",
        str(most),
    )
