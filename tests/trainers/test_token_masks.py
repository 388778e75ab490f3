"""Masks of the surrogate in the update: which tokens they leave out, and that everything else stays."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.params.optimizer import Muon
from mathrl.params.train import Rl
from mathrl.trainers.policy_update import UpdateFigures, update_gradient
from tests.trainers.small import changed, policy, rollouts, scored_batch

CPU = Ranks(torch.device("cpu"))


def gradient(groups: Any, params: Rl, model: Any, zero: Any = None) -> tuple[torch.Tensor, UpdateFigures]:
    """The gradient of one update; `zero` says which tokens of the batch lose their advantage before it."""
    learner = TorchLearner(model, Muon(lr=1e-3), 10)
    batch, _ = scored_batch(groups, params, CPU, model, kl_coef=params.kl_coef)
    if zero is not None:
        batch = replace(batch, advantages_N=batch.advantages_N.masked_fill(zero(batch), 0.0))
    figures = update_gradient(learner, params, batch, params.kl_coef)
    return learner.flat.gradients.clone(), figures


@pytest.mark.parametrize("importance", [None, {"high": 1e9}])
def test_responses_far_from_the_policy_lose_their_negative_tokens(importance: Any) -> None:
    """The sampler of every second group held its tokens for twice as likely: a mean of ln 2 over each response."""
    model, sampler = policy()
    far = [
        replace(group, logprobs=tuple(tuple(v + 0.6931 for v in row) for row in group.logprobs)) if number in (1, 2)
        else group
        for number, group in enumerate(rollouts(model, sampler))
    ]  # fmt: skip
    params = changed(Rl(importance=importance), loss={"high": 9.0, "low": 1.0})
    masked = changed(params, loss={"off_policy_limit": 0.6})

    def is_far(batch: Any) -> torch.Tensor:
        ends = batch.token_ends
        inside_N = torch.zeros(ends[-1], dtype=torch.bool)
        inside_N[ends[1] : ends[3]] = True
        return inside_N & (batch.advantages_N < 0)

    found, figures = gradient(far, masked, model)
    expected, plain = gradient(far, params, model, zero=is_far)
    assert torch.allclose(found, expected, atol=1e-7) and found.norm() > 1e-3
    whole, _ = gradient(far, params, model)
    assert (whole - found).norm() > 0.1 * found.norm(), "the mask matters"
    assert plain.off_policy == 0 and figures.off_policy > 0
    near, none = gradient(far, changed(params, loss={"off_policy_limit": 0.7}), model)
    assert torch.allclose(near, whole, atol=1e-7) and none.off_policy == 0
    parts, _ = gradient(far, changed(masked, tokens_per_microbatch=16), model)
    assert torch.allclose(parts, found, atol=1e-6)
