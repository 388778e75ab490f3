"""Surrogates that bound an update in another way than PPO's clip: SAPO, GMPO, DPPO, masks, a squared log-ratio.

A loss returns a loss per token, and where that has no gradient.

Shapes: S responses of the given lengths, N their tokens in order.
"""

from typing import Literal

import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.kl import MOST_GAP
from mathrl.algorithms.returns import response_sums

TINY = 1e-8


def log_ratio(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """logprob - old logprob, clamped to ±20 (as in verl), so that its exponential is finite.

    >>> log_ratio(torch.tensor([-1.0, 0.0]), torch.tensor([-3.0, -90.0]))
    tensor([ 2., 20.])
    """
    return (logprobs_N - old_logprobs_N).clamp(-MOST_GAP, MOST_GAP)


def mean_log_ratio(gap_N: Tensor, lengths_S: Tensor, kept_N: Tensor | None = None) -> Tensor:
    """The mean of `gap_N` over each response's kept tokens, for each of its tokens, with the token's own gradient.

    Summed over a response with equal weights and advantages, the gradients are those of the mean (GSPO-token,
    arXiv:2507.18071, equation 14).
    """
    counted_N = torch.ones_like(gap_N) if kept_N is None else kept_N.to(gap_N.dtype)
    counts_S = response_sums(counted_N, lengths_S).clamp(min=1)
    mean_S = response_sums(gap_N.detach() * counted_N, lengths_S) / counts_S
    return gap_N - gap_N.detach() + spread(mean_S, lengths_S, len(gap_N))


def sapo_loss(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, temperatures: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """-(4 / τ) sigmoid(τ (r - 1)) A with τ = temperatures[0] where A > 0, else temperatures[1]: a soft gate, no clip.

    SAPO (arXiv:2511.20347, equations 5 and 6). At r = 1 the gradient is that of r A; it fades on both sides,
    faster for negative advantages where their temperature is higher.

    >>> sapo_loss(torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([1.0]), (1.0, 1.05))  # 4 sigmoid(0)
    (tensor([-2.]), tensor([False]))
    """
    positive, negative = temperatures
    ratio_N = log_ratio(logprobs_N, old_logprobs_N).exp()
    temperature_N = torch.where(advantages_N > 0, positive, negative)
    gate_N = torch.sigmoid(temperature_N * (ratio_N - 1)) * (4 / temperature_N)
    return -gate_N * advantages_N, torch.zeros_like(advantages_N, dtype=torch.bool)


def geometric_mean_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    lengths_S: Tensor,
    bounds: tuple[float, float],
    kept_N: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """-A times the geometric mean of a response's ratios, each clipped to [exp(-bounds[0]), exp(bounds[1])].

    GMPO (arXiv:2507.20673, equation 4): as PPO's, the clip takes the more pessimistic of ratio and clipped ratio.
    With weights `sequence_mean` it is the paper's objective. Tokens not in `kept_N` are not in the mean.

    >>> logprobs, advantages = torch.tensor([0.6, -0.2]), torch.tensor([1.0, 1.0])  # exp((0.4 - 0.2) / 2)
    >>> geometric_mean_loss(logprobs, torch.zeros(2), advantages, torch.tensor([2]), (0.4, 0.4))
    (tensor([-1.1052, -1.1052]), tensor([ True, False]))
    """
    gap_N = log_ratio(logprobs_N, old_logprobs_N)
    bound_N = gap_N.clamp(-bounds[0], bounds[1])
    clipped_N = advantages_N * bound_N.detach() < advantages_N * gap_N.detach()
    mean_N = mean_log_ratio(torch.where(clipped_N, bound_N, gap_N), lengths_S, kept_N)
    return -advantages_N * mean_N.exp(), clipped_N


def dppo_loss(
    divergence: Literal["tv", "kl"],
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    bounds: tuple[float, float],
    most_ratio: float | None = None,
) -> tuple[Tensor, Tensor]:
    """-r A without the tokens whose probability has moved too far in the direction of the advantage.

    DPPO with the binary divergences of the sampled token (arXiv:2602.04879): "tv" is |p - old p|, "kl" that of
    Bernoulli(old p) from Bernoulli(p). Where A > 0 a token whose p has risen is left out above bounds[1], where A < 0
    one whose p has fallen above bounds[0]; unlike a ratio, this leaves rare tokens free to move. The gradient is
    r A ∇logprob, as with prime-rl's default loss; `most_ratio` truncates r in it (verl: 20).

    >>> logprobs, old = torch.tensor([0.9, 0.02]).log(), torch.tensor([0.5, 0.01]).log()  # p: +0.4 and +0.01
    >>> dppo_loss("tv", logprobs, old, torch.ones(2), (0.2, 0.2))
    (tensor([-0., -2.]), tensor([ True, False]))
    """
    ratio_N = log_ratio(logprobs_N, old_logprobs_N).exp()
    p_N, old_N = logprobs_N.detach().exp(), old_logprobs_N.exp()
    if divergence == "tv":
        moved_N = (p_N - old_N).abs()
    else:
        rest_N = ((1 - old_N + TINY) / (1 - p_N + TINY)).log()
        moved_N = old_N * (old_logprobs_N - logprobs_N.detach()) + (1 - old_N) * rest_N
    too_high_N = (advantages_N > 0) & (p_N > old_N) & (moved_N > bounds[1])
    too_low_N = (advantages_N < 0) & (p_N < old_N) & (moved_N > bounds[0])
    left_out_N = too_high_N | too_low_N
    if most_ratio is not None:  # value of the truncated ratio, gradient of its product with the log-prob
        bounded_N = ratio_N.detach().clamp(max=most_ratio)
        ratio_N = bounded_N * (1 + logprobs_N - logprobs_N.detach())
    return -advantages_N * ratio_N * ~left_out_N, left_out_N


def near_policy(logprobs_N: Tensor, sampler_N: Tensor, advantages_N: Tensor, lengths_S: Tensor, limit: float) -> Tensor:
    """Which tokens keep their surrogate, [N]: all but those with A < 0 in responses far from the policy.

    Off-policy sequence masking of DeepSeek-V3.2 (arXiv:2512.02556, equations 8 and 9): far is where the response's mean
    of sampler's log-prob - logprob is above `limit`. The sampler's log-probs see both causes, updates since and another
    engine's arithmetic. Tokens left out stay in the denominators, as in the paper and in TRL.

    >>> gaps = torch.tensor([-1.0, -0.2, -0.1])  # means 0.6 and 0.1
    >>> near_policy(gaps, torch.zeros(3), torch.tensor([-1.0, 1.0, -1.0]), torch.tensor([2, 1]), 0.5)
    tensor([False,  True,  True])
    """
    gap_N = sampler_N - logprobs_N.detach()
    mean_S = response_sums(gap_N, lengths_S) / lengths_S.clamp(min=1)
    return (advantages_N >= 0) | spread(mean_S <= limit, lengths_S, len(gap_N))


def squared_log_ratio(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """(logprob - old logprob)², a pull back to the sampling policy at every token (prime-rl's `kl_tau` term).

    >>> squared_log_ratio(torch.tensor([-1.0]), torch.tensor([-3.0]))
    tensor([4.])
    """
    return log_ratio(logprobs_N, old_logprobs_N).square()
