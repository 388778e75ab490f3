"""SAPO, GMPO, DPPO and the squared log-ratio: values by hand, gradients, and what must never have one."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.policy_loss import Clip, policy_loss

LENGTHS = torch.tensor([3, 2])
WIDE = Clip(1.0, 50.0, None)


def gradients(kind: Any, gaps: list[float], old: list[float], advantages: list[float], clip: Clip) -> Tensor:
    """d loss / d log-prob per token, with weight 1 each."""
    old_N = torch.tensor(old).log()
    logprobs_N = (old_N + torch.tensor(gaps)).requires_grad_()
    loss_N, _ = policy_loss(kind, logprobs_N, old_N, torch.tensor(advantages), torch.tensor([len(gaps)]), clip)
    (gradient,) = torch.autograd.grad(loss_N.sum(), logprobs_N)
    return gradient


@pytest.mark.parametrize("kind", ["sapo", "geo_mean", "dppo_tv", "dppo_kl"])
def test_on_policy_the_gradient_is_that_of_reinforce(kind: Any) -> None:
    old, advantages = [0.5, 0.1, 0.9], [1.5, 1.5, 1.5]
    torch.testing.assert_close(gradients(kind, [0.0] * 3, old, advantages, Clip(0.2, 0.2)), -torch.tensor(advantages))
    wrong = gradients(kind, [0.1] * 3, old, advantages, Clip(0.2, 0.2))
    assert not torch.allclose(wrong, -torch.tensor(advantages), atol=0.05)


def test_sapos_gate_by_hand_and_its_gradient() -> None:
    """A = 1, r = 2, τ = 1: -4 σ(1) = -2.9242; the gradient 4 σ(1) (1 - σ(1)) r = 1.5728 falls below r A = 2."""
    logprobs = torch.tensor([math.log(2)], requires_grad=True)
    loss, gated = policy_loss("sapo", logprobs, torch.zeros(1), torch.ones(1), torch.tensor([1]), WIDE)
    assert float(loss.detach()) == pytest.approx(-2.9242, abs=1e-4) and not gated.any()
    loss.sum().backward()
    assert float(logprobs.grad) == pytest.approx(-1.5728, abs=1e-4)  # type: ignore[arg-type]
    positive = gradients("sapo", [1.0], [0.2], [1.0], WIDE).abs()
    negative = gradients("sapo", [1.0], [0.2], [-1.0], Clip(0.2, 0.2, None, (1.0, 2.0))).abs()
    assert negative < positive  # a higher temperature fades sooner


def test_the_geometric_mean_and_its_clip_by_hand() -> None:
    """Log-ratios 0.9 (bound 0.4), -0.1, 0.1 with A = 1: mean 0.4 / 3; the clipped token has no gradient."""
    gaps, old = [0.9, -0.1, 0.1], [0.3, 0.3, 0.3]
    mean = math.exp((0.4 - 0.1 + 0.1) / 3)
    found = gradients("geo_mean", gaps, old, [1.0] * 3, Clip(0.4, 0.4))
    torch.testing.assert_close(found, torch.tensor([0.0, -mean, -mean]))
    # With A < 0 the high ratio is the pessimistic one and stays.
    mean = math.exp((0.9 - 0.1 + 0.1) / 3)
    torch.testing.assert_close(gradients("geo_mean", gaps, old, [-1.0] * 3, Clip(0.4, 0.4)), torch.full((3,), mean))


def test_the_geometric_mean_has_the_gradient_of_the_objective_written_for_whole_responses() -> None:
    generator = torch.Generator().manual_seed(0)
    old_N, advantages_S = -torch.rand(5, generator=generator), torch.tensor([0.7, -1.1])
    start_N = old_N + 0.5 * torch.randn(5, generator=generator)
    kept_N = torch.tensor([True, False, True, True, True])
    ours_N, whole_N = (start_N.clone().requires_grad_() for _ in range(2))
    clip = Clip(0.3, 0.2)
    loss_N, _ = policy_loss("geo_mean", ours_N, old_N, spread(advantages_S, LENGTHS), LENGTHS, clip, kept_N)
    counts_S = torch.tensor([2, 2])
    weights_S = token_weights(counts_S, "sequence_mean", 9)
    (spread(weights_S, LENGTHS) * loss_N)[kept_N].sum().backward()
    total = torch.zeros(())
    for tokens, advantage in (([0, 2], 0.7), ([3, 4], -1.1)):
        gap = whole_N[tokens] - old_N[tokens]
        gap = torch.minimum(gap, gap.clamp(-0.3, 0.2)) if advantage > 0 else torch.maximum(gap, gap.clamp(-0.3, 0.2))
        total = total - advantage * gap.mean().exp() / 2
    total.backward()
    torch.testing.assert_close(ours_N.grad, whole_N.grad)


@pytest.mark.parametrize("kind", ["dppo_tv", "dppo_kl"])
def test_dppo_leaves_out_what_moved_too_far_along_the_advantage(kind: Any) -> None:
    """Probabilities 0.5 → 0.9, 0.5 → 0.1, 0.01 → 0.03 (ratio 3, but a small divergence), 0.5 → 0.51."""
    old = [0.5, 0.5, 0.01, 0.5]
    gaps = [math.log(0.9 / 0.5), math.log(0.1 / 0.5), math.log(3), math.log(0.51 / 0.5)]
    up, down = (gradients(kind, gaps, old, [sign] * 4, Clip(0.1, 0.1)) for sign in (1.0, -1.0))
    assert (up != 0).tolist() == [False, True, True, True]
    assert (down != 0).tolist() == [True, False, True, True]
    assert float(up[2]) == pytest.approx(-3, rel=1e-4)
    truncated = gradients(kind, gaps, old, [1.0] * 4, Clip(0.1, 0.1, 2.0))
    assert float(truncated[2]) == pytest.approx(-2, rel=1e-4) and truncated[3] == up[3]


def test_dppos_divergences_by_hand() -> None:
    """0.5 → 0.7: TV 0.2; KL(0.5 | 0.7) = 0.5 ln(0.5 / 0.7) + 0.5 ln(0.5 / 0.3) = 0.0872."""
    gap = [math.log(0.7 / 0.5)]
    for kind, divergence in (("dppo_tv", 0.2), ("dppo_kl", 0.0872)):
        within = gradients(kind, gap, [0.5], [1.0], Clip(0.01, divergence + 1e-3))
        beyond = gradients(kind, gap, [0.5], [1.0], Clip(0.01, divergence - 1e-3))
        assert within != 0 and beyond == 0, kind
