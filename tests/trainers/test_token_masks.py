"""Masks of the surrogate in the update: which tokens they leave out, and that everything else stays."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.algorithms.policy_loss import Clip
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.logprobs import response_logprobs
from mathrl.params.loss import Cispo, ClipCov, DppoKl, DppoTv, Gmpo, KlCov, PpoClip, Sapo
from mathrl.params.optimizer import Muon
from mathrl.params.train import Rl
from mathrl.trainers.policy_update import (
    UpdateFigures,
    choose_tokens,
    minibatches,
    ratio_bounds,
    trained_groups,
    update_gradient,
)
from tests.trainers.small import changed, policy, rollouts, run, scored_batch, short_rl

CPU = Ranks(torch.device("cpu"))


def gradient(groups: Any, params: Rl, model: Any, zero: Any = None) -> tuple[torch.Tensor, UpdateFigures]:
    """The gradient of one update; `zero` says which tokens of the batch lose their advantage before it."""
    learner = TorchLearner(model, Muon(lr=1e-3), 10)
    batch, _ = scored_batch(groups, params, CPU, model, kl_coef=params.kl_coef)
    if zero is not None:
        batch = replace(batch, advantages_N=batch.advantages_N.masked_fill(zero(batch), 0.0))
    batch = choose_tokens(batch, params, seed=0)
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
    assert plain.left_out == 0 and figures.left_out > 0
    near, none = gradient(far, changed(params, loss={"off_policy_limit": 0.7}), model)
    assert torch.allclose(near, whole, atol=1e-7) and none.left_out == 0
    parts, _ = gradient(far, changed(masked, tokens_per_microbatch=16), model)
    assert torch.allclose(parts, found, atol=1e-6)


def test_a_loss_has_the_bounds_of_its_parameters() -> None:
    assert ratio_bounds(Sapo(temperatures=(0.5, 2.0))).temperatures == (0.5, 2.0)
    assert ratio_bounds(PpoClip(low=0.1, high=0.3, dual=4.0)) == Clip(0.1, 0.3, 4.0)
    low_high: dict[str, Any] = {"low": 0.1, "high": 0.4}
    for loss in (Cispo(**low_high), Gmpo(**low_high), ClipCov(**low_high)):
        assert ratio_bounds(loss) == Clip(0.1, 0.4)
    for capped in (DppoTv(**low_high, cap=20.0), DppoKl(**low_high, cap=20.0)):
        assert ratio_bounds(capped) == Clip(0.1, 0.4, 20.0)


def test_only_the_tokens_of_highest_entropy_have_a_policy_loss() -> None:
    """They are those of the policy that sampled, whatever the micro-batches; the denominators count the others."""
    model, sampler = policy()
    groups = rollouts(model, sampler)
    params = Rl(loss={"top_entropy": 0.3})  # type: ignore[arg-type]

    def is_low(batch: Any) -> torch.Tensor:
        entropies_N = response_logprobs(model, [group.group for group in groups], 1.0)[1].detach()
        return entropies_N < torch.quantile(entropies_N, 0.7)

    found, figures = gradient(groups, params, model)
    plain = changed(params, loss={"top_entropy": None})
    expected, _ = gradient(groups, plain, model, zero=is_low)
    assert torch.allclose(found, expected, atol=1e-6) and found.norm() > 1e-4
    whole, _ = gradient(groups, plain, model)
    assert not torch.allclose(whole, found, atol=1e-4)
    assert figures.left_out / figures.tokens == pytest.approx(0.7, abs=0.15), "of the groups that have a gradient"
    parts, _ = gradient(groups, changed(params, tokens_per_microbatch=16), model)
    assert torch.allclose(parts, found, atol=1e-6)
    both, told = gradient(groups, changed(params, importance={"high": 1e9}), model)
    assert torch.allclose(both, found, atol=1e-5) and told.left_out == figures.left_out


def test_clip_cov_leaves_out_tokens_between_its_bounds() -> None:
    model, sampler = policy()
    groups = rollouts(model, sampler)
    loss = {"type": "clip_cov", "share": 1.0, "covariance_low": 0.05, "covariance_high": 1.0}
    params = Rl(loss=loss)  # type: ignore[arg-type]

    def between(batch: Any) -> torch.Tensor:
        gap_N = (batch.old_N - batch.old_N.mean()) * (batch.advantages_N - batch.advantages_N.mean())
        return (gap_N > 0.05) & (gap_N < 1.0)

    found, figures = gradient(groups, params, model)
    expected, _ = gradient(groups, Rl(), model, zero=between)
    assert torch.allclose(found, expected, atol=1e-6) and 0 < figures.left_out < figures.tokens
    assert not torch.allclose(found, gradient(groups, Rl(), model)[0], atol=1e-4)
    few, told = gradient(groups, changed(params, loss={"share": 1e-6}), model)
    assert told.left_out == 1 and not torch.allclose(few, found, atol=1e-5)


def test_every_update_draws_other_tokens_for_clip_cov_by_the_seed() -> None:
    model, sampler = policy()
    loss = {"type": "clip_cov", "share": 0.1, "covariance_low": -9.0, "covariance_high": 9.0}
    params = Rl(loss=loss, minibatches=2, epochs=2)  # type: ignore[arg-type]
    batch = scored_batch(rollouts(model, sampler), params, CPU, model)[0]
    drawn = [part.left_out_N.nonzero()[:3, 0].tolist() for part in minibatches(batch, params, 0, 1)]  # type: ignore[union-attr]
    assert drawn == [[4, 12, 23], [0, 13, 28], [2, 4, 15], [4, 20, 29]], "the same with every version"


def test_tokens_of_low_entropy_are_left_out_beside_those_of_clip_cov() -> None:
    model, sampler = policy()
    bounds = {"type": "clip_cov", "share": 1.0, "covariance_low": 0.05, "covariance_high": 1.0}
    found = []
    for loss in ({"top_entropy": 0.5}, bounds, bounds | {"top_entropy": 0.5}):
        params = Rl(loss=loss)  # type: ignore[arg-type]
        batch = scored_batch(rollouts(model, sampler), params, CPU, model)[0]
        found.append(choose_tokens(batch, params, 0).left_out_N)
    low_N, between_N, both_N = found
    assert torch.equal(both_N, low_N | between_N) and (low_N & between_N).any() and not torch.equal(low_N, both_N)


def test_kl_cov_holds_the_tokens_of_highest_covariance_off_policy() -> None:
    """Against a loss written out: -r A over all tokens, and |log r| on the chosen ones, over their number."""
    model, sampler = policy()
    groups = rollouts(model, sampler)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    params = Rl(loss={"type": "kl_cov", "share": 0.1, "coef": 0.5})  # type: ignore[arg-type]
    found, _ = gradient(groups, params, model)
    batch, _ = scored_batch(groups, params, CPU, model)
    learner = TorchLearner(model, Muon(lr=1e-3), 10)
    logprobs_N, _ = response_logprobs(model, [group.group for group in groups], 1.0)
    old_N, advantages_N = batch.old_N, batch.advantages_N
    covariance_N = (old_N - old_N.mean()) * (advantages_N - advantages_N.mean())
    chosen = covariance_N.topk(int(0.1 * len(old_N))).indices
    surrogate = -((logprobs_N - old_N).exp() * advantages_N).mean()
    held = 0.5 * (logprobs_N - old_N).abs()[chosen].sum() / len(old_N)
    (surrogate + held).backward()
    assert torch.allclose(found, learner.flat.gradients, atol=1e-6)
    learner.flat.gradients.zero_()
    logprobs_N, _ = response_logprobs(model, [group.group for group in groups], 1.0)
    (-((logprobs_N - old_N).exp() * advantages_N).mean()).backward()
    assert not torch.allclose(found, learner.flat.gradients, atol=1e-4), "the KL matters"
    assert isinstance(params.loss, KlCov) and trained_groups(batch, params) == [1, 3]
    left_N = torch.zeros_like(batch.kept_N)
    left_N[batch.token_ends[1] : batch.token_ends[2]] = True
    assert trained_groups(replace(batch, left_out_N=left_N), params) == [3], "all of a group is left out"
    held_N = torch.zeros_like(batch.kept_N).index_fill_(0, torch.tensor([0]), True)
    assert trained_groups(replace(batch, held_N=held_N), params) == [0, 1, 3], "a held token needs a forward pass"


def test_the_entropy_bonus_follows_the_entropy() -> None:
    """An untrained policy has 3.35 nats: below a target of 4 the bonus rises."""
    below = {"entropy_coef": 0.01, "entropy_controller": {"target": 4.0, "delta": 0.02, "high": 0.04}}
    params = changed(short_rl(), loss=below, steps=3, prompts_per_step=2, optimizer={"lr": 1e-3})
    _, rows, _ = run(params)
    assert [row["entropy_coef"] for row in rows] == pytest.approx([0.0, 0.03, 0.04]), "unknown at first"
    at = changed(params, steps=2, loss={"entropy_controller": {"target": rows[0]["entropy"], "delta": 0.005}})
    assert [row["entropy_coef"] for row in run(at)[1]] == pytest.approx([0.0, 0.015]), "at the target it is applied"
