"""Rewards of a group → advantages.

Shapes: P groups (prompts) of G rewards each.
"""

from typing import Literal

from torch import Tensor

Kind = Literal["group_std", "group_mean", "leave_one_out"]


def group_advantages(rewards_PG: Tensor, kind: Kind, *, ddof: int = 1, eps: float = 1e-6) -> Tensor:
    """One advantage a response, shared by all its tokens.

    - group_std: (r - mean) / (std + eps), GRPO (DeepSeekMath, arXiv:2402.03300, section 4.1.2). The paper
      says neither `ddof` nor `eps`; frameworks differ (TRL 1 and 1e-4, verl 1 and 1e-6, GRPO-Zero 0).
    - group_mean: r - mean, Dr.GRPO (arXiv:2503.20783, section 3.2).
    - leave_one_out: r_i minus the mean of the others, RLOO (arXiv:2402.14740, equation 7); it equals
      G / (G - 1) (r - mean).

    A group whose rewards are all equal gets exactly 0.

    >>> import torch
    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), "group_std", eps=0.0)
    tensor([[ 1.5000, -0.5000, -0.5000, -0.5000]])
    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), "leave_one_out")
    tensor([[ 1.0000, -0.3333, -0.3333, -0.3333]])

    Raises:
        ValueError: rewards are not [P, G] with G of at least 2.
    """
    if rewards_PG.dim() != 2 or rewards_PG.shape[1] < 2:
        raise ValueError(f"rewards must be [groups, at least 2 responses], found {tuple(rewards_PG.shape)}")
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    if kind == "group_std":
        advantages_PG = centred_PG / (rewards_PG.std(dim=1, keepdim=True, correction=ddof) + eps)
    elif kind == "leave_one_out":
        size = rewards_PG.shape[1]
        advantages_PG = centred_PG * (size / (size - 1))
    else:
        advantages_PG = centred_PG
    # Rounding of the mean must not become an advantage (0.1 x 16 does not sum to 1.6).
    return advantages_PG.masked_fill(uniform_groups(rewards_PG)[:, None], 0.0)


def uniform_groups(rewards_PG: Tensor) -> Tensor:
    """True for the groups, [P], in which every response has the same reward."""
    return (rewards_PG == rewards_PG[:, :1]).all(dim=1)
