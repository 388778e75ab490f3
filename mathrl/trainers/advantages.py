"""The advantages of a step's rollouts, from their rewards or from a critic's values.

Shapes: P groups of G responses, S = P G; N the tokens of all responses (groups, responses, tokens in order).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mathrl.algorithms.advantages import group_advantages, process_advantages
from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.returns import discounted_returns, gae, response_sums, token_rewards
from mathrl.algorithms.set_objectives import part_advantages, set_advantages
from mathrl.core.errors import UserError
from mathrl.params.advantage import (
    Advantage,
    DrGrpo,
    Gae,
    Gdpo,
    Grpo,
    MaxRl,
    PassAtK,
    Pkpo,
    Process,
    Ramp,
    Reinforce,
    Remax,
    Rft,
    Rloo,
)
from mathrl.trainers.rollouts import RolloutGroup


def outcome_advantages(
    groups: Sequence[RolloutGroup], lengths_S: Tensor, penalty_N: Tensor | None, params: Advantage
) -> Tensor:
    """Advantages that need no other model: [S] where they are those of responses, [N] where their tokens differ.

    With a penalty (the KL in the reward), a group's responses are compared by reward minus summed penalty.
    """
    match params:
        case Rft():
            return torch.tensor([float(correct) for group in groups for correct in group.correct])
        case Process():
            lengths = torch.split(lengths_S, [len(group.responses) for group in groups])
            return torch.cat([_step_advantages(group, lengths[i], params) for i, group in enumerate(groups)])
        case Gdpo():
            return _part_advantages(groups, params).flatten()
        case Reinforce() | Remax():
            rewards_N = token_rewards(_rewards(groups), lengths_S, penalty_N)
            returns_N = discounted_returns(rewards_N, lengths_S, params.gamma)
            baselines_S = torch.tensor([group.baseline for group in groups for _ in group.responses])
            return returns_N - spread(baselines_S, lengths_S) if isinstance(params, Remax) else returns_N
        case Grpo() | DrGrpo() | Rloo() | MaxRl() | PassAtK() | Pkpo():
            return _group_advantages(groups, lengths_S, penalty_N, params)
    raise AssertionError(f"{params.type} needs another model")


def _group_advantages(
    groups: Sequence[RolloutGroup],
    lengths_S: Tensor,
    penalty_N: Tensor | None,
    params: Grpo | DrGrpo | Rloo | MaxRl | PassAtK | Pkpo,
) -> Tensor:
    """Advantages of responses against those of their group, [S]."""
    rewards_S = _rewards(groups)
    if penalty_N is not None:
        rewards_S = response_sums(token_rewards(rewards_S, lengths_S, penalty_N), lengths_S)
    if isinstance(params, MaxRl) and bool((rewards_S < 0).any()):
        raise UserError(
            "rl.advantage max_rl needs rewards of at least 0: set reward.incorrect and the parts with penalties so, "
            "or take another rl.advantage"
        )
    sizes_P = torch.tensor([len(group.responses) for group in groups])
    size_S, advantages_S = sizes_P.repeat_interleave(sizes_P), torch.empty_like(rewards_S)
    for size in sorted(set(sizes_P.tolist())):  # groups of one size at a time; mostly all groups have the same
        rewards_PG = rewards_S[size_S == size].view(-1, size)
        match params:
            case MaxRl():
                advantages_PG = set_advantages(rewards_PG, params.type, k=2)
            case PassAtK():
                advantages_PG = set_advantages(rewards_PG, params.type, params.k, eps=params.eps)
            case Pkpo():
                advantages_PG = set_advantages(rewards_PG, params.type, params.k)
            case Grpo():
                advantages_PG = group_advantages(rewards_PG, params.type, ddof=params.ddof, eps=params.eps)
            case _:
                advantages_PG = group_advantages(rewards_PG, params.type)
        advantages_S[size_S == size] = advantages_PG.flatten()
    return advantages_S


def gae_advantages(
    groups: Sequence[RolloutGroup], lengths_S: Tensor, values_N: Tensor, penalty_N: Tensor | None, params: Gae
) -> tuple[Tensor, Tensor]:
    """Advantages and the critic's targets from its values, both [N]."""
    rewards_N = token_rewards(_rewards(groups), lengths_S, penalty_N)
    return gae(rewards_N, values_N, lengths_S, params.gamma, params.lam)


def _part_advantages(groups: Sequence[RolloutGroup], params: Gdpo) -> Tensor:
    """GDPO's advantages, [P, G]: a part counts in the groups whose rows have it; weights are those of the step."""
    names = sorted({name for group in groups for name in reward_parts(group.parts[0])})
    if unknown := sorted(params.weights.keys() - set(names)):
        raise UserError(f"rl.advantage.weights: no reward part {unknown[0]!r}; there are: {', '.join(names)}")
    weights = [params.weights.get(name, 1.0) for name in names]
    assert not any(isinstance(weight, Ramp) for weight in weights), "the loop resolves ramps per step"
    parts_KPG = torch.tensor([[[part.get(name, 0.0) for part in group.parts] for group in groups] for name in names])
    return part_advantages(parts_KPG, weights, ddof=params.ddof, eps=params.eps)  # type: ignore[arg-type]


def reward_parts(values: Mapping[str, float]) -> list[str]:
    """The names of the parts among a response's values; the others are figures below a part.

    >>> reward_parts({"accuracy": 1.0, "format": 0.5, "format/think": 1.0})
    ['accuracy', 'format']
    """
    return [name for name in values if not any(name.startswith(f"{other}/") for other in values)]


def _rewards(groups: Sequence[RolloutGroup]) -> Tensor:
    return torch.tensor([reward for group in groups for reward in group.rewards])


def _step_advantages(group: RolloutGroup, lengths_G: Tensor, params: Process) -> Tensor:
    if len(group.step_rewards) != len(group.responses) or len(group.step_ends) != len(group.responses):
        raise UserError(
            "rl.advantage is process, but the rollouts have no step rewards: give the run a process "
            "reward model, or set rl.advantage to grpo"
        )
    steps = [
        (reward, number, end)
        for number, (rewards, ends) in enumerate(zip(group.step_rewards, group.step_ends, strict=True))
        for reward, end in zip(rewards, ends, strict=True)
    ]
    rewards, numbers, ends = ([step[place] for step in steps] for place in range(3))
    return process_advantages(
        torch.tensor(rewards, dtype=torch.float32),
        torch.tensor(numbers, dtype=torch.long),
        torch.tensor(ends, dtype=torch.long),
        lengths_G,
        mean=params.step_returns == "mean",
        ddof=params.ddof,
        eps=params.eps,
    )
