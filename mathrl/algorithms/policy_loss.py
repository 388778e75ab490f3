"""The clipped surrogate.

Shapes: N response tokens.
"""

import torch
from torch import Tensor


def clipped_policy_loss(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logprob - old logprob), a token at a time.

    PPO (arXiv:1707.06347, equation 7); with high > low it is DAPO's clip-higher (arXiv:2503.14476,
    equation 10).

    >>> ratio, advantages = torch.tensor([1.5, 0.5, 1.1]), torch.tensor([1.0, -1.0, 2.0])
    >>> clipped_policy_loss(ratio.log(), torch.zeros(3), advantages, 0.2, 0.28)
    (tensor([-1.2800,  0.8000, -2.2000]), tensor([ True,  True, False]))

    Returns:
        loss_N, and clipped_N: True where the clipped branch was taken, so that the gradient is 0.
    """
    ratio_N = (logprobs_N - old_logprobs_N).exp()
    free_N = -ratio_N * advantages_N
    bound_N = -ratio_N.clamp(1 - clip_low, 1 + clip_high) * advantages_N
    return torch.maximum(free_N, bound_N), bound_N.detach() > free_N.detach()
