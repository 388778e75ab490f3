"""What models make of the tokens of a step's rollouts: log-probs of policy, reference and teacher, values of a critic.

Shapes: N the sampled tokens of all responses (groups, responses, tokens in order), K of a teacher's tokens at each.
Tensors are on the CPU, the same at every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathrl.algorithms.kl import kl_estimate
from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import TokenBudget
from mathrl.learners.scoring import score_tokens
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import adapters_off
from mathrl.models.packing import Group
from mathrl.models.scores import token_scores
from mathrl.models.top_tokens import TopTokens, top_tokens
from mathrl.params.advantage import Distillation, Gae, SelfDistillation
from mathrl.params.loss import KlProbe, TeacherLoss
from mathrl.params.train import Rl
from mathrl.trainers.rollouts import RolloutGroup


@dataclass(frozen=True)
class Scores:
    """What models make of the tokens of a step's rollouts, [N]; None where the method does not ask that model.

    `policy_N` are the log-probs by the trainer's model, where they are computed beside the sampler's, `entropies_N` its
    entropies before the step's updates, with rl.loss.top_entropy. `probed_kl` is the mean KL per token of the groups
    that rl.kl names, where it is only measured. `teacher_top` are the teacher's most probable tokens, where rl.loss is
    a divergence from it.
    """

    sampler_N: Tensor
    policy_N: Tensor | None = None
    reference_N: Tensor | None = None
    teacher_N: Tensor | None = None
    values_N: Tensor | None = None
    probed_kl: float | None = None
    entropies_N: Tensor | None = None
    teacher_top: TopTokens | None = None

    @property
    def old_N(self) -> Tensor:
        """The log-probs that ratios are against."""
        return self.sampler_N if self.policy_N is None else self.policy_N


def score(
    groups: Sequence[RolloutGroup],
    params: Rl,
    ranks: Ranks,
    model: Any,
    reference: Any = None,
    teacher: Any = None,
    critic: Any = None,
    shown: Sequence[RolloutGroup] = (),
) -> Scores:
    """What the models that the method asks make of the rollouts, each in passes without a gradient.

    The trainer's own engine samples from the trained weights, so the sampled log-probs are the old ones and
    no forward pass computes them, unless `importance` asks for it. `shown` are the groups with the prompts that the
    teacher of self-distillation reads, who is the policy.
    """
    policy_N, reference_N, values_N, probed_kl, entropies_N = None, None, None, None, None
    if params.loss.top_entropy is not None:
        policy_N, entropies_N = group_entropies(model, groups, params, ranks)
    if params.importance is None or params.importance.when != "always":
        policy_N = None
    elif policy_N is None:
        policy_N = group_logprobs(model, "policy", groups, params, ranks)
    if params.kl_coef and reference is not None:
        reference_N = reference_logprobs(reference, groups, params, ranks)
    teacher_N, teacher_top = _teacher_scores(groups, params, ranks, model, teacher, shown)
    if isinstance(params.advantage, Gae):
        budget, packed = TokenBudget(ranks, params.tokens_per_microbatch, "rl"), [group.group for group in groups]
        values_N = score_tokens(budget, "critic's values", lambda micro: token_scores(critic, micro), critic, packed)
    if isinstance(params.kl, KlProbe):
        probe = groups[: params.kl.groups]
        gaps_N = kl_estimate(sampler_logprobs(probe), reference_logprobs(reference, probe, params, ranks), "k3")
        probed_kl = float(gaps_N.mean())
    sampler_N = sampler_logprobs(groups)
    return Scores(sampler_N, policy_N, reference_N, teacher_N, values_N, probed_kl, entropies_N, teacher_top)


def _teacher_scores(
    groups: Sequence[RolloutGroup], params: Rl, ranks: Ranks, model: Any, teacher: Any, shown: Sequence[RolloutGroup]
) -> tuple[Tensor | None, TopTokens | None]:
    """The teacher's log-probs of the sampled tokens, and its most probable tokens where the loss is over them."""
    if isinstance(params.advantage, SelfDistillation):
        teacher, groups = model, shown
    elif not isinstance(params.advantage, Distillation):
        return None, None
    if not isinstance(params.loss, TeacherLoss):
        return group_logprobs(teacher, "teacher", groups, params, ranks), None
    vocabulary = min(each.config.get_text_config().vocab_size for each in (model, teacher))
    top = group_top_tokens(teacher, groups, params, ranks, min(params.loss.top_k, vocabulary), vocabulary)
    return top.sampled_N, top


def sampler_logprobs(groups: Sequence[RolloutGroup]) -> Tensor:
    """The log-probs of the groups' tokens that the sampler gave, [N]."""
    return torch.from_numpy(np.concatenate([values for group in groups for values in group.logprobs]))


def reference_logprobs(reference: Any, groups: Sequence[RolloutGroup], params: Rl, ranks: Ranks) -> Tensor:
    """Log-probs by the reference, [N]; with adapters it is the policy itself without them."""
    with adapters_off(reference):
        return group_logprobs(reference, "reference", groups, params, ranks)


def group_entropies(model: Any, groups: Sequence[RolloutGroup], params: Rl, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the groups' tokens by the policy, [N] each, in one pass."""

    def forward(micro: list[Group]) -> Tensor:
        return torch.stack(response_logprobs(model, micro, params.temperature), dim=1)

    budget = TokenBudget(ranks, params.tokens_per_microbatch, "rl")
    both_N2 = score_tokens(budget, "entropies of the policy", forward, model, [group.group for group in groups])
    return both_N2[:, 0].contiguous(), both_N2[:, 1].contiguous()


def group_logprobs(network: Any, owner: str, groups: Sequence[RolloutGroup], params: Rl, ranks: Ranks) -> Tensor:
    """Log-probs of the groups' tokens by a network, [N]; `owner` names it in an out-of-memory error."""

    def forward(micro: list[Group]) -> Tensor:
        return response_logprobs(network, micro, params.temperature, entropy=False)[0]

    budget = TokenBudget(ranks, params.tokens_per_microbatch, "rl")
    return score_tokens(budget, f"log-probs of the {owner}", forward, network, [group.group for group in groups])


def group_top_tokens(
    teacher: Any, groups: Sequence[RolloutGroup], params: Rl, ranks: Ranks, most: int, vocabulary: int
) -> TopTokens:
    """The teacher's `most` most probable of the first `vocabulary` tokens at each of the groups' tokens."""

    def forward(micro: list[Group]) -> Tensor:
        top = top_tokens(teacher, micro, params.temperature, most, vocabulary)
        ids_NK = top.ids_NK.float()  # float32 holds every id up to 16 million
        return torch.cat([top.sampled_N[:, None].float(), top.logprobs_NK.float(), ids_NK], dim=1)

    budget = TokenBudget(ranks, params.tokens_per_microbatch, "rl")
    rows = score_tokens(budget, "log-probs of the teacher", forward, teacher, [group.group for group in groups])
    return TopTokens(rows[:, 0].contiguous(), rows[:, 1 : 1 + most].contiguous(), rows[:, 1 + most :].int())
