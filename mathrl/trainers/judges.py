"""Who else judges roll-outs than the rule: a reward model, a process reward model, continuations of prefixes.

A judge takes one process's groups after grading and gives them back with other rewards, or with rewards of
steps. What the rule said stays in `correct`, so that accuracy means the same in every run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from mathrl.core.out_of_memory import memory_part
from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.learners.partition import filled
from mathrl.params.run import Judge
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rewards.steps import step_ends
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.reward_model import scores_after
from mathrl.trainers.rollouts import RolloutGroup

JudgeFunction = Callable[[list[RolloutGroup]], list[RolloutGroup]]


def reward_model_judge(scorer: Any, how: Judge, end_token: int, budget: int) -> JudgeFunction:
    """reward = scaled score of the response + rule_weight x the rule's; a truncated response scores 0.

    Example, scale raw and rule_weight 0.5: score 1.2, right → 1.7; score 3.0 but truncated, wrong → 0.0.
    """

    def judge(groups: list[RolloutGroup]) -> list[RolloutGroup]:
        ends = [[(len(response) - 1,) for response in group.responses] for group in groups]
        out = []
        for group, rows in zip(groups, _scores(scorer, groups, ends, how, end_token, budget), strict=True):
            scores = [0.0 if cut else row[0] for row, cut in zip(rows, group.truncated, strict=True)]
            rewards = [s + how.rule_weight * r for s, r in zip(scores, group.rewards, strict=True)]
            out.append(replace(group, rewards=tuple(rewards), parts=_noted(group, "reward_model", scores)))
        return out

    return judge


def process_judge(scorer: Any, how: Judge, tokenizer: Any, rule: str, budget: int) -> JudgeFunction:
    """The scaled score after each step is the step's reward; the unfinished last step of a response that was
    cut off gets 0."""

    def judge(groups: list[RolloutGroup]) -> list[RolloutGroup]:
        ends = [[step_ends(response, tokenizer, rule) for response in group.responses] for group in groups]
        found = _scores(scorer, groups, ends, how, tokenizer.eos_token_id, budget)
        return [with_steps(*each) for each in zip(groups, ends, found, strict=True)]

    return judge


def continuations_judge(
    sampler: Sampler, problems: Sequence[Problem], reward: RewardFunction, params: Rl, how: Judge, rule: str, seed: int
) -> JudgeFunction:
    """The reward of a step is the share of `continuations` from its end that come out right (Math-Shepherd's
    soft labels, arXiv:2312.08935), by the policy as it is; of the last, whether the response is right.

    A continuation that is cut off did not come out right. `reward` is not the roll-outs' own, whose counters
    are theirs alone.
    """
    sampling = Sampling(how.continuations, params.temperature, params.max_tokens)

    def judge(groups: list[RolloutGroup]) -> list[RolloutGroup]:
        ends = [[step_ends(response, sampler.tokenizer, rule) for response in group.responses] for group in groups]
        begun = [
            problems[group.problem].with_(extra={**problems[group.problem].extra, "begun": response[: end + 1]})
            for group, rows in zip(groups, ends, strict=True)
            for response, places in zip(group.responses, rows, strict=True)
            for end in places[:-1]
        ]
        drawn = derive_seed(seed, "continuations", *(token for group in groups for token in group.responses[0]))
        rates = [
            sum(each.correct and each.completion.finish_reason != "length" for each in found or ()) / how.continuations
            for found in sampler.sample(begun, sampling, reward, drawn)
        ]
        left = iter(rates)
        out = []
        for group, rows in zip(groups, ends, strict=True):
            steps = [
                [*(next(left) for _ in places[:-1]), float(correct)]
                for places, correct in zip(rows, group.correct, strict=True)
            ]
            out.append(with_steps(group, rows, steps))
        return out

    return judge


def with_steps(
    group: RolloutGroup, ends: Sequence[tuple[int, ...]], rewards: Sequence[Sequence[float]]
) -> RolloutGroup:
    """The group with its steps' rewards; those of a response that was cut off end with 0."""
    told = [(*row[:-1], 0.0) if cut else tuple(row) for row, cut in zip(rewards, group.truncated, strict=True)]
    means = [sum(row) / len(row) for row in told]
    return replace(group, step_ends=tuple(ends), step_rewards=tuple(told), parts=_noted(group, "steps", means))


def _noted(group: RolloutGroup, name: str, values: Sequence[float]) -> tuple[dict[str, float], ...]:
    return tuple({**part, name: value} for part, value in zip(group.parts, values, strict=True))


@torch.no_grad()
def _scores(
    scorer: Any,
    groups: Sequence[RolloutGroup],
    ends: Sequence[Sequence[tuple[int, ...]]],
    how: Judge,
    end_token: int,
    budget: int,
) -> list[list[list[float]]]:
    """Scaled scores after the places `ends`, by group, response and place."""
    pairs = list(zip([group.group for group in groups], ends, strict=True))
    flat: list[float] = []
    with memory_part("reward model's scores", f"lower rl.tokens_per_microbatch (now {budget})"):
        for micro in filled(pairs, [group.packed_tokens for group, _ in pairs], budget):
            places = [place for _, rows in micro for place in rows]
            scores = scores_after(scorer, [group for group, _ in micro], places, end_token).float()
            flat += scaled(scores, how.scale, scorer.config).tolist()
    left = iter(flat)
    return [[[next(left) for _ in place] for place in rows] for rows in ends]


def scaled(scores: torch.Tensor, scale: str, config: Any) -> torch.Tensor:
    """Scores as rewards. A process reward model's are logits already: sigmoid leaves their zero where it is.

    >>> class Config: reward_mean, reward_std = 1.0, 2.0
    >>> scaled(torch.tensor([1.0, 3.0]), "standard", Config)
    tensor([0., 1.])
    """
    if scale == "raw":
        return scores
    if not getattr(config, "reward_logits", False):
        spread = max(float(getattr(config, "reward_std", 1.0)), 1e-6)
        scores = (scores - float(getattr(config, "reward_mean", 0.0))) / spread
    return torch.sigmoid(scores) if scale == "sigmoid" else scores
