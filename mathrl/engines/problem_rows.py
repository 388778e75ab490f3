"""The problems of a whole run in mathrl's order, for engines that take them from a data set."""

from collections.abc import Sequence

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.params import Params
from mathrl.params.curriculum import FixedOrder
from mathrl.trainers.curriculum import ProblemOrder


def ordered_problems(problems: Sequence[Problem], prompts: Sequence[Sequence[int] | None], params: Params) -> list[int]:
    """The number of the problem of each prompt of the run, `rl.prompts_per_step` of them per step.

    Raises:
        UserError: no prompt fits.
    """
    rl = params.rl
    usable = [index for index, prompt in enumerate(prompts) if prompt is not None]
    if not usable:
        raise UserError("rl: every prompt is longer than prompt.max_tokens; raise it in params/prompt.yaml")
    assert isinstance(rl.curriculum, FixedOrder), "the others are refused"
    order = ProblemOrder(rl.curriculum, problems, usable, rl.steps * rl.prompts_per_step, params.run.seed)
    return [number for _ in range(rl.steps) for number in order.take(rl.prompts_per_step)]
