"""Divergences of a policy from a teacher at each token, over the K tokens that the teacher finds most probable.

The sampled response only gives the places: no gradient goes through the sampling (GKD, arXiv:2306.13649, section 3.1).

Shapes: N response tokens, K candidates at each, K + 1 with a bin for all other tokens.
"""

from typing import Literal

import torch
from torch import Tensor

Divergence = Literal["forward_kl", "reverse_kl", "jsd"]
Rest = Literal["bin", "renormalise"]
LEAST_REST = 1e-7  # probability that the bin has at least: the sum of float32 probabilities is no closer to 1
LEAST_LOGPROB = -50.0  # so that a token that one model excludes costs much and not infinitely much


def teacher_divergence(
    kind: Divergence, logprobs_NK: Tensor, teacher_NK: Tensor, rest: Rest = "bin", beta: float = 0.5
) -> Tensor:
    """The divergence of each token, [N], in nats; with p the teacher and q the policy over the same candidates:

    - forward_kl: KL(p, q) = Σ p (log p - log q). The policy covers what the teacher finds probable.
    - reverse_kl: KL(q, p) = Σ q (log q - log p). The policy keeps to what the teacher finds probable.
    - jsd: β KL(p, m) + (1 - β) KL(q, m) with m = β p + (1 - β) q, the generalised Jensen-Shannon divergence (GKD,
      arXiv:2306.13649, equation 1), at most ln 2 at β = 1/2.

    `rest` says what becomes of the other tokens' probability. bin: one more candidate has all of it (`with_rest`); the
    divergence is then at most that over the whole vocabulary, and 0 where no candidate and no rest differ. renormalise:
    it is dropped, and both models are divided by what is left, so only the ratios of candidates count.

    TRL's `loss_add_tail` and slime's top-k distillation have the bin, NeMo-RL renormalises. verl's `forward_kl_topk`
    drops the rest without a division, which can be negative.

    >>> p, q = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.125]]).log()
    >>> teacher_divergence("forward_kl", q, p)  # 1/2 ln 2 + 1/4 ln 2 + 1/4 ln (2/5), the bins being 1/4 and 5/8
    tensor([0.2908])
    >>> teacher_divergence("reverse_kl", q, p)  # 1/4 ln (1/2) + 1/8 ln (1/2) + 5/8 ln (5/2)
    tensor([0.3128])
    >>> teacher_divergence("forward_kl", q, p, "renormalise").round(decimals=6)  # both are (2/3, 1/3)
    tensor([0.])

    Args:
        logprobs_NK: The policy's log-probs of the candidates under its softmax over the whole vocabulary.
        teacher_NK: The teacher's, without a gradient.
    """
    close = with_rest if rest == "bin" else renormalise
    policy_NC, teacher_NC = (close(logprobs).clamp(min=LEAST_LOGPROB) for logprobs in (logprobs_NK, teacher_NK))
    if kind == "forward_kl":
        return _kl(teacher_NC, policy_NC)
    if kind == "reverse_kl":
        return _kl(policy_NC, teacher_NC)
    weights = torch.tensor([beta, 1 - beta], dtype=policy_NC.dtype, device=policy_NC.device).log()
    mixture_NC = torch.logaddexp(teacher_NC + weights[0], policy_NC + weights[1])
    return beta * _kl(teacher_NC, mixture_NC) + (1 - beta) * _kl(policy_NC, mixture_NC)


def with_rest(logprobs_NK: Tensor) -> Tensor:
    """The candidates' log-probs, and that of all other tokens together: [N, K] → [N, K + 1], which sum to 1.

    The rest is at least LEAST_REST, where it has no gradient.

    >>> with_rest(torch.tensor([[0.5, 0.25]]).log()).exp()
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    mass_N1 = logprobs_NK.logsumexp(-1, keepdim=True).clamp(max=-LEAST_REST)
    return torch.cat([logprobs_NK, torch.log(-torch.expm1(mass_N1))], dim=-1)


def renormalise(logprobs_NK: Tensor) -> Tensor:
    """The candidates' log-probs given that it is one of them.

    >>> renormalise(torch.tensor([[0.5, 0.25]]).log()).exp()
    tensor([[0.6667, 0.3333]])
    """
    return logprobs_NK - logprobs_NK.logsumexp(-1, keepdim=True)


def _kl(of_NC: Tensor, to_NC: Tensor) -> Tensor:
    return (of_NC.exp() * (of_NC - to_NC)).sum(-1)
