"""SAPO, GMPO, DPPO and the squared log-ratio: values by hand, gradients, and what must never have one."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.policy_loss import Clip, policy_loss
from mathrl.algorithms.returns import response_sums
from mathrl.algorithms.trust_regions import dppo_loss, geometric_mean_loss, mean_log_ratio, near_policy, sapo_loss

LENGTHS = torch.tensor([3, 2])
WIDE = Clip(1.0, 50.0, None)


def gradients(kind: Any, gaps: list[float], old: list[float], advantages: list[float], clip: Clip) -> Tensor:
    """d loss / d log-prob per token, with weight 1 each."""
    old_N = torch.tensor(old).log()
    logprobs_N = (old_N + torch.tensor(gaps)).requires_grad_()
    loss_N, _ = policy_loss(kind, logprobs_N, old_N, torch.tensor(advantages), torch.tensor([len(gaps)]), clip)
    (gradient,) = torch.autograd.grad(loss_N.sum(), logprobs_N)
    return gradient


@pytest.mark.parametrize("kind", ["sapo", "gmpo", "dppo_tv", "dppo_kl"])
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
    found = gradients("gmpo", gaps, old, [1.0] * 3, Clip(0.4, 0.4))
    torch.testing.assert_close(found, torch.tensor([0.0, -mean, -mean]))
    # With A < 0 the high ratio is the pessimistic one and stays.
    mean = math.exp((0.9 - 0.1 + 0.1) / 3)
    torch.testing.assert_close(gradients("gmpo", gaps, old, [-1.0] * 3, Clip(0.4, 0.4)), torch.full((3,), mean))


def test_the_geometric_mean_has_the_gradient_of_the_objective_written_for_whole_responses() -> None:
    generator = torch.Generator().manual_seed(0)
    old_N, advantages_S = -torch.rand(5, generator=generator), torch.tensor([0.7, -1.1])
    start_N = old_N + 0.5 * torch.randn(5, generator=generator)
    kept_N = torch.tensor([True, False, True, True, True])
    ours_N, whole_N = (start_N.clone().requires_grad_() for _ in range(2))
    clip = Clip(0.3, 0.2)
    loss_N, _ = policy_loss("gmpo", ours_N, old_N, spread(advantages_S, LENGTHS), LENGTHS, clip, kept_N)
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


def test_sapos_temperature_divides_the_gate() -> None:
    """A = -1, r = 1, τ = 2: (4 / 2) σ(0) = 1."""
    loss, _ = sapo_loss(torch.zeros(1), torch.zeros(1), -torch.ones(1), (1.0, 2.0))
    assert loss.tolist() == [1.0]


def test_the_geometric_means_bounds_differ_and_only_kept_tokens_count() -> None:
    """A = -1, bounds -0.4 and 0.1: -0.9 is clipped to -0.4, -0.3 and 0.5 stay; without the last the mean is -0.35."""
    gaps, kept = torch.tensor([-0.9, -0.3, 0.5]), torch.tensor([True, True, False])
    arguments = torch.zeros(3), -torch.ones(3), torch.tensor([3])
    loss, clipped = geometric_mean_loss(gaps, *arguments, (0.4, 0.1))
    assert loss.tolist() == pytest.approx([math.exp(-0.2 / 3)] * 3) and clipped.tolist() == [True, False, False]
    loss, _ = policy_loss("gmpo", gaps, *arguments, Clip(0.4, 0.1), kept)
    assert loss[:2].tolist() == pytest.approx([math.exp(-0.35)] * 2)


def test_a_ratio_within_the_geometric_means_bounds_is_not_clipped() -> None:
    _, clipped = geometric_mean_loss(torch.tensor([0.3]), torch.zeros(1), torch.ones(1), torch.tensor([1]), (0.4, 0.4))
    assert not clipped.any()


@pytest.mark.parametrize(("p", "old", "advantage"), [(1.0, 0.5, 1.0), (0.5, 1.0, -1.0)])
def test_dppo_at_certain_tokens_and_at_the_bound_itself(p: float, old: float, advantage: float) -> None:
    """TV is exactly 0.5, which is not above a bound of 0.5; the KL of a certain token is finite and large."""
    tokens = torch.tensor([p]).log(), torch.tensor([old]).log(), torch.tensor([advantage])
    for kind, bound, expected in (("tv", 0.5, False), ("tv", 0.49, True), ("kl", 0.6, True)):
        side = (bound, 9.0) if advantage < 0 else (9.0, bound)
        for bounds, left_out in ((side, expected), (side[::-1], False)):
            assert dppo_loss(kind, *tokens, bounds)[1].tolist() == [left_out], (kind, bounds)  # type: ignore[arg-type]


def test_dppo_without_an_advantage_leaves_nothing_out() -> None:
    p, old = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    assert not dppo_loss("tv", p, old, torch.zeros(2), (0.1, 0.1))[1].any()


def test_dppos_truncated_ratio_is_the_value_of_the_loss() -> None:
    """Ratios 3 and 0.5 with at most 2 and A = 1: -2 and -0.5."""
    p, old = torch.tensor([0.03, 0.25]).log(), torch.tensor([0.01, 0.5]).log()
    loss, _ = dppo_loss("tv", p, old, torch.ones(2), (1.0, 1.0), 2.0)
    assert loss.tolist() == pytest.approx([-2.0, -0.5])


def test_sums_and_means_of_responses_wait_for_no_values() -> None:
    """On the meta device, which has no values: a size that depends on them would be an error."""
    values, lengths = torch.zeros(3, device="meta"), torch.tensor([2, 1], device="meta")
    assert response_sums(values, lengths).shape == (2,)
    assert spread(values[:2], lengths, 3).shape == mean_log_ratio(values, lengths).shape == (3,)


def test_far_responses_lose_their_negative_tokens_alone() -> None:
    """Means of sampler - policy: 0.6 / 3 = 0.2, and -0.9 / 2 = -0.45, where the policy is the more likely one."""
    logprobs = torch.tensor([-1.0, -0.5, -0.5, -0.1, -0.2], requires_grad=True)
    sampler = torch.tensor([-0.4, -0.5, -0.5, -1.0, -0.2])
    advantages = torch.tensor([-1.0, 0.0, -2.0, -1.0, -1.0])

    def kept(limit: float) -> list[bool]:
        return near_policy(logprobs, sampler, advantages, LENGTHS, limit).tolist()

    assert kept(0.19) == [False, True, False, True, True]
    assert kept(0.21) == [True] * 5
    assert not near_policy(logprobs, sampler, advantages, LENGTHS, 0.19).requires_grad
    assert near_policy(logprobs, sampler, -advantages, LENGTHS, 0.19).tolist() == [True] * 5
    other = near_policy(sampler, logprobs.detach(), advantages, LENGTHS, 0.19).tolist()
    assert other == [True, True, True, False, False], "sampler and policy exchanged: the other response is far"
