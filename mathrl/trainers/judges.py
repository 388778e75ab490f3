"""Judges of rollouts beside the rule: a reward model, a process reward model, continuations of prefixes.

A judge takes one rank's groups after grading and returns them with other rewards, or with rewards of steps.
The rule's verdict stays in `correct`, so that accuracy means the same in every run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mathrl.core.errors import memory_part
from mathrl.core.hashing import derive_seed
from mathrl.core.statistics import sum_in_order
from mathrl.core.types import Problem, Tokens
from mathrl.learners.micro_batches import fill
from mathrl.models.device import Device
from mathrl.models.scores import load_scorer
from mathrl.params import Params
from mathrl.params.run import Judge
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction, build_reward
from mathrl.rewards.format import step_ends
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.reward_model import scores_after
from mathrl.trainers.rollouts import GroupJudge, RolloutGroup


def open_judge(
    params: Params, rl: Rl, sampler: Sampler, problems: Sequence[Problem], device: Device, folders: Mapping[str, Path]
) -> GroupJudge | None:
    """The judge beside the rule: the model in `folders` (reward_model, process_reward_model), or continuations.

    None if the rule judges alone.
    """
    judge, tokenizer, steps = params.reward.judge, sampler.tokenizer, params.reward.steps
    if "reward_model" in folders:
        scorer = load_scorer(folders["reward_model"], params.model, device)
        return reward_model_judge(scorer, judge, tokenizer.eos_token_id, rl.tokens_per_microbatch)
    if "process_reward_model" in folders:
        scorer = load_scorer(folders["process_reward_model"], params.model, device)
        return process_judge(scorer, judge, tokenizer, steps, rl.tokens_per_microbatch)
    if judge.continuations:
        reward = build_reward(params.reward)
        return continuations_judge(sampler, problems, reward, rl, judge, steps, params.run.seed)
    return None


def reward_model_judge(scorer: Any, params: Judge, end_token: int, budget: int) -> GroupJudge:
    """reward = scaled score of the response + rule_weight x the rule's; a truncated response scores 0.

    Example, scale raw and rule_weight 0.5: score 1.2, right → 1.7; score 3.0 but truncated, wrong → 0.0.
    """

    def judge(groups: list[RolloutGroup]) -> list[RolloutGroup]:
        ends = [[(len(response) - 1,) for response in group.responses] for group in groups]
        judged = []
        for group, rows in zip(groups, _scores(scorer, groups, ends, params, end_token, budget), strict=True):
            scores = [0.0 if truncated else row[0] for row, truncated in zip(rows, group.truncated, strict=True)]
            rewards = [s + params.rule_weight * r for s, r in zip(scores, group.rewards, strict=True)]
            judged.append(replace(group, rewards=tuple(rewards), parts=_with_part(group, "reward_model", scores)))
        return judged

    return judge


def process_judge(scorer: Any, params: Judge, tokenizer: Any, rule: str, budget: int) -> GroupJudge:
    """The scaled score after each step is the step's reward; the unfinished last step of a truncated response
    gets 0."""

    def judge(groups: list[RolloutGroup]) -> list[RolloutGroup]:
        ends = step_ends_of(groups, tokenizer, rule)
        scores = _scores(scorer, groups, ends, params, tokenizer.eos_token_id, budget)
        return [with_steps(*judged) for judged in zip(groups, ends, scores, strict=True)]

    return judge


def continuations_judge(
    sampler: Sampler, problems: Sequence[Problem], reward: RewardFunction, rl: Rl, params: Judge, rule: str, seed: int
) -> GroupJudge:
    """The reward of a step is the share of `continuations` from its end that are correct (Math-Shepherd's soft
    labels, arXiv:2312.08935), sampled from the policy as it is; that of the last step is the response's own
    correctness.

    A truncated continuation counts as wrong. `reward` is another instance than that of the rollouts, whose
    counters are of the rollouts alone.
    """
    sampling = Sampling(params.continuations, rl.temperature, rl.max_tokens)

    def judge(groups: list[RolloutGroup]) -> list[RolloutGroup]:
        ends = step_ends_of(groups, sampler.tokenizer, rule)
        prefixes = [
            with_start(problems[group.problem], response[: end + 1])
            for group, rows in zip(groups, ends, strict=True)
            for response, places in zip(group.responses, rows, strict=True)
            for end in places[:-1]
        ]
        sample_seed = derive_seed(seed, "continuations", *(token for group in groups for token in group.responses[0]))
        rates = iter(
            sum(response.correct and response.completion.finish_reason != "length" for response in responses or ())
            / params.continuations
            for responses in sampler.sample(prefixes, sampling, reward, sample_seed)
        )
        judged = []
        for group, rows in zip(groups, ends, strict=True):
            steps = [
                [*(next(rates) for _ in places[:-1]), float(correct)]
                for places, correct in zip(rows, group.correct, strict=True)
            ]
            judged.append(with_steps(group, rows, steps))
        return judged

    return judge


def with_start(problem: Problem, tokens: Tokens) -> Problem:
    """The problem with a response to continue."""
    return problem.with_(control=replace(problem.control, begun=tuple(tokens.tolist())))


def step_ends_of(groups: Sequence[RolloutGroup], tokenizer: Any, rule: str) -> list[list[tuple[int, ...]]]:
    """The places of the last token of each step, by group and response."""
    return [[step_ends(response.tolist(), tokenizer, rule) for response in group.responses] for group in groups]


def with_steps(
    group: RolloutGroup, ends: Sequence[tuple[int, ...]], rewards: Sequence[Sequence[float]]
) -> RolloutGroup:
    """The group with its steps' rewards; those of a truncated response end with 0."""
    rows = [
        (*row[:-1], 0.0) if truncated else tuple(row) for row, truncated in zip(rewards, group.truncated, strict=True)
    ]
    means = [sum_in_order(row) / len(row) for row in rows]
    return replace(group, step_ends=tuple(ends), step_rewards=tuple(rows), parts=_with_part(group, "steps", means))


def _with_part(group: RolloutGroup, name: str, values: Sequence[float]) -> tuple[dict[str, float], ...]:
    return tuple({**part, name: value} for part, value in zip(group.parts, values, strict=True))


@torch.no_grad()
def _scores(
    scorer: Any,
    groups: Sequence[RolloutGroup],
    ends: Sequence[Sequence[tuple[int, ...]]],
    params: Judge,
    end_token: int,
    budget: int,
) -> list[list[list[float]]]:
    """Scaled scores after the tokens at the places `ends`, by group, response and place."""
    pairs = list(zip([group.group for group in groups], ends, strict=True))
    flat: list[float] = []
    with memory_part("reward model's scores", f"lower rl.tokens_per_microbatch (now {budget})"):
        for micro in fill(pairs, [group.packed_tokens for group, _ in pairs], budget):
            places = [place for _, rows in micro for place in rows]
            scores = scores_after(scorer, [group for group, _ in micro], places, end_token).float()
            flat += scale_scores(scores, params.scale, scorer.config).tolist()
    values = iter(flat)
    return [[[next(values) for _ in places] for places in rows] for rows in ends]


def scale_scores(scores: torch.Tensor, scale: str, config: Any) -> torch.Tensor:
    """Scores as rewards. A process reward model's are logits already: sigmoid leaves their zero where it is.

    >>> class Config: reward_mean, reward_std = 1.0, 2.0
    >>> scale_scores(torch.tensor([1.0, 3.0]), "standard", Config)
    tensor([0., 1.])
    """
    if scale == "raw":
        return scores
    if not getattr(config, "reward_logits", False):
        spread = max(float(getattr(config, "reward_std", 1.0)), 1e-6)
        scores = (scores - float(getattr(config, "reward_mean", 0.0))) / spread
    return torch.sigmoid(scores) if scale == "sigmoid" else scores
