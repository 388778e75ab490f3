"""From problems to graded responses: rendered, sampled by an engine, scored by the reward."""

import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.types import Completion, Graded, Problem
from mathrl.data.templates import render
from mathrl.models.device import choose_device
from mathrl.params import Params
from mathrl.params.run import Prompt
from mathrl.rewards.compose import RewardFunction, RewardInput
from mathrl.rollout.choices import stage_longest
from mathrl.rollout.engine import RolloutEngine, Sampling
from mathrl.rollout.open_engine import open_engine
from mathrl.rollout.turns import TurnSampler
from mathrl.tools.open_tool import open_tool
from mathrl.tools.tool import Tool


class PromptRenderer:
    """Problems as the tokens of prompts, and completions of them as the reward reads them; samples nothing itself."""

    def __init__(self, tokenizer: Any, prompt: Prompt, few_shot: Sequence[Problem] = ()) -> None:
        self.tokenizer, self.prompt, self.few_shot = tokenizer, prompt, few_shot
        self.prefix = tokenizer.encode(prompt.response_prefix, add_special_tokens=False)

    def prompt_tokens(self, problem: Problem) -> list[int] | None:
        """The tokens of the rendered problem and of the response prefix; None if the problem is too long.

        The tokens of `control.begun` follow, where a response is to be continued.
        """
        tokens = render(problem, self.prompt, self.tokenizer, self.few_shot)
        if len(tokens) > self.prompt.max_tokens:
            return None
        return [*tokens, *self.prefix, *problem.control.begun]

    def own_text(self, problem: Problem, completion: Completion) -> str:
        """What the model wrote: the text of the completion, after the start of a response that is continued."""
        begun = problem.control.begun
        if not begun:
            return completion.text
        # Decoded as one: a character, or a space between words, may lie across the two.
        text: str = self.tokenizer.decode([*begun, *completion.tokens.tolist()], skip_special_tokens=True)
        return text

    def reward_input(self, problem: Problem, completion: Completion, max_tokens: int) -> RewardInput:
        """What the reward is given of a completion of at most `max_tokens`, whoever sampled it."""
        return RewardInput(
            response=self.prompt.response_prefix + self.own_text(problem, completion),
            ground_truth=problem.answers,
            prompt=problem.question,
            length=len(completion.tokens),
            max_length=max_tokens,
            truncated=completion.finish_reason == "length",
            row={**problem.extra, "source": problem.source},
            routes=(*problem.control.routes, problem.source),
        )


class Sampler(PromptRenderer):
    """Renders problems, samples with an engine, grades. With `rollout.tool` responses call it (`rollout.turns`).

    `seconds` holds the wall-clock time of the last call's parts ("generation", "reward"), and "tools", the part of the
    generation that waited for tool calls.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        tokenizer: Any,
        prompt: Prompt,
        few_shot: Sequence[Problem] = (),
        tool: Tool | None = None,
    ) -> None:
        """`tool` is called in the place of that of `rollout.tool`.

        Raises:
            UserError: the tool cannot run here, or the tokenizer has no chat template for its calls.
        """
        super().__init__(tokenizer, prompt, few_shot)
        self.engine = engine
        self.seconds = {"generation": 0.0, "reward": 0.0, "tools": 0.0}
        rollout = engine.rollout
        if tool is None and rollout.tool.kind != "none":
            tool = open_tool(rollout.tool)
            weakref.finalize(self, tool.close)
        self.turns = TurnSampler(engine, tokenizer, tool, rollout.turns) if tool is not None else None

    def own_text(self, problem: Problem, completion: Completion) -> str:
        if self.turns is not None and completion.calls:
            return self.turns.own_words(completion)
        return super().own_text(problem, completion)

    def sample(
        self,
        problems: Sequence[Problem],
        sampling: Sampling,
        reward: RewardFunction,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
        prompts: Sequence[Sequence[int] | None] | None = None,
    ) -> list[list[Graded] | None]:
        """`sampling.samples` graded completions per problem; None for a problem whose prompt is too long.

        `prompts` are the problems' `prompt_tokens`, where the caller has them. A response prefix and the start of a
        continued response belong to the graded text and not to the completion, whose tokens and log-probs are those
        sampled.
        """
        prompts = [self.prompt_tokens(problem) for problem in problems] if prompts is None else prompts
        kept = [index for index, prompt in enumerate(prompts) if prompt is not None]
        start = time.perf_counter()
        generate = self.engine.generate if self.turns is None else self.turns.generate
        groups = generate([prompt for prompt in prompts if prompt is not None], sampling, seed, on_progress)
        middle = time.perf_counter()
        pairs = [(problems[i], completion) for i, group in zip(kept, groups, strict=True) for completion in group]
        graded = self.grade(pairs, sampling.max_tokens, reward)
        waited = self.turns.waited if self.turns is not None else 0.0
        self.seconds = {"generation": middle - start, "reward": time.perf_counter() - middle, "tools": waited}
        graded_groups: list[list[Graded] | None] = [None] * len(problems)
        for place, index in enumerate(kept):
            graded_groups[index] = graded[place * sampling.samples : (place + 1) * sampling.samples]
        return graded_groups

    def grade(
        self, pairs: Sequence[tuple[Problem, Completion]], max_tokens: int, reward: RewardFunction
    ) -> list[Graded]:
        """Each completion with its reward; whoever sampled it, it continues its problem's `prompt_tokens`."""
        inputs = [self.reward_input(problem, completion, max_tokens) for problem, completion in pairs]
        rewards = reward.score(inputs)
        reward.audit(inputs, rewards)
        return [
            Graded(
                problem_id=problem.id,
                completion=completion,
                correct=scored.correct,
                reward=scored.overall,
                parts=scored.parts,
                extracted=scored.verdict.extracted,
                rule=scored.verdict.rule,
                disagrees=scored.disagrees,
            )
            for (problem, completion), scored in zip(pairs, rewards, strict=True)
        ]


def open_sampler(folder: Path | str, params: Params, stage: str, few_shot: Sequence[Problem] = ()) -> Sampler:
    """The model of `folder` with the engine and the prompt that `params` name, for sequences as long as the stage's.

    Raises:
        UserError: as `open_engine`.
    """
    device, longest = choose_device(params.run.device), stage_longest(params, stage)
    engine, tokenizer = open_engine(folder, params.model, params.rollout, device, longest)
    return Sampler(engine, tokenizer, params.prompt, few_shot)
