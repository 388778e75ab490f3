"""The rollouts of a step with all their numbers per token: old log-probs, advantages, the critic's targets.

Shapes: P groups of G responses, S = P G; N the tokens of all responses (groups, responses, tokens in order).
Tensors are on the CPU, the same at every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.advantages import distillation_advantages, whiten
from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.alignment import gap_counts, gap_shares, logprob_alignment
from mathrl.algorithms.importance import importance_weights
from mathrl.algorithms.returns import response_sums
from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import TokenBudget
from mathrl.learners.scoring import score_tokens
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import adapters_off
from mathrl.models.packing import Group
from mathrl.models.scores import token_scores
from mathrl.params.train import Rl
from mathrl.trainers.advantages import gae_advantages, outcome_advantages
from mathrl.trainers.rollouts import RolloutGroup


@dataclass(frozen=True)
class Batch:
    """`old_N` are the log-probs that ratios are against; tokens outside `kept_N` have no loss.

    They count in no denominator either. `importance_N` weighs the surrogate; `reference_N` is there with a
    KL in the loss, `values_N` and `returns_N` with a critic. `weights_N` are the tokens' weights in the loss
    of the global batch, once an update has set them.
    """

    groups: Sequence[RolloutGroup]
    lengths_S: Tensor
    old_N: Tensor
    advantages_N: Tensor
    kept_N: Tensor
    importance_N: Tensor | None = None
    reference_N: Tensor | None = None
    values_N: Tensor | None = None
    returns_N: Tensor | None = None
    weights_N: Tensor | None = None

    def part(self, numbers: Sequence[int]) -> "Batch":
        """The batch of the groups with these numbers."""
        lengths = torch.split(self.lengths_S, [len(group.responses) for group in self.groups])
        ends = torch.stack([lengths_G.sum() for lengths_G in lengths]).cumsum(0).tolist()
        rows_N = torch.cat([torch.arange(ends[i - 1] if i else 0, ends[i]) for i in numbers])
        tokens = {
            field.name: getattr(self, field.name)[rows_N]
            for field in fields(self)
            if field.name.endswith("_N") and getattr(self, field.name) is not None
        }
        return Batch([self.groups[i] for i in numbers], torch.cat([lengths[i] for i in numbers]), **tokens)

    def cut(self, budget: int) -> "Batch":
        """The same responses in the same order, in groups of at most `budget` packed tokens (see `cut`)."""
        return replace(self, groups=cut(self.groups, budget))

    @property
    def counted_S(self) -> Tensor:
        """How many tokens of each response have a loss."""
        return response_sums(self.kept_N.float(), self.lengths_S).long()

    @property
    def sizes(self) -> list[int]:
        """The packed tokens of each group."""
        return [group.group.packed_tokens for group in self.groups]


def cut(groups: Sequence[RolloutGroup], budget: int) -> list[RolloutGroup]:
    """Groups of more than `budget` packed tokens are cut between responses, the prompt standing in each part.

    A response that is longer alone stands alone. Advantages are made before: they need complete groups.
    """
    return [
        group if (start, end) == (0, len(group.responses)) else group.some(start, end)
        for group in groups
        for start, end in pairwise(group.group.cut_places(budget))
    ]


def make_batch(
    groups: Sequence[RolloutGroup],
    params: Rl,
    ranks: Ranks,
    model: Any,
    reference: Any = None,
    teacher: Any = None,
    critic: Any = None,
    kl_coef: float = 0.0,
) -> tuple[Batch, dict[str, float]]:
    """Everything the updates of a step need, and figures about it.

    The trainer's own engine samples from the trained weights, so the sampled log-probs are the old ones and
    no forward pass computes them, unless `importance` asks for it.

    Raises:
        UserError: the advantage is process and no judge gave rewards of steps.
    """
    lengths_S = torch.tensor([len(response) for group in groups for response in group.responses])
    sampler_N = torch.tensor([value for group in groups for row in group.logprobs for value in row])
    kept_N = torch.ones_like(sampler_N, dtype=torch.bool)
    if params.truncated == "mask":
        truncated_S = torch.tensor([truncated for group in groups for truncated in group.truncated])
        kept_N = ~spread(truncated_S, lengths_S)
    old_N, importance_N, reference_N, values_N, returns_N = sampler_N, None, None, None, None
    figures: dict[str, float] = {}
    if params.importance is not None:
        importance = params.importance
        old_N = group_logprobs(model, "policy", groups, params, ranks)
        importance_N, trusted_N = importance_weights(
            old_N, sampler_N, lengths_S, importance.kind, importance.level, importance.low, importance.high
        )
        kept_N = kept_N & trusted_N
        figures["importance/mean"] = float(importance_N.mean())
        figures["importance/masked_share"] = float((~trusted_N).float().mean())
        figures["rollout/logprob_alignment"] = float(logprob_alignment(old_N, sampler_N, lengths_S).mean())
        figures |= gap_shares(gap_counts(old_N, sampler_N).tolist(), len(old_N))
    penalty_N = None
    if reference is not None:
        with adapters_off(reference):
            reference_N = group_logprobs(reference, "reference", groups, params, ranks)
        if params.kl_in == "reward":
            gap_N = old_N - reference_N
            penalty_N = kl_coef * gap_N
            figures["kl"] = float(gap_N.mean())
    if params.advantage == "distillation":
        teacher_N = group_logprobs(teacher, "teacher", groups, params, ranks)
        advantages_N = distillation_advantages(teacher_N, old_N)
        figures["distillation/reverse_kl"] = -float(advantages_N.mean())
    elif params.advantage == "gae":
        budget, packed = TokenBudget(ranks, params.tokens_per_microbatch, "rl"), [group.group for group in groups]
        values_N = score_tokens(budget, "critic's values", lambda micro: token_scores(critic, micro), critic, packed)
        advantages_N, returns_N = gae_advantages(groups, lengths_S, values_N, penalty_N, params)
    else:
        advantages_N = outcome_advantages(groups, lengths_S, penalty_N, params)
    if params.whiten:
        advantages_N = whiten(advantages_N, kept_N)
    return (
        Batch(
            groups,
            lengths_S,
            old_N,
            advantages_N,
            kept_N,
            importance_N,
            reference_N if params.kl_in == "loss" else None,
            values_N,
            returns_N,
        ),
        figures,
    )


def group_logprobs(network: Any, owner: str, groups: Sequence[RolloutGroup], params: Rl, ranks: Ranks) -> Tensor:
    """Log-probs of the groups' tokens by a network, [N]; `owner` names it in an out-of-memory error."""

    def forward(micro: list[Group]) -> Tensor:
        return response_logprobs(network, micro, params.temperature)[0]

    budget = TokenBudget(ranks, params.tokens_per_microbatch, "rl")
    return score_tokens(budget, f"log-probs of the {owner}", forward, network, [group.group for group in groups])
