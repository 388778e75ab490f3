"""The gradient of one RL update over the global batch.

Shapes: P groups of G responses in the global batch, S responses of a micro-batch, N response tokens of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.alignment import logprob_alignment
from mathrl.algorithms.kl import kl_estimate
from mathrl.algorithms.policy_loss import clipped_policy_loss
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import adapters_off
from mathrl.params.train import Rl
from mathrl.trainers.backend import Backend
from mathrl.trainers.optimizer import FlatParameters
from mathrl.trainers.partition import balanced, filled
from mathrl.trainers.rollouts import RolloutGroup


@dataclass
class UpdateFigures:
    """Sums over the updates of a step; shares are by token weight."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    alignment: float = 0.0
    tokens: float = 0.0
    trained: int = 0
    norm: float = 0.0
    updates: int = 0

    def add(self, other: "UpdateFigures", norm: float) -> None:
        for name in ("loss", "kl", "entropy", "clipped", "alignment", "tokens", "trained"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.norm += norm
        self.updates += 1

    def metrics(self, params: Rl) -> dict[str, float]:
        tokens = max(1.0, self.tokens)
        figures = {
            "actor_loss": self.loss / self.updates,
            "grad_norm": self.norm / self.updates,
            "entropy": self.entropy / tokens,
            "clip_fraction": self.clipped / tokens,
            "rollout/logprob_alignment": self.alignment / tokens if self.tokens else 1.0,
            "trained_tokens": float(self.trained),
        }
        return figures | ({"kl": self.kl / tokens} if params.kl_coef else {})


def minibatches(groups: int, parts: int, seed: int) -> list[list[int]]:
    """Group numbers in `parts` seeded parts; one part keeps their order."""
    if parts == 1:
        return [list(range(groups))]
    order = torch.randperm(groups, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[part::parts] for part in range(parts)]


def update_gradient(
    model: Any,
    reference: Any,
    flat: FlatParameters,
    params: Rl,
    backend: Backend,
    groups: Sequence[RolloutGroup],
    advantages_PG: Tensor,
) -> UpdateFigures:
    """Fill `flat.gradients` with the gradient of the global batch's loss; return its figures.

    Each process takes groups of about equal numbers of tokens. Groups in which all advantages are 0 have no
    gradient: they get no forward pass where nothing but the surrogate is in the loss; the denominators count
    them all the same.
    """
    lengths_PG = torch.tensor([[len(response) for response in group.responses] for group in groups])
    if params.truncated == "mask":
        lengths_PG[torch.tensor([group.truncated for group in groups])] = 0
    weights_PG = token_weights(lengths_PG.flatten(), params.aggregation, params.max_tokens).view_as(
        lengths_PG
    )
    skipping = params.skip_zero_variance and not params.kl_coef and not params.entropy_coef
    useful = [i for i in range(len(groups)) if not skipping or bool(advantages_PG[i].any())]
    share = balanced([groups[i].group.packed_tokens for i in useful], backend.world)[backend.rank]
    mine = [useful[place] for place in share]
    flat.gradients.zero_()
    sums = torch.zeros(7, device=backend.device)
    for micro in filled(mine, [groups[i].group.packed_tokens for i in mine], params.tokens_per_microbatch):
        packed = [groups[index].group for index in micro]
        logprobs_N, entropies_N = response_logprobs(model, packed, params.temperature)
        lengths_S = torch.tensor([len(response) for group in packed for response in group.responses])
        weights_N, advantages_N = (
            spread(values[micro].flatten(), lengths_S).to(backend.device)
            for values in (weights_PG, advantages_PG)
        )
        old_N = torch.tensor(
            [value for index in micro for row in groups[index].logprobs for value in row],
            device=backend.device,
        )
        loss_N, clipped_N = clipped_policy_loss(
            logprobs_N, old_N, advantages_N, params.clip_low, params.clip_high
        )
        kl = 0.0
        if reference is not None:
            with torch.no_grad(), adapters_off(reference):
                reference_N, _ = response_logprobs(reference, packed, params.temperature)
            kl_N = kl_estimate(logprobs_N, reference_N, params.kl_estimator)
            loss_N = loss_N + params.kl_coef * kl_N
            kl = float(kl_N.detach().sum())
        if params.entropy_coef:
            loss_N = loss_N - params.entropy_coef * entropies_N
        loss = (weights_N * loss_N).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        tokens = len(old_N)
        sums += torch.tensor([
            float(loss.detach()), kl, float(entropies_N.detach().sum()), float(clipped_N.sum()),
            logprob_alignment(logprobs_N.detach(), old_N) * tokens, tokens,
            sum(group.packed_tokens for group in packed),
        ], device=backend.device)  # fmt: skip
    backend.sum_(flat.gradients)
    backend.sum_(sums)
    loss_sum, kl_sum, entropy, clipped, alignment, tokens_sum, trained = sums.tolist()
    return UpdateFigures(loss_sum, kl_sum, entropy, clipped, alignment, tokens_sum, int(trained))
