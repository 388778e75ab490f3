"""Problems with solutions → token ids to imitate, and a seeded endless order of them."""

import random
from collections.abc import Sequence
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.data.sft_sets import demonstration
from mathrl.data.templates import render
from mathrl.models.packing import Group
from mathrl.params.run import Prompt


def tokenize_demonstrations(
    problems: Sequence[Problem], prompt: Prompt, tokenizer: Any, terse_share: float, seed: int
) -> list[Group]:
    """One group per problem, with one response, the end token included.

    A seeded `terse_share` of the responses is the answer alone, the others are the worked solution.

    Raises:
        UserError: there is no problem, or a problem whose worked solution is to be learned has none.
    """
    if not problems:
        raise UserError("sft: there is no demonstration; give the sft split problems in params/curate.yaml")
    order = list(range(len(problems)))
    random.Random(derive_seed(seed, "terse")).shuffle(order)
    terse = set(order[: round(terse_share * len(problems))])
    groups = []
    for index, problem in enumerate(problems):
        text = demonstration(problem, prompt, terse=index in terse)
        response = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        groups.append(Group(render(problem, prompt, tokenizer), (response,)))
    return groups


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
