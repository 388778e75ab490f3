"""The rollouts of a step with all their numbers per token: what models make of them, advantages, critic's targets.

Shapes: P groups of G responses, S = P G; N the sampled tokens of all responses (groups, responses, tokens in
order), K tokens of a teacher at each; the outputs of tools are in none of the numbers.
Tensors are on the CPU, the same at every rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.advantages import distillation_advantages, group_advantages, process_advantages, whiten
from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.alignment import (
    gap_counts,
    gap_shares,
    importance_weights,
    logprob_alignment,
    normalise_weights,
    within_bounds,
    without_veto,
)
from mathrl.algorithms.own_functions import AdvantageInput, OwnFunction
from mathrl.algorithms.returns import discounted_returns, gae, length_lambdas, response_sums, token_rewards
from mathrl.algorithms.set_objectives import part_advantages, set_advantages
from mathrl.core.errors import UserError
from mathrl.models.prepared import Kernel
from mathrl.params.advantage import (
    Advantage,
    DrGrpo,
    FunctionAdvantage,
    Gae,
    Gdpo,
    Grpo,
    LengthLambda,
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
from mathrl.params.imitation import Luffy, OwnRight, SftTerm, coef_of
from mathrl.params.loss import Importance, LossKl, Masked, RewardKl
from mathrl.params.train import Rl
from mathrl.trainers.rollouts import RolloutGroup, with_experts
from mathrl.trainers.scores import Scores


@dataclass(frozen=True)
class Batch:
    """The global batch at every rank.

    `old_N` are the log-probs that ratios are against; what is not in `kept_N` has no loss and counts in no denominator.
    `importance_N` weighs the surrogate; `sampler_N` are the sampler's log-probs, with rl.loss.off_policy_limit, and
    `entropies_N` the old policy's entropies, with rl.loss.top_entropy; `reference_N` is there with a KL in the loss,
    `values_N` and `returns_N` with a critic, the teacher's log-probs `teacher_NK` of its tokens `teacher_ids_NK` where
    the loss is a divergence from it. Of a mini-batch `left_out_N` marks tokens without a surrogate, which the
    denominators count, `held_N` those that KL-Cov holds back, and `weights_S` are the weights of each response's tokens
    in the loss of the global batch, once an update has set them. With rl.imitation `expert_S` are experts' responses,
    and `imitated_S` those whose likelihood is a term of the loss, with the weights `imitation_S`.
    """

    groups: Sequence[RolloutGroup]
    lengths_S: Tensor
    old_N: Tensor
    advantages_N: Tensor
    kept_N: Tensor
    importance_N: Tensor | None = None
    sampler_N: Tensor | None = None
    entropies_N: Tensor | None = None
    left_out_N: Tensor | None = None
    held_N: Tensor | None = None
    reference_N: Tensor | None = None
    values_N: Tensor | None = None
    returns_N: Tensor | None = None
    weights_S: Tensor | None = None
    expert_S: Tensor | None = None
    imitated_S: Tensor | None = None
    imitation_S: Tensor | None = None
    teacher_NK: Tensor | None = None
    teacher_ids_NK: Tensor | None = None

    def part(self, numbers: Sequence[int]) -> "Batch":
        """The batch of the groups with these numbers."""
        values: dict[str, Any] = {"groups": [self.groups[number] for number in numbers]}
        for name in (field.name for field in fields(self)[1:]):
            tensor, ends = getattr(self, name), self.response_ends if name.endswith("_S") else self.token_ends
            if tensor is not None:
                tensor = torch.cat([tensor[ends[number] : ends[number + 1]] for number in numbers])
            values[name] = tensor
        return Batch(**values)

    @cached_property
    def response_ends(self) -> list[int]:
        """Where each group ends among the responses, after a 0."""
        return [0, *accumulate(len(group.responses) for group in self.groups)]

    @cached_property
    def token_ends(self) -> list[int]:
        """Where each group ends among the tokens, after a 0."""
        tokens = [0, *self.lengths_S.cumsum(0).tolist()]
        return [tokens[end] for end in self.response_ends]

    def cut(self, budget: int, kernel: Kernel) -> "Batch":
        """The same responses in the same order, in groups of at most `budget` packed tokens (see `cut`)."""
        return replace(self, groups=cut(self.groups, budget, kernel))

    @property
    def counted_S(self) -> Tensor:
        """How many tokens of each response have a loss."""
        return response_sums(self.kept_N.float(), self.lengths_S).long()

    def sizes(self, kernel: Kernel) -> list[int]:
        """The tokens of each group, packed for the kernel."""
        return [group.group.tokens_by(kernel) for group in self.groups]


def cut(groups: Sequence[RolloutGroup], budget: int, kernel: Kernel = "cpu") -> list[RolloutGroup]:
    """Groups of more than `budget` packed tokens are cut between responses, the prompt standing in each part.

    A response that is longer alone stands alone. Advantages are made before: they need complete groups.
    """
    return [
        group if (start, end) == (0, len(group.responses)) else group.some(start, end)
        for group in groups
        for start, end in pairwise(group.group.cut_places(budget, kernel))
    ]


def make_batch(
    groups: Sequence[RolloutGroup], params: Rl, scores: Scores, kl_coef: float
) -> tuple[Batch, dict[str, float]]:
    """Everything the updates of a step need, and figures about it.

    Raises:
        UserError: the advantage is process and no judge gave rewards of steps.
    """
    lengths_S = torch.tensor([length for group in groups for length in group.lengths])
    kept_S = torch.ones_like(lengths_S, dtype=torch.bool)
    if params.truncated == "mask":
        kept_S = ~torch.tensor([truncated for group in groups for truncated in group.truncated])
    expert_S, imitated_S = imitation_masks(groups, params)
    if isinstance(params.imitation, SftTerm):
        kept_S = kept_S & ~expert_S
    if params.filters:
        kept_S = kept_S & ~torch.tensor([out for group in groups for out in group.left_out])
    kept_N, old_N, importance_N, returns_N = spread(kept_S, lengths_S), scores.old_N, None, None
    figures: dict[str, float] = {}
    importance = params.importance
    if importance is not None and scores.policy_N is not None:
        low = importance.low if isinstance(importance, Masked) else 0.0
        importance_N, trusted_N = importance_weights(
            old_N, scores.sampler_N, lengths_S, importance.type, importance.level, low, importance.high
        )
        trusted_N = trusted_N & trusted_tokens(old_N, scores.sampler_N, lengths_S, importance)
        kept_N = kept_N & trusted_N
        figures["importance/mean"] = float(importance_N.mean())
        if importance.normalise:
            importance_N = normalise_weights(importance_N, lengths_S, importance.level)
        figures["importance/masked_share"] = float((~trusted_N).float().mean())
        figures["rollout/logprob_alignment"] = float(logprob_alignment(old_N, scores.sampler_N, lengths_S).mean())
        figures |= gap_shares(gap_counts(old_N, scores.sampler_N).tolist(), len(old_N))
    penalty_N = None
    if scores.reference_N is not None and isinstance(params.kl, RewardKl):
        gap_N = old_N - scores.reference_N
        penalty_N = kl_coef * gap_N
        figures["kl"] = float(gap_N.mean())
    advantage = params.advantage
    if scores.teacher_N is not None:
        advantages_N = distillation_advantages(scores.teacher_N, old_N)
        own_N = ~spread(expert_S, lengths_S)
        figures["distillation/reverse_kl"] = -float(advantages_N[own_N].mean())
        if scores.teacher_top is not None:
            importance_N = None  # it is of the sampled token, and a divergence at a place does not depend on that
            figures["distillation/teacher_mass"] = float(scores.teacher_top.logprobs_NK[own_N].exp().sum(1).mean())
    elif isinstance(advantage, Gae):
        assert scores.values_N is not None
        rewards_N = token_rewards(_rewards(groups), lengths_S, penalty_N)
        advantages_N, returns_N = critic_estimates(rewards_N, scores.values_N, lengths_S, advantage)
    elif isinstance(advantage, FunctionAdvantage):
        advantages_N = own_advantage(advantage).advantage(_responses(groups, lengths_S)).float()
        advantages_N = spread(advantages_N, lengths_S) if len(advantages_N) == len(lengths_S) else advantages_N
    elif isinstance(advantage, Process | Reinforce | Remax):
        advantages_N = token_advantages(groups, lengths_S, penalty_N, advantage)
    else:
        if isinstance(params.imitation, Luffy):
            advantages_S = advantages_with_experts(groups, advantage)
        else:
            advantages_S = response_advantages(groups, lengths_S, penalty_N, advantage)
        advantages_N = spread(advantages_S, lengths_S)
        figures["advantage/mean"] = float(advantages_S.mean())
    if advantage.whiten:
        advantages_N = whiten(advantages_N, kept_N)
    if scores.probed_kl is not None:
        figures["kl"] = scores.probed_kl
    reference_N = scores.reference_N if isinstance(params.kl, LossKl) else None
    batch = Batch(
        groups,
        lengths_S,
        old_N,
        advantages_N,
        kept_N,
        importance_N=importance_N,
        sampler_N=scores.sampler_N if params.loss.off_policy_limit is not None else None,
        entropies_N=scores.entropies_N,
        reference_N=reference_N,
        expert_S=expert_S if isinstance(params.imitation, Luffy) else None,
        imitated_S=imitated_S if coef_of(params.imitation) else None,
        values_N=scores.values_N,
        returns_N=returns_N,
        teacher_NK=scores.teacher_top.logprobs_NK if scores.teacher_top is not None else None,
        teacher_ids_NK=scores.teacher_top.ids_NK if scores.teacher_top is not None else None,
    )
    return batch, figures


def imitation_masks(groups: Sequence[RolloutGroup], params: Rl) -> tuple[Tensor, Tensor]:
    """Experts' responses, and those whose likelihood is a term of the loss: experts', or own ones that are right."""
    expert_S = torch.tensor([group.expert for group in groups for _ in group.responses])
    right_S = torch.tensor([correct for group in groups for correct in group.correct])
    return expert_S, right_S if isinstance(params.imitation, OwnRight) else expert_S


def advantages_with_experts(groups: Sequence[RolloutGroup], params: Advantage) -> Tensor:
    """Advantages where a problem's expert response is one of its group, [S], in the order of the batch (LUFFY)."""
    merged, places = with_experts(groups)
    lengths_S = torch.ones(len(places), dtype=torch.long)
    advantages_S = torch.zeros(len(places))
    advantages_S[torch.tensor(places)] = response_advantages(merged, lengths_S, None, params)
    return advantages_S


def trusted_tokens(old_N: Tensor, sampler_N: Tensor, lengths_S: Tensor, params: Importance) -> Tensor:
    """Which tokens keep their loss by rl.importance.reject and rl.importance.veto, [N]."""
    trusted_N = torch.ones_like(old_N, dtype=torch.bool)
    if params.reject is not None:
        bounds = params.reject
        trusted_N = within_bounds(old_N, sampler_N, lengths_S, bounds.level, bounds.low, bounds.high)
    if params.veto is not None:
        trusted_N &= without_veto(old_N, sampler_N, lengths_S, params.veto)
    return trusted_N


def critic_estimates(rewards_N: Tensor, values_N: Tensor, lengths_S: Tensor, params: Gae) -> tuple[Tensor, Tensor]:
    """The policy's advantages and the critic's targets, [N] each, by a lambda of their own where there is one.

    VC-PPO's decoupled GAE (arXiv:2503.01491, section 4.2): a critic whose lambda is 1 learns the sum of the rewards to
    come, without a bias by its own values, whatever lambda keeps the variance of the policy's advantages low.
    """
    lam = length_lambdas(lengths_S, params.lam.alpha) if isinstance(params.lam, LengthLambda) else params.lam
    advantages_N, returns_N = gae(rewards_N, values_N, lengths_S, params.gamma, lam)
    if params.critic.lam == 1.0:  # exactly: the rounding of A + V would be the variance of equal returns
        returns_N = discounted_returns(rewards_N, lengths_S, params.gamma)
    elif params.critic.lam is not None:
        _, returns_N = gae(rewards_N, values_N, lengths_S, params.gamma, params.critic.lam)
    return advantages_N, returns_N


def own_advantage(params: FunctionAdvantage) -> OwnFunction:
    return OwnFunction("rl.advantage", params.path, params.options.values())


def _responses(groups: Sequence[RolloutGroup], lengths_S: Tensor) -> AdvantageInput:
    return AdvantageInput(
        rewards_S=_rewards(groups),
        groups_S=torch.tensor([number for number, group in enumerate(groups) for _ in group.responses]),
        correct_S=torch.tensor([correct for group in groups for correct in group.correct]),
        truncated_S=torch.tensor([truncated for group in groups for truncated in group.truncated]),
        lengths_S=lengths_S,
        parts=[parts for group in groups for parts in group.parts],
    )


def token_advantages(
    groups: Sequence[RolloutGroup], lengths_S: Tensor, penalty_N: Tensor | None, params: Process | Reinforce | Remax
) -> Tensor:
    """Advantages that differ between the tokens of a response and need no other model, [N]."""
    if isinstance(params, Process):
        lengths = torch.split(lengths_S, [len(group.responses) for group in groups])
        return torch.cat([_step_advantages(group, lengths[i], params) for i, group in enumerate(groups)])
    rewards_N = token_rewards(_rewards(groups), lengths_S, penalty_N)
    returns_N = discounted_returns(rewards_N, lengths_S, params.gamma)
    baselines_S = torch.tensor([group.baseline for group in groups for _ in group.responses])
    return returns_N - spread(baselines_S, lengths_S) if isinstance(params, Remax) else returns_N


def response_advantages(
    groups: Sequence[RolloutGroup], lengths_S: Tensor, penalty_N: Tensor | None, params: Advantage
) -> Tensor:
    """Advantages that all tokens of a response share, [S].

    With a penalty (the KL in the reward), a group's responses are compared by reward minus summed penalty.
    """
    match params:
        case Rft():
            return torch.tensor([float(correct) for group in groups for correct in group.correct])
        case Gdpo():
            return _part_advantages(groups, params).flatten()
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
    if len(group.step_rewards) != len(group.responses):
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
