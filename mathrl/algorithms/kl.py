"""Estimators of KL(policy, reference) from tokens that the policy sampled, and the controller of its weight.

Shapes: N response tokens.
"""

from typing import Literal

from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "k3+"]
MOST_GAP = 20.0
MOST_CHANGE = 0.2


def kl_estimate(logprobs_N: Tensor, reference_N: Tensor, kind: Estimator) -> Tensor:
    """With d = logprob - reference: k1 is d, k2 is d²/2, k3 is exp(-d) + d - 1 (Schulman 2020).

    k1 has the right mean and, as a loss, an expected gradient of zero; k2 as a loss has the gradient of the
    KL; k3 is never negative and is DeepSeekMath's (arXiv:2402.03300, equation 4), its gradient is biased.
    k3+ has k3's value and k2's gradient. In k3, d is clamped to ±20, so that a token of vanishing
    probability does not overflow.

    >>> import torch
    >>> kl_estimate(torch.tensor([0.0, 0.6931]), torch.tensor([0.0, 0.0]), "k3")
    tensor([0.0000, 0.1931])
    """
    gap_N = logprobs_N - reference_N
    if kind == "k1":
        return gap_N
    square_N = gap_N.square() / 2
    if kind == "k2":
        return square_N
    bounded_N = gap_N.clamp(-MOST_GAP, MOST_GAP)
    # expm1, since exp - 1 rounds the smallest gaps below zero.
    value_N = (-bounded_N).expm1() + bounded_N
    if kind == "k3":
        return value_N
    return square_N - square_N.detach() + value_N.detach()


def unbiased_kl(logprobs_N: Tensor, reference_N: Tensor, old_N: Tensor) -> Tensor:
    """r k3 with r = exp(logprob - old logprob), both with a gradient: its gradient is that of KL(policy, reference).

    DeepSeek-V3.2 (arXiv:2512.02556, equation 7; TRL's use_bias_correction_kl). k3 alone has the gradient of
    KL(reference, policy), which pushes a token that the policy holds far less likely than the reference without bound.
    r corrects for tokens that `old` sampled; its gradient counts where its value is 1, too. r is at most e^20.

    >>> import torch
    >>> unbiased_kl(torch.tensor([0.6931]), torch.tensor([0.0]), torch.tensor([0.0]))  # 2 (1/2 + ln 2 - 1)
    tensor([0.3862])
    """
    ratio_N = (logprobs_N - old_N).clamp(-MOST_GAP, MOST_GAP).exp()
    return ratio_N * kl_estimate(logprobs_N, reference_N, "k3")


def adapted_kl_coef(coef: float, kl: float, samples: int, target: float, horizon: float) -> float:
    """The KL coefficient after a step with mean KL `kl` over `samples` responses.

    coef (1 + clip(kl / target - 1, -0.2, 0.2) samples / horizon), arXiv:1909.08593, section 2.2.

    >>> round(adapted_kl_coef(0.1, kl=12.0, samples=256, target=6.0, horizon=10_000), 6)
    0.100512
    """
    error = min(MOST_CHANGE, max(-MOST_CHANGE, kl / target - 1))
    return coef * (1 + error * samples / horizon)
