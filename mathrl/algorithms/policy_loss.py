"""Surrogates of the policy: clipped (PPO, GRPO, DAPO), by sequence (GSPO), CISPO, without a ratio, and others'.

All return a loss per token and take log-probs with a gradient, old log-probs and advantages without.

Shapes: S responses of the given lengths, N their tokens in order.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mathrl.algorithms.trust_regions import dppo_loss, geometric_mean_loss, log_ratio, mean_log_ratio, sapo_loss

Kind = Literal["clip", "gspo", "cispo", "reinforce", "sapo", "gmpo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov"]


class Clip(NamedTuple):
    """Bounds of the ratio, 1 - low and 1 + high; where A < 0 also `dual`, if it is set.

    Example: Clip(low=0.2, high=0.28, dual=3.0) is [0.8, 1.28], and at most 3 where A < 0.

    `gmpo` bounds log-ratios by -low and high, `dppo_tv` and `dppo_kl` divergences by low and high and the ratio by
    `dual`; `temperatures` are SAPO's, for positive and other advantages.
    """

    low: float
    high: float
    dual: float | None = None
    temperatures: tuple[float, float] = (1.0, 1.05)


def policy_loss(
    kind: Kind,
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    lengths_S: Tensor,
    clip: Clip,
    kept_N: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of the kind's function below, and where it is clipped: loss_N, clipped_N.

    `kept_N` marks the tokens that have a loss (None: all); the sequence's ratio (gspo) is over those.

    >>> logprobs, advantages = torch.tensor([0.5, 1.5]).log(), torch.tensor([1.0, 1.0])
    >>> policy_loss("clip", logprobs, torch.zeros(2), advantages, torch.tensor([2]), Clip(0.2, 0.28))
    (tensor([-0.5000, -1.2800]), tensor([False,  True]))
    """
    if kind == "reinforce":
        return reinforce_loss(logprobs_N, advantages_N)
    if kind == "kl_cov":
        return ratio_loss(logprobs_N, old_logprobs_N, advantages_N)
    if kind == "cispo":
        return cispo_loss(logprobs_N, old_logprobs_N, advantages_N, clip)
    if kind == "sapo":
        return sapo_loss(logprobs_N, old_logprobs_N, advantages_N, clip.temperatures)
    if kind == "gmpo":
        return geometric_mean_loss(logprobs_N, old_logprobs_N, advantages_N, lengths_S, clip[:2], kept_N)
    if kind == "dppo_tv" or kind == "dppo_kl":
        divergence: Literal["tv", "kl"] = "tv" if kind == "dppo_tv" else "kl"
        return dppo_loss(divergence, logprobs_N, old_logprobs_N, advantages_N, clip[:2], clip.dual)
    if kind == "gspo":
        logprobs_N = old_logprobs_N + sequence_log_ratio(logprobs_N, old_logprobs_N, lengths_S, kept_N)
    return clipped_policy_loss(logprobs_N, old_logprobs_N, advantages_N, clip)


def clipped_policy_loss(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logprob - old logprob), per token.

    PPO (arXiv:1707.06347, equation 7); with high > low it is DAPO's clip-higher (arXiv:2503.14476,
    equation 10). With `clip.dual` c > 1, where A < 0 the loss is at most -c A (arXiv:1912.09729),
    which bounds it for exploding ratios. Log-ratios are clamped to ±20.

    >>> ratio, advantages = torch.tensor([1.5, 0.5, 1.1]), torch.tensor([1.0, -1.0, 2.0])
    >>> clipped_policy_loss(ratio.log(), torch.zeros(3), advantages, Clip(0.2, 0.28))
    (tensor([-1.2800,  0.8000, -2.2000]), tensor([ True,  True, False]))
    >>> clipped_policy_loss(torch.tensor([5.0]).log(), torch.zeros(1), torch.tensor([-1.0]), Clip(0.2, 0.28, 3.0))
    (tensor([3.]), tensor([True]))

    Returns:
        loss_N, and clipped_N: True where a clipped branch was taken, so that the gradient is 0.
    """
    ratio_N = log_ratio(logprobs_N, old_logprobs_N).exp()
    free_N = -ratio_N * advantages_N
    bound_N = -ratio_N.clamp(1 - clip.low, 1 + clip.high) * advantages_N
    loss_N, clipped_N = torch.maximum(free_N, bound_N), bound_N.detach() > free_N.detach()
    if clip.dual is None:
        return loss_N, clipped_N
    cap_N = -clip.dual * advantages_N
    capped_N = (advantages_N < 0) & (cap_N < loss_N.detach())
    return torch.where(capped_N, cap_N, loss_N), clipped_N | capped_N


def cispo_loss(logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """-stop_gradient(clip(r, 1 - low, 1 + high)) A logprob: no token loses its gradient; weights are bounded.

    CISPO (MiniMax-M1, arXiv:2506.13585, equation 4), which has no lower bound: clip_low 1. The upper bound is
    1 + clip_high, as in verl; TRL's epsilon_high is the bound itself, so its 5 is 4 here.

    >>> logprobs = torch.tensor([3.0, 0.5]).log()
    >>> cispo_loss(logprobs, torch.zeros(2), torch.tensor([1.0, 2.0]), Clip(1.0, 1.0))  # -2 ln 3, -0.5 * 2 ln 0.5
    (tensor([-2.1972,  0.6931]), tensor([ True, False]))
    """
    ratio_N = log_ratio(logprobs_N, old_logprobs_N).exp().detach()
    weight_N = ratio_N.clamp(1 - clip.low, 1 + clip.high)
    return -weight_N * advantages_N * logprobs_N, weight_N != ratio_N


def reinforce_loss(logprobs_N: Tensor, advantages_N: Tensor) -> tuple[Tensor, Tensor]:
    """-A logprob, without a ratio (Williams 1992); on policy its gradient is that of `clipped_policy_loss`.

    >>> reinforce_loss(torch.tensor([-0.5]), torch.tensor([2.0]))
    (tensor([1.]), tensor([False]))
    """
    return -advantages_N * logprobs_N, torch.zeros_like(advantages_N, dtype=torch.bool)


def ratio_loss(logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor) -> tuple[Tensor, Tensor]:
    """-r A, without a clip (arXiv:2505.22617, KL-Cov, where a KL on few tokens takes its place).

    >>> ratio_loss(torch.tensor([3.0]).log(), torch.zeros(1), torch.tensor([2.0]))
    (tensor([-6.]), tensor([False]))
    """
    ratio_N = log_ratio(logprobs_N, old_logprobs_N).exp()
    return -ratio_N * advantages_N, torch.zeros_like(advantages_N, dtype=torch.bool)


def sequence_log_ratio(
    logprobs_N: Tensor, old_logprobs_N: Tensor, lengths_S: Tensor, kept_N: Tensor | None = None
) -> Tensor:
    """The mean of a response's log-ratios, for each of its tokens; its exponential is GSPO's s_i.

    GSPO (arXiv:2507.18071, equation 7). Value of the mean, gradient of the token's own log-prob (GSPO-token,
    equation 14): summed over the response, with equal weights and advantages, that is the gradient of s_i.
    Tokens that importance sampling leaves out (not in `kept_N`) are not in the mean, as in verl: they are not part
    of the trained sequence.

    >>> sequence_log_ratio(torch.tensor([0.2, 0.4, 1.0]), torch.zeros(3), torch.tensor([2, 1]))
    tensor([0.3000, 0.3000, 1.0000])
    >>> kept = torch.tensor([True, False, True])
    >>> sequence_log_ratio(torch.tensor([0.2, 0.4, 1.0]), torch.zeros(3), torch.tensor([2, 1]), kept)
    tensor([0.2000, 0.2000, 1.0000])
    """
    return mean_log_ratio(log_ratio(logprobs_N, old_logprobs_N), lengths_S, kept_N)
