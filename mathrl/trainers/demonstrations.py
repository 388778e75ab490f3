"""Problems with solutions → token ids to imitate, and a seeded endless order of them."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.data.sft_sets import demonstration
from mathrl.data.templates import is_chat, quoted, render, response_end
from mathrl.models.packing import Group
from mathrl.params.run import Prompt
from mathrl.rollout.call_formats import pieces_of

THINK = "<think>"


def tokenize_demonstrations(
    problems: Sequence[Problem], prompt: Prompt, tokenizer: Any, terse_share: float, seed: int, calls: bool = False
) -> list[Group]:
    """One group per problem, with one response, the end token included (`response_end`).

    A seeded `terse_share` of the responses is the answer alone, the others are the worked solution. A <think> that the
    prompt has opened is not opened again. With `calls` the outputs of ```python blocks are read and not learned; they
    are tokenized apart, as they are while sampling.

    Raises:
        UserError: there is no problem, or a problem whose worked solution is to be learned has none, or the chat
            template opens a reasoning block that the solution does not close, or a prompt holds its own answer.
    """
    if not problems:
        raise UserError("sft: there is no demonstration; give the sft split problems in params/curate.yaml")
    check_prompts(problems, prompt, tokenizer)
    order = list(range(len(problems)))
    random.Random(derive_seed(seed, "terse")).shuffle(order)
    terse = set(order[: round(terse_share * len(problems))])
    groups = []
    for index, problem in enumerate(problems):
        text = demonstration(problem, prompt, terse=index in terse)
        if problem.control.response is None:  # the words of a data set, not of a model
            text = quoted(text, tokenizer)
        prompt_ids = render(problem, prompt, tokenizer)
        if is_chat(problem, prompt) and tokenizer.decode(prompt_ids[-8:]).rstrip().endswith(THINK):
            text = _continued(text, problem)
        end = response_end(problem, prompt, tokenizer)
        pieces = pieces_of(text) if calls else [(text, True)]
        tokens = [(tokenizer.encode(piece, add_special_tokens=False), learned) for piece, learned in pieces]
        response = [*(token for ids, _ in tokens for token in ids), end]
        learned = np.array([*(flag for ids, flag in tokens for _ in ids), True])
        groups.append(Group(prompt_ids, (response,), () if learned.all() else (learned,)))
    return groups


def _continued(text: str, problem: Problem) -> str:
    """The response after a prompt that ends in an open <think>."""
    if problem.control.response is None and "</think>" not in text:
        raise UserError(
            f"problem {problem.id}: the model's chat template opens <think>, which the solution does not close: turn "
            "thinking off with prompt.chat_template_kwargs={enable_thinking: false} if the template reads it, write "
            "the solutions as reasoning</think>answer, or set prompt.template to boxed"
        )
    return text.removeprefix(THINK).removeprefix("\n") if text.startswith(THINK) else text


class Stream:
    """Item numbers, in a new seeded order each epoch; `cursor` counts those taken."""

    def __init__(self, size: int, seed: int, cursor: int = 0) -> None:
        self.size, self.seed, self.cursor = size, seed, cursor
        self._epoch = -1
        self._order: list[int] = []

    def take(self) -> int:
        epoch, place = divmod(self.cursor, self.size)
        if epoch != self._epoch:
            self._order = list(range(self.size))
            random.Random(derive_seed(self.seed, "epoch", epoch)).shuffle(self._order)
            self._epoch = epoch
        self.cursor += 1
        return self._order[place]
