"""Worked solutions in an RL batch: as expert responses, groups of one response each, or in a teacher's prompt.

Experts stand behind the sampled groups in the batch, have the policy's own log-probs as the old ones, and are in no
figure of the rollouts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.types import Completion, Problem
from mathrl.data.templates import demonstration, quote_control_tokens, render, response_end
from mathrl.params.advantage import SelfDistillation
from mathrl.params.imitation import Luffy, SftTerm, Solutions
from mathrl.trainers.collect import Collector
from mathrl.trainers.rollouts import RolloutGroup

# Log-probs of groups' tokens by the policy, [N].
Score = Callable[[Sequence[RolloutGroup]], Tensor]


def expert_groups(groups: Sequence[RolloutGroup], collector: Collector, score: Score) -> list[RolloutGroup]:
    """A group with the worked solution of each sampled group's problem; none for a problem without one, or a long one.

    With rl.imitation luffy the solution has its reward, as a response that was sampled.
    """
    params = collector.params
    if not isinstance(params.imitation, Luffy | SftTerm | Solutions):
        return []
    experts = []
    for group in groups:
        tokens = expert_tokens(collector.problems[group.problem], collector)
        if tokens is not None:
            experts.append(_group(group, tokens))
    if not experts:
        return []
    if isinstance(params.imitation, Luffy):
        experts = _grade(experts, collector)
    lengths = [len(group.responses[0]) for group in experts]
    logprobs = torch.split(score(experts), lengths)
    return [replace(group, logprobs=(values.numpy(),)) for group, values in zip(experts, logprobs, strict=True)]


def expert_tokens(problem: Problem, collector: Collector) -> list[int] | None:
    """The worked solution as a response to the problem's prompt; None without one, or where it is too long."""
    sampler = collector.sampler
    if not problem.solution and problem.control.response is None:
        return None
    text = demonstration(problem, sampler.prompt, terse=False).removeprefix(sampler.prompt.response_prefix)
    if problem.control.response is None:
        text = quote_control_tokens(text, sampler.tokenizer)
    ids = sampler.tokenizer.encode(text, add_special_tokens=False)
    tokens = [*ids, response_end(problem, sampler.prompt, sampler.tokenizer)]
    return tokens if len(tokens) <= collector.params.max_tokens else None


def _group(group: RolloutGroup, tokens: list[int]) -> RolloutGroup:
    return RolloutGroup(
        problem=group.problem,
        prompt=group.prompt,
        responses=(np.array(tokens, np.int32),),
        logprobs=(np.zeros(len(tokens), np.float32),),
        rewards=(0.0,),
        correct=(True,),
        truncated=(False,),
        parts=({},),
        repeated=(0.0,),
        caught=("",),
        left_out=(False,),
        expert=True,
    )


def _grade(experts: Sequence[RolloutGroup], collector: Collector) -> list[RolloutGroup]:
    sampler = collector.sampler
    pairs = []
    for group in experts:
        tokens = group.responses[0]
        text = sampler.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
        pairs.append((collector.problems[group.problem], Completion(tokens, group.logprobs[0], text, "stop")))
    graded = sampler.grade(pairs, collector.params.max_tokens, collector.reward)
    collector.reward.counters()  # resets them: the counters of a step are those of its rollouts
    return [
        replace(group, rewards=(row.reward,), correct=(row.correct,))
        for group, row in zip(experts, graded, strict=True)
    ]


def shown_groups(groups: Sequence[RolloutGroup], collector: Collector) -> list[RolloutGroup]:
    """The groups with the prompts that show their solutions, for self-distillation; none for another advantage."""
    advantage = collector.params.advantage
    if not isinstance(advantage, SelfDistillation):
        return []
    prompts = {
        number: shown_prompt(collector.problems[number], advantage, collector)
        for number in {group.problem for group in groups}
    }
    return [replace(group, prompt=prompts[group.problem]) for group in groups]


def shown_prompt(problem: Problem, params: SelfDistillation, collector: Collector) -> tuple[int, ...]:
    """The problem's prompt with its solution, or its answer where it has none, as rl.advantage.hint puts it.

    Raises:
        UserError: the problem has neither, or its prompt is templated already.
    """
    solution = problem.solution or problem.control.response or next(iter(problem.answers), None)
    if solution is None or problem.control.templated:
        what = "has neither a solution nor an answer" if solution is None else "has a prompt that is templated already"
        raise UserError(
            f"rl.advantage self_distillation: problem {problem.id} {what}, so that nothing can be shown: leave it out, "
            "or take another rl.advantage"
        )
    sampler, messages = collector.sampler, problem.control.messages
    shown = problem.with_(question=params.show(problem.question, solution))
    if messages:
        last = {**messages[-1], "content": params.show(messages[-1]["content"], solution)}
        shown = shown.with_(control=replace(problem.control, messages=(*messages[:-1], last)))
    return (*render(shown, sampler.prompt, sampler.tokenizer, sampler.few_shot), *sampler.prefix)
