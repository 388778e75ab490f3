"""Importance weights that correct the difference of trainer and sampler, and the tokens that they leave out.

An engine with other kernels, another precision or older weights samples from a policy slightly different from the
trainer's. With old log-probs recomputed by the trainer, the surrogate's ratio is new / old; the ratio old / sampler is
corrected here.

Shapes: S responses of the given lengths, N their tokens in order.
"""

from typing import Literal

import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.returns import response_sums

Kind = Literal["truncated", "masked"]
Level = Literal["token", "sequence"]


def importance_weights(
    old_N: Tensor, sampler_N: Tensor, lengths_S: Tensor, kind: Kind, level: Level, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Weights of the token losses, without a gradient, and which tokens keep their loss.

    The ratio is exp(old - sampler) of a token, or of a whole response (the product over its tokens, the same
    for each of them).

    - truncated: min(ratio, high), TIS (Yao et al. 2025, "Your efficient RL framework secretly brings you
      off-policy RL training"; verl takes 2, TRL 3). `low` is ignored.
    - masked: the ratio where it lies in [low, high]; elsewhere the token, or the whole response, has no loss
      and is not counted in any denominator (MIS; leaving it in the denominator shrinks the others).

    >>> ratio = torch.tensor([1.0, 4.0, 0.25])
    >>> importance_weights(ratio.log(), torch.zeros(3), torch.tensor([2, 1]), "truncated", "token", 0.5, 2.0)
    (tensor([1.0000, 2.0000, 0.2500]), tensor([True, True, True]))
    >>> importance_weights(ratio.log(), torch.zeros(3), torch.tensor([2, 1]), "masked", "sequence", 0.5, 4.5)
    (tensor([4., 4., 0.]), tensor([ True,  True, False]))
    """
    gap_N = (old_N - sampler_N).detach()
    if level == "sequence":
        gap_N = spread(response_sums(gap_N, lengths_S), lengths_S)
    ratio_N = gap_N.exp()
    if kind == "truncated":
        return ratio_N.clamp(max=high), torch.ones_like(ratio_N, dtype=torch.bool)
    kept_N = (ratio_N >= low) & (ratio_N <= high)
    return ratio_N.masked_fill(~kept_N, 0.0), kept_N
