"""The critic's loss and explained variance.

Shapes: N response tokens.
"""

import torch
from torch import Tensor


def clipped_value_loss(
    values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """1/2 max((V - R)^2, (V' - R)^2) with V' = V clamped to `clip` around the old value, per token.

    PPO's implementation (arXiv:2005.12729, section 3); without `clip`, 1/2 (V - R)^2.

    >>> clipped_value_loss(torch.tensor([1.0, 0.1]), torch.zeros(2), torch.tensor([1.0, 1.0]), 0.2)
    (tensor([0.3200, 0.4050]), tensor([ True, False]))

    Returns:
        loss_N, and clipped_N: True where the clipped branch was taken, so that the gradient is 0.
    """
    free_N = (values_N - returns_N).square()
    if clip is None:
        return free_N / 2, torch.zeros_like(free_N, dtype=torch.bool)
    # Not old + clamp(difference), whose rounding would count as clipped.
    kept_N = values_N.clamp(old_values_N - clip, old_values_N + clip)
    bound_N = (kept_N - returns_N).square()
    return torch.maximum(free_N, bound_N) / 2, bound_N.detach() > free_N.detach()


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """1 - Var(R - V) / Var(R): 1 is perfect, 0 as good as a constant, below 0 worse; 0 if R is constant.

    >>> explained_variance(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 2.0, 4.0]))
    0.916...
    """
    total = float(returns_N.var(correction=0)) if len(returns_N) else 0.0
    if total == 0.0:
        return 0.0
    return 1.0 - float((returns_N - values_N).var(correction=0)) / total
