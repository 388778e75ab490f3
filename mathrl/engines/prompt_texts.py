"""mathrl's prompts as texts that another engine's tokenizer turns into exactly mathrl's tokens, in rows of problems."""

from collections.abc import Sequence

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.templates import prompt_text
from mathrl.params import Params
from mathrl.params.curriculum import FixedOrder
from mathrl.rollout.sampler import PromptRenderer
from mathrl.trainers.curriculum import ProblemOrder


class PromptTexts:
    """Problems as texts for `engine`, whose call of the tokenizer adds the start token itself if `adds_start`."""

    def __init__(self, renderer: PromptRenderer, engine: str, *, adds_start: bool) -> None:
        self.renderer, self.tokenizer, self.engine, self.adds_start = renderer, renderer.tokenizer, engine, adds_start
        starts = list(self.tokenizer("")["input_ids"])
        self.start = self.tokenizer.bos_token if starts[:1] == [self.tokenizer.bos_token_id] else None

    def text(self, problem: Problem, tokens: Sequence[int]) -> str:
        """The problem's prompt with `prompt.response_prefix`; `tokens` are mathrl's of it.

        The start token stands in the text once, or not at all where the engine adds it.

        Raises:
            UserError: the engine would train on other tokens.
        """
        prompt = self.renderer.prompt
        text = prompt_text(problem, prompt, self.tokenizer, self.renderer.few_shot) + prompt.response_prefix
        if self.start:
            text = ("" if self.adds_start else self.start) + text.removeprefix(self.start)
        theirs = list(self.tokenizer(text=[text], add_special_tokens=self.adds_start)["input_ids"][0])
        if theirs != list(tokens):
            place = next((n for n, (a, b) in enumerate(zip(theirs, tokens, strict=False)) if a != b), len(theirs))
            raise UserError(
                f"problem {problem.id}: {self.engine} reads its prompt as other tokens than mathrl ({len(theirs)} and "
                f"{len(tokens)}, the first difference at token {place}): set prompt.response_prefix to text that "
                "begins a token of its own, or rl.engine to mathrl"
            )
        return text


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
