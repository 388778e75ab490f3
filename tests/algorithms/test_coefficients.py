"""Each method's own loss against its gradient coefficient, token by token, on a tiny model.

A method's gradient is minus the sum over tokens of GC · ∇ log policy. DeepSeekMath's unified view (arXiv:2402.03300,
section 5.2.1 and appendix A.1): methods differ in the data that they learn from and in the coefficient of each token,
and in nothing else. The paper's coefficients of PPO and GRPO are those at ratio 1; here the ratio r = policy / old and
its clipping are kept. DPO's belongs to whole responses: summed over their tokens, not averaged.

Shapes: S responses of the given lengths, N their tokens in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.kl import MOST_GAP, kl_estimate
from mathrl.algorithms.policy_loss import Clip, policy_loss, sequence_log_ratio
from mathrl.algorithms.preference import dpo_loss
from mathrl.algorithms.returns import response_sums
from mathrl.algorithms.trust_regions import log_ratio
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.run import FreshModel

torch.set_num_threads(1)
BASE = FreshModel(hidden_size=8, intermediate_size=16, layers=1, heads=2, kv_heads=1, alphabet="arithmetic")
# Pairs for DPO: preferred, rejected.
GROUPS = [Group((5, 6, 7), ((8, 9, 2), (10, 2))), Group((11, 4), ((7, 2), (3, 3, 9, 2)))]
LENGTHS = torch.tensor([3, 2, 2, 4])


@dataclass(frozen=True)
class Sampled:
    """Responses with what a coefficient may depend on; no method reads all of it.

    `correct_S` is 1 or 0. For DPO the responses are pairs, each preferred one before its other. `beta` weighs
    the KL (GRPO) or the log-ratios (DPO).
    """

    lengths_S: Tensor
    logprobs_N: Tensor
    old_N: Tensor
    reference_N: Tensor
    advantages_N: Tensor
    correct_S: Tensor
    beta: float = 0.04
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None


def supervised(sampled: Sampled) -> Tensor:
    """1: SFT and distillation from a teacher's samples."""
    return torch.ones_like(sampled.logprobs_N)


def correct_only(sampled: Sampled) -> Tensor:
    """1[correct]: RFT on samples of the SFT model, online RFT on the policy's own."""
    return spread(sampled.correct_S.to(sampled.logprobs_N.dtype), sampled.lengths_S)


def dpo(sampled: Sampled) -> Tensor:
    """±β σ(β (h(rejected) - h(preferred))) with h the log-ratio of a whole response to the reference.

    >>> zero = torch.zeros(3)
    >>> dpo(Sampled(torch.tensor([2, 1]), zero, zero, zero, zero, torch.tensor([1, 0]), beta=0.2))
    tensor([ 0.1000,  0.1000, -0.1000])
    """
    ratio_S = response_sums(sampled.logprobs_N - sampled.reference_N, sampled.lengths_S)
    pull_K = sampled.beta * torch.sigmoid(sampled.beta * (ratio_S[1::2] - ratio_S[::2]))
    return spread(torch.stack([pull_K, -pull_K], dim=1).flatten(), sampled.lengths_S)


def reinforce(sampled: Sampled) -> Tensor:
    """A: REINFORCE, RLOO, ReMax, and every ratio method at its first update on a batch."""
    return sampled.advantages_N


def clipped(sampled: Sampled) -> Tensor:
    """r A, and 0 where the clipped branch holds: PPO, DAPO, GRPO without KL.

    >>> one = torch.ones(3)
    >>> clipped(Sampled(torch.tensor([3]), torch.tensor([1.1, 1.5, 0.5]).log(), one * 0, one, one, one[:1]))
    tensor([1.1000, 0.0000, 0.5000])
    """
    return _clipped(sampled, log_ratio(sampled.logprobs_N, sampled.old_N).exp())


def sequence_clipped(sampled: Sampled) -> Tensor:
    """s A with s the geometric mean of the response's ratios, and 0 where it is clipped: GSPO."""
    return _clipped(sampled, sequence_log_ratio(sampled.logprobs_N, sampled.old_N, sampled.lengths_S).exp())


def clipped_weight(sampled: Sampled) -> Tensor:
    """clip(r) A: CISPO, which leaves no token out."""
    ratio_N = log_ratio(sampled.logprobs_N, sampled.old_N).exp()
    return ratio_N.clamp(1 - sampled.clip_low, 1 + sampled.clip_high) * sampled.advantages_N


def grpo(sampled: Sampled) -> Tensor:
    """PPO's coefficient plus β (reference / policy - 1), the gradient of k3 in the loss.

    >>> one, reference = torch.ones(2), torch.tensor([2.0, 0.5]).log()
    >>> grpo(Sampled(torch.tensor([2]), one * 0, one * 0, reference, one, one[:1], beta=0.1))
    tensor([1.1000, 0.9500])
    """
    return clipped(sampled) + k3(sampled)


def k1(sampled: Sampled) -> Tensor:
    """-β: the same for all tokens, so its expectation under the policy is 0. It keeps nobody near."""
    return torch.full_like(sampled.logprobs_N, -sampled.beta)


def k2(sampled: Sampled) -> Tensor:
    """-β (log policy - log reference): in expectation the gradient of β KL(policy, reference)."""
    return -sampled.beta * (sampled.logprobs_N - sampled.reference_N)


def k3(sampled: Sampled) -> Tensor:
    """β (reference / policy - 1): in expectation the gradient of β KL(reference, policy)."""
    gap_N = sampled.reference_N - sampled.logprobs_N
    return sampled.beta * gap_N.expm1().masked_fill(gap_N.abs() > MOST_GAP, 0.0)


def _clipped(sampled: Sampled, ratio_N: Tensor) -> Tensor:
    """The derivative of min(r A, clip(r) A), and of the dual clip's bound, by log r."""
    advantages_N = sampled.advantages_N
    outside_N = torch.where(advantages_N > 0, ratio_N > 1 + sampled.clip_high, ratio_N < 1 - sampled.clip_low)
    if sampled.dual_clip is not None:
        outside_N = outside_N | ((advantages_N < 0) & (ratio_N > sampled.dual_clip))
    return (ratio_N * advantages_N).masked_fill(outside_N, 0.0)


# The sum of a method's terms is its coefficient; what it learns from and how A is made is the method's.
COEFFICIENTS: dict[str, Callable[[Sampled], Tensor]] = {
    "sft": supervised,
    "rft": correct_only,
    "online_rft": correct_only,
    "dpo": dpo,
    "reinforce": reinforce,
    "ppo": clipped,
    "grpo": grpo,
    "gspo": sequence_clipped,
    "cispo": clipped_weight,
    "kl_k1": k1,
    "kl_k2": k2,
    "kl_k3": k3,
    "kl_k3+": k2,
}

Loss = Callable[[Tensor, Sampled], Tensor]


def by_policy_loss(kind: str) -> Loss:
    def loss(logprobs_N: Tensor, sampled: Sampled) -> Tensor:
        return policy_loss(
            kind,
            logprobs_N,
            sampled.old_N,
            sampled.advantages_N,
            sampled.lengths_S,
            Clip(sampled.clip_low, sampled.clip_high, sampled.dual_clip),
        )[0].sum()

    return loss


def by_kl(kind: str) -> Loss:
    return lambda logprobs_N, sampled: sampled.beta * kl_estimate(logprobs_N, sampled.reference_N, kind).sum()  # type: ignore[arg-type]


def dpo_by_response(logprobs_N: Tensor, sampled: Sampled) -> Tensor:
    """Rafailov et al. (arXiv:2305.18290), equation 7, response by response."""
    total = torch.zeros(())
    ratios = [part.sum() for part in torch.split(logprobs_N - sampled.reference_N, sampled.lengths_S.tolist())]
    for preferred, rejected in zip(ratios[::2], ratios[1::2], strict=True):
        total = total - torch.nn.functional.logsigmoid(sampled.beta * (preferred - rejected))
    return total


def cross_entropy(logprobs_N: Tensor, sampled: Sampled) -> Tensor:
    return -logprobs_N.sum()


def of_correct(logprobs_N: Tensor, sampled: Sampled) -> Tensor:
    parts = torch.split(logprobs_N, sampled.lengths_S.tolist())
    return -torch.stack([part.sum() for part, right in zip(parts, sampled.correct_S, strict=True) if right]).sum()


def grpo_loss(logprobs_N: Tensor, sampled: Sampled) -> Tensor:
    return by_policy_loss("clip")(logprobs_N, sampled) + by_kl("k3")(logprobs_N, sampled)


LOSSES: dict[str, Loss] = {
    "sft": cross_entropy, "rft": of_correct, "online_rft": of_correct, "dpo": dpo_by_response,
    "reinforce": by_policy_loss("reinforce"), "ppo": by_policy_loss("clip"), "grpo": grpo_loss,
    "gspo": by_policy_loss("gspo"), "cispo": by_policy_loss("cispo"), "kl_k1": by_kl("k1"),
    "kl_k2": by_kl("k2"), "kl_k3": by_kl("k3"), "kl_k3+": by_kl("k3+"),
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    made = fresh_network(BASE, character_tokenizer(BASE), seed=1).eval()
    for weight in made.parameters():
        weight.data.mul_(5)
    return made


@pytest.fixture(scope="module")
def slopes_NW(model: Any) -> Tensor:
    """∇ log policy of every token, one backward pass each, in the weights W."""
    logprobs_N, _ = response_logprobs(model, GROUPS)
    weights = list(model.parameters())
    return torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(each, weights, retain_graph=True)]) for each in logprobs_N]
    )


def sample_like(logprobs_N: Tensor, spread: float, **options: Any) -> Sampled:
    """Old and reference log-probs around the policy's; some ratios are outside the clip on either side."""
    generator = torch.Generator().manual_seed(3)
    moves = [torch.randn(len(logprobs_N), generator=generator) * spread for _ in range(2)]
    advantages_S = torch.tensor([1.2, -0.7, 0.9, -1.4])
    return Sampled(
        LENGTHS,
        logprobs_N.detach(),
        logprobs_N.detach() + moves[0],
        logprobs_N.detach() + moves[1],
        torch.repeat_interleave(advantages_S, LENGTHS),
        torch.tensor([1, 0, 1, 0]),
        **options,
    )


@pytest.mark.parametrize("options", [{"beta": 0.5, "clip_low": 0.1, "clip_high": 0.1}, {"dual_clip": 1.1}])
@pytest.mark.parametrize("method", COEFFICIENTS)
def test_the_gradient_is_the_sum_of_coefficients_times_slopes(
    model: Any, slopes_NW: Tensor, method: str, options: dict[str, Any]
) -> None:
    logprobs_N, _ = response_logprobs(model, GROUPS)
    # A response's mean ratio varies less than its tokens'.
    sampled = sample_like(logprobs_N, 1.2 if method == "gspo" else 0.4, **options)
    loss = LOSSES[method](logprobs_N, sampled)
    gradient_W = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    coefficients_N = COEFFICIENTS[method](sampled)
    expected_W = -(coefficients_N[:, None] * slopes_NW).sum(0)
    scale = float(expected_W.norm())
    # Sums of eleven float32 gradients in another order.
    assert scale > 1e-3 and float((gradient_W - expected_W).norm()) < 1e-5 * scale
    for wrong_N in (coefficients_N + 0.01, coefficients_N * 1.01):
        assert float((gradient_W + (wrong_N[:, None] * slopes_NW).sum(0)).norm()) > 1e-3 * scale
    # A method's clip really clips here, and one that clips no token differs from one that does.
    if method in ("ppo", "grpo", "gspo"):
        from_clip_N = COEFFICIENTS["gspo" if method == "gspo" else "ppo"](sampled)
        assert 0 < int((from_clip_N == 0).sum()) < len(from_clip_N)


def test_a_far_reference_has_a_bounded_pull() -> None:
    """k3 is kept within e^20, with no gradient beyond, in loss and coefficient alike."""
    logprobs_N = torch.tensor([-30.0, -1.0, -21.0], requires_grad=True)
    reference_N = torch.tensor([-1.0, -25.0, -1.0])
    loss = kl_estimate(logprobs_N, reference_N, "k3").sum()
    (gradient_N,) = torch.autograd.grad(loss, logprobs_N)
    zero_N = torch.zeros(3)
    sampled = Sampled(torch.tensor([3]), logprobs_N.detach(), zero_N, reference_N, zero_N, torch.ones(1), beta=1.0)
    assert torch.allclose(gradient_N, -COEFFICIENTS["kl_k3"](sampled)) and torch.isfinite(loss)


def test_the_gradient_of_dpo_is_its_coefficients_and_no_smoothing_is_the_default() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths_S = torch.tensor([3, 2, 1, 4])
    logprobs_N = torch.randn(10, generator=generator).requires_grad_()
    reference_N = torch.randn(10, generator=generator)
    sums, references = (response_sums(values_N, lengths_S) for values_N in (logprobs_N, reference_N))
    loss, margins = dpo_loss(sums[::2], sums[1::2], references[::2], references[1::2], 0.3)
    unsmoothed = dpo_loss(sums[::2], sums[1::2], references[::2], references[1::2], 0.3, 0.0)[0]
    assert torch.equal(loss, unsmoothed) and margins.shape == (2,)
    loss.sum().backward()
    zero_N = torch.zeros(10)
    sampled = Sampled(lengths_S, logprobs_N.detach(), zero_N, reference_N, zero_N, torch.ones(4), beta=0.3)
    assert torch.allclose(logprobs_N.grad, -dpo(sampled), atol=1e-6)  # type: ignore[arg-type]
