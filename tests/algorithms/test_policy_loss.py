"""Surrogates against hand-computed numbers, loops and their own gradients."""

import math

import pytest
import torch

from mathrl.algorithms.policy_loss import (
    Clip,
    cispo_loss,
    clipped_policy_loss,
    log_ratio,
    policy_loss,
    reinforce_loss,
    sequence_log_ratio,
)


def test_clipping_by_hand() -> None:
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1])
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0, 2.0])
    logprobs = ratio.log().requires_grad_()
    loss, clipped = clipped_policy_loss(logprobs, torch.zeros(5), advantage, Clip(0.2, 0.28))
    # The pessimistic side: gains are bounded, losses are not.
    assert torch.allclose(loss, torch.tensor([-1.28, -0.5, 1.5, 0.8, -2.2]))
    assert clipped.tolist() == [True, False, False, True, False]
    loss.sum().backward()
    # d(-r A)/d logprob = -r A where free, 0 where clipped.
    assert torch.allclose(logprobs.grad, torch.tensor([0.0, -0.5, 1.5, 0.0, -2.2]))  # type: ignore[arg-type]


def test_dual_clip_bounds_the_loss_of_a_negative_advantage() -> None:
    ratio = torch.tensor([5.0, 2.5, 5.0, 0.5, 3.0])
    advantage = torch.tensor([-2.0, -2.0, 2.0, -2.0, -2.0])
    logprobs = ratio.log().requires_grad_()
    loss, clipped = clipped_policy_loss(logprobs, torch.zeros(5), advantage, Clip(0.2, 0.28, dual=3.0))
    assert torch.allclose(loss, torch.tensor([6.0, 5.0, -2.56, 1.6, 6.0]))
    assert clipped.tolist()[:4] == [True, False, True, True]
    loss.sum().backward()
    grads = logprobs.grad.tolist()  # type: ignore[union-attr]
    assert grads[0] == 0 and grads[1] == pytest.approx(5.0) and grads[2:4] == [0, 0]
    # Without it, the same token pulls with all its ratio.
    free, _ = clipped_policy_loss(ratio.log(), torch.zeros(5), advantage, Clip(0.2, 0.28))
    assert free[0].item() == pytest.approx(10.0)


def test_the_dual_clips_bound_itself_is_not_clipped() -> None:
    ratio = torch.tensor([2.0])
    assert torch.equal(ratio.log().exp(), ratio)
    loss, clipped = clipped_policy_loss(ratio.log(), torch.zeros(1), -torch.ones(1), Clip(0.2, 0.28, 2.0))
    assert loss.item() == 2.0 and not clipped.any()


def test_cispo_by_hand() -> None:
    ratio, advantage = torch.tensor([3.0, 0.5, 1.1, 0.1]), torch.tensor([1.0, -2.0, 1.0, 1.0])
    logprobs = ratio.log().requires_grad_()
    loss, clipped = cispo_loss(logprobs, torch.zeros(4), advantage, Clip(0.8, 1.0))
    # Weights min(max(r, 0.2), 2) without a gradient: 2, 0.5, 1.1, 0.2.
    weights = [2.0, 0.5, 1.1, 0.2]
    expected = [-w * a * math.log(r) for w, a, r in zip(weights, advantage.tolist(), ratio.tolist(), strict=True)]
    assert loss.tolist() == pytest.approx(expected, abs=1e-6)
    assert clipped.tolist() == [True, False, False, True]
    loss.sum().backward()
    # Every token keeps a gradient, also the clipped ones.
    assert logprobs.grad.tolist() == pytest.approx([-2.0, 1.0, -1.1, -0.2])  # type: ignore[union-attr]


def test_reinforce_takes_no_ratio() -> None:
    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    loss, clipped = reinforce_loss(logprobs, torch.tensor([2.0, -1.0]))
    loss.sum().backward()
    assert loss.tolist() == [1.0, -2.0] and not clipped.any()
    assert logprobs.grad.tolist() == [-2.0, 1.0]  # type: ignore[union-attr]


def test_gspo_by_hand() -> None:
    # Response 0: log-ratios 0.2 and 0.4, mean 0.3; response 1: -0.1. Bounds 1 - 0.2 and 1 + 0.28.
    gaps, lengths = torch.tensor([0.2, 0.4, -0.1]), torch.tensor([2, 1])
    assert sequence_log_ratio(gaps, torch.zeros(3), lengths).tolist() == pytest.approx([0.3, 0.3, -0.1])
    advantages = torch.tensor([1.0, 1.0, 1.0])
    loss, clipped = policy_loss("gspo", gaps, torch.zeros(3), advantages, lengths, Clip(0.2, 0.28))
    assert loss.tolist() == pytest.approx([-1.28, -1.28, -math.exp(-0.1)])
    assert clipped.tolist() == [True, True, False]
    negative, clipped = policy_loss("gspo", gaps, torch.zeros(3), -advantages, lengths, Clip(0.2, 0.28))
    assert negative[0].item() == pytest.approx(math.exp(0.3)) and not clipped.any()


def test_gspos_ratio_is_over_the_tokens_that_have_a_loss() -> None:
    """Of a response with log-ratios 0.2, 5 and 0.4 the second is left out: the mean is 0.3, not 5.6 / 3."""
    gaps, lengths = torch.tensor([0.2, 5.0, 0.4, -0.1, 0.7]), torch.tensor([3, 1, 1])
    kept = torch.tensor([True, False, True, True, False])
    zero = torch.zeros(5)
    found = sequence_log_ratio(gaps, zero, lengths, kept)
    assert found.tolist() == pytest.approx([0.3, 0.3, 0.3, -0.1, 0.0])  # a response without any: no ratio
    assert sequence_log_ratio(gaps, zero, lengths)[0].item() == pytest.approx(5.6 / 3)
    loss, clipped = policy_loss("gspo", gaps, zero, torch.ones(5), lengths, Clip(0.2, 0.4), kept)
    assert loss[[0, 2, 3]].tolist() == pytest.approx([-math.exp(0.3)] * 2 + [-math.exp(-0.1)])
    assert not clipped[[0, 2, 3]].any()
    assert policy_loss("gspo", gaps, zero, torch.ones(5), lengths, Clip(0.2, 0.4))[1][0]
    # Other kinds look at a token alone.
    for kind in ("clip", "cispo", "reinforce"):
        given = (kind, gaps, zero, torch.ones(5), lengths, Clip(0.2, 0.4))
        assert torch.equal(policy_loss(*given, kept)[0], policy_loss(*given)[0])  # type: ignore[arg-type]


def test_gspo_has_the_gradient_of_the_sequences_ratio() -> None:
    """d/dtheta of the mean over responses of -s_i A_i, s_i = exp(mean of the log-ratios), by autograd."""
    generator = torch.Generator().manual_seed(0)
    lengths, advantages = torch.tensor([3, 1, 4]), torch.tensor([0.5, -1.0, 2.0])
    old = torch.randn(8, dtype=torch.float64, generator=generator) - 2
    start = old + 0.05 * torch.randn(8, dtype=torch.float64, generator=generator)

    direct = start.clone().requires_grad_()
    ratios = torch.stack([part.mean().exp() for part in (direct - old).split(lengths.tolist())])
    (-(ratios * advantages).mean()).backward()

    ours = start.clone().requires_grad_()
    per_token = torch.repeat_interleave(advantages, lengths)
    loss, clipped = policy_loss("gspo", ours, old, per_token, lengths, Clip(0.9, 9.0))
    weights = torch.repeat_interleave(1.0 / (3 * lengths), lengths)  # sequence_mean
    (weights * loss).sum().backward()
    assert not clipped.any()
    assert torch.allclose(ours.grad, direct.grad)  # type: ignore[arg-type]
    # A token's own ratio has another gradient.
    tokens = start.clone().requires_grad_()
    (weights * policy_loss("clip", tokens, old, per_token, lengths, Clip(0.9, 9.0))[0]).sum().backward()
    assert not torch.allclose(tokens.grad, direct.grad)  # type: ignore[arg-type]


def test_log_ratios_are_bounded_on_both_sides() -> None:
    assert log_ratio(torch.tensor([0.0, -50.0, 1.5]), torch.tensor([-50.0, 0.0, 1.0])).tolist() == [20, -20, 0.5]
    loss, _ = clipped_policy_loss(torch.tensor([0.0]), torch.tensor([-500.0]), torch.tensor([-1.0]), Clip(0.2, 0.2))
    assert loss.item() == pytest.approx(math.exp(20), rel=1e-5)


def test_each_kind_is_its_own_function() -> None:
    logprobs, old = torch.tensor([-0.5, -2.0, -0.1]), torch.tensor([-1.0, -1.5, -0.2])
    advantages, lengths = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([2, 1])
    clip = Clip(0.1, 0.3, 1.1)
    direct = {
        "clip": clipped_policy_loss(logprobs, old, advantages, clip),
        "cispo": cispo_loss(logprobs, old, advantages, clip),
        "reinforce": reinforce_loss(logprobs, advantages),
        "gspo": clipped_policy_loss(
            old + sequence_log_ratio(logprobs, old, lengths), old, advantages, Clip(0.1, 0.3, 1.1)
        ),
    }
    for kind, expected in direct.items():
        found = policy_loss(kind, logprobs, old, advantages, lengths, clip)  # type: ignore[arg-type]
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    values = [tuple(loss.tolist()) for loss, _ in direct.values()]
    assert len(set(values)) == 4
