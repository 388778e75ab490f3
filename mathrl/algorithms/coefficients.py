"""Every method as a gradient coefficient: its gradient is minus the sum over tokens of GC · ∇ log policy.

DeepSeekMath's unified view (arXiv:2402.03300, section 5.2.1 and appendix A.1): methods differ in the data
that they learn from and in the coefficient of each token, and in nothing else. The paper's coefficients of
PPO and GRPO are those at ratio 1; here the ratio r = policy / old and its clipping are kept. DPO's belongs to
whole responses: summed over their tokens, not averaged.

Shapes: S responses of the given lengths, N their tokens in order.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.kl import MOST_GAP
from mathrl.algorithms.policy_loss import log_ratio, sequence_log_ratio
from mathrl.algorithms.returns import response_sums


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


def supervised(given: Sampled) -> Tensor:
    """1: SFT and distillation from a teacher's samples."""
    return torch.ones_like(given.logprobs_N)


def correct_only(given: Sampled) -> Tensor:
    """1[correct]: RFT on samples of the SFT model, online RFT on the policy's own."""
    return spread(given.correct_S.to(given.logprobs_N.dtype), given.lengths_S)


def dpo(given: Sampled) -> Tensor:
    """±β σ(β (h(rejected) - h(preferred))) with h the log-ratio of a whole response to the reference.

    >>> zero = torch.zeros(3)
    >>> dpo(Sampled(torch.tensor([2, 1]), zero, zero, zero, zero, torch.tensor([1, 0]), beta=0.2))
    tensor([ 0.1000,  0.1000, -0.1000])
    """
    ratio_S = response_sums(given.logprobs_N - given.reference_N, given.lengths_S)
    pull_K = given.beta * torch.sigmoid(given.beta * (ratio_S[1::2] - ratio_S[::2]))
    return spread(torch.stack([pull_K, -pull_K], dim=1).flatten(), given.lengths_S)


def reinforce(given: Sampled) -> Tensor:
    """A: REINFORCE, RLOO, ReMax, and every ratio method at its first update on a batch."""
    return given.advantages_N


def clipped(given: Sampled) -> Tensor:
    """r A, and 0 where the clipped branch holds: PPO, DAPO, GRPO without KL.

    >>> one = torch.ones(3)
    >>> clipped(Sampled(torch.tensor([3]), torch.tensor([1.1, 1.5, 0.5]).log(), one * 0, one, one, one[:1]))
    tensor([1.1000, 0.0000, 0.5000])
    """
    return _clipped(given, log_ratio(given.logprobs_N, given.old_N).exp())


def sequence_clipped(given: Sampled) -> Tensor:
    """s A with s the geometric mean of the response's ratios, and 0 where it is clipped: GSPO."""
    return _clipped(given, sequence_log_ratio(given.logprobs_N, given.old_N, given.lengths_S).exp())


def clipped_weight(given: Sampled) -> Tensor:
    """clip(r) A: CISPO, which leaves no token out."""
    ratio_N = log_ratio(given.logprobs_N, given.old_N).exp()
    return ratio_N.clamp(1 - given.clip_low, 1 + given.clip_high) * given.advantages_N


def grpo(given: Sampled) -> Tensor:
    """PPO's coefficient plus β (reference / policy - 1), the gradient of k3 in the loss.

    >>> one, reference = torch.ones(2), torch.tensor([2.0, 0.5]).log()
    >>> grpo(Sampled(torch.tensor([2]), one * 0, one * 0, reference, one, one[:1], beta=0.1))
    tensor([1.1000, 0.9500])
    """
    return clipped(given) + k3(given)


def k1(given: Sampled) -> Tensor:
    """-β: the same for all tokens, so its expectation under the policy is 0. It keeps nobody near."""
    return torch.full_like(given.logprobs_N, -given.beta)


def k2(given: Sampled) -> Tensor:
    """-β (log policy - log reference): in expectation the gradient of β KL(policy, reference)."""
    return -given.beta * (given.logprobs_N - given.reference_N)


def k3(given: Sampled) -> Tensor:
    """β (reference / policy - 1): in expectation the gradient of β KL(reference, policy)."""
    gap_N = given.reference_N - given.logprobs_N
    return given.beta * gap_N.expm1().masked_fill(gap_N.abs() > MOST_GAP, 0.0)


def _clipped(given: Sampled, ratio_N: Tensor) -> Tensor:
    """The derivative of min(r A, clip(r) A), and of the dual clip's bound, by log r."""
    advantages_N = given.advantages_N
    outside_N = torch.where(advantages_N > 0, ratio_N > 1 + given.clip_high, ratio_N < 1 - given.clip_low)
    if given.dual_clip is not None:
        outside_N = outside_N | ((advantages_N < 0) & (ratio_N > given.dual_clip))
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
