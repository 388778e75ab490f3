"""Estimators of KL(policy, reference) from tokens that the policy sampled.

Shapes: N response tokens.
"""

from typing import Literal

from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs_N: Tensor, reference_N: Tensor, kind: Estimator) -> Tensor:
    """With d = logprob - reference: k1 is d, k2 is d²/2, k3 is exp(-d) + d - 1 (Schulman 2020).

    k1 has the right mean and, as a loss, an expected gradient of zero; k2 as a loss has the gradient of the
    KL; k3 is never negative and is DeepSeekMath's (arXiv:2402.03300, equation 4).

    >>> import torch
    >>> kl_estimate(torch.tensor([0.0, 0.6931]), torch.tensor([0.0, 0.0]), "k3")
    tensor([0.0000, 0.1931])
    """
    gap_N = logprobs_N - reference_N
    if kind == "k1":
        return gap_N
    if kind == "k2":
        return gap_N.square() / 2
    # expm1 keeps the smallest gaps from rounding below zero.
    return (-gap_N).expm1() + gap_N
