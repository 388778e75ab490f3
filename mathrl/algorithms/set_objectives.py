"""Advantages for objectives of several responses at once: pass@k, max@k and maximum likelihood; rewards by part.

Shapes: P groups (prompts) of G rewards each; K reward parts.
"""

from collections.abc import Callable, Sequence
from math import comb
from typing import Literal

import torch
from torch import Tensor

from mathrl.algorithms.advantages import group_advantages, uniform_groups

Kind = Literal["max_rl", "pass_at_k", "pkpo"]


def set_advantages(rewards_PG: Tensor, kind: Kind, k: int, *, eps: float = 1e-6) -> Tensor:
    """One advantage per response, [P, G]; a group whose rewards are all equal gets exactly 0.

    - max_rl: `max_rl_advantages`; `k` is not used.
    - pass_at_k: `pass_at_k_advantages`.
    - pkpo: `max_at_k_advantages`.

    Raises:
        ValueError: rewards are not [P, G], are negative (max_rl), or k is not between 2 and G.
    """
    if rewards_PG.dim() != 2:
        raise ValueError(f"rewards must be [groups, responses], found {tuple(rewards_PG.shape)}")
    if kind == "max_rl":
        advantages_PG = max_rl_advantages(rewards_PG)
    elif not 2 <= k <= rewards_PG.shape[1]:
        raise ValueError(f"k must be between 2 and the group size {rewards_PG.shape[1]}, found {k}")
    elif kind == "pass_at_k":
        advantages_PG = pass_at_k_advantages(rewards_PG, k, eps=eps)
    else:
        advantages_PG = max_at_k_advantages(rewards_PG, k)
    return advantages_PG.masked_fill(uniform_groups(rewards_PG)[:, None], 0.0)


def max_rl_advantages(rewards_PG: Tensor) -> Tensor:
    """(r - mean) / mean: towards the largest log p (maximum likelihood) instead of the largest p.

    MaxRL (arXiv:2602.02710): the gradient of log p is the sum of 1/k times the gradient of pass@k, k = 1, 2, …; with
    rewards 1 and 0 the mean gradient over responses is unbiased for the first G - 1 terms (GRPO without a std has the
    first alone), so that rarely solved problems weigh more. A group without any reward gets 0.

    >>> max_rl_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    tensor([[ 3., -1., -1., -1.],
            [ 0.,  0.,  0.,  0.]])

    Raises:
        ValueError: a reward is negative.
    """
    if bool((rewards_PG < 0).any()):
        raise ValueError("max_rl divides by the mean reward and needs rewards of at least 0")
    mean_P1 = rewards_PG.mean(dim=1, keepdim=True)
    return (rewards_PG - mean_P1) / mean_P1.where(mean_P1 > 0, 1.0)  # without any reward 0 / 1


def pass_at_k_advantages(rewards_PG: Tensor, k: int, *, eps: float = 1e-6) -> Tensor:
    """(E[maximum of a set that holds the response] - mean) / (std + eps), over all sets of k responses of the group.

    Pass@k training (arXiv:2508.10751, its analytical form): with rewards 1 and 0 a set's reward is 1 if one response is
    right, and the values are those of the paper for right and for wrong responses.

    Rewards 1, 0, 0 and k = 2: two of the three pairs hold the right response, so mean 2/3 and std √2 / 3. Both pairs of
    the first response have a maximum of 1, and one of the two pairs of each other:

    >>> pass_at_k_advantages(torch.tensor([[1.0, 0.0, 0.0]]), 2, eps=0.0)
    tensor([[ 0.7071, -0.3536, -0.3536]])
    """
    size = rewards_PG.shape[1]
    ordered_PG, order_PG = rewards_PG.double().sort(dim=1)
    largest_G = _counts(size, lambda place: comb(place, k - 1))  # sets in which this place is the largest
    mean_P1 = (ordered_PG @ largest_G)[:, None] / comb(size, k)
    std_P1 = (((ordered_PG - mean_P1).square() @ largest_G)[:, None] / comb(size, k)).sqrt()
    # Sets that hold place i: it is their largest, or the one at a place j > i is.
    above_PG = ordered_PG * _counts(size, lambda place: comb(place - 1, k - 2) if place else 0)
    above_PG = above_PG.flip(1).cumsum(1).flip(1) - above_PG
    held_PG = (ordered_PG * largest_G + above_PG) / comb(size - 1, k - 1)
    return _in_order((held_PG - mean_P1) / (std_P1 + eps), order_PG, rewards_PG.dtype)


def max_at_k_advantages(rewards_PG: Tensor, k: int) -> Tensor:
    """k times the mean, over the sets of k responses that hold the response, of what it adds to the set's maximum.

    Pass-at-k policy optimization (arXiv:2505.15201, the baseline of sets without the response, `sloo_minus_one`): the
    mean gradient over responses is unbiased for the gradient of the expected maximum of k responses, pass@k for rewards
    1 and 0. With k = G it is G times the best reward minus the second best, for the best response alone (verl's
    grpo_passk without a std).

    >>> max_at_k_advantages(torch.tensor([[1.0, 0.0, 0.0]]), 2)  # in both of its pairs it adds 1
    tensor([[2., 0., 0.]])
    """
    size = rewards_PG.shape[1]
    ordered_PG, order_PG = rewards_PG.double().sort(dim=1)
    # Of the sets in which place j is the largest, C(m, k - 2) have place m as the second largest.
    second_G = _counts(size, lambda place: comb(place, k - 2))
    below_G = second_G.cumsum(0) - second_G
    below_PG = (ordered_PG * second_G).cumsum(1) - ordered_PG * second_G
    gains_PG = (ordered_PG * below_G - below_PG) * (k / comb(size - 1, k - 1))
    return _in_order(gains_PG, order_PG, rewards_PG.dtype)


def _counts(size: int, count: Callable[[int], int]) -> Tensor:
    return torch.tensor([count(place) for place in range(size)], dtype=torch.float64)


def _in_order(sorted_PG: Tensor, order_PG: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(sorted_PG).scatter_(1, order_PG, sorted_PG).to(dtype)


def part_advantages(parts_KPG: Tensor, weights: Sequence[float], *, ddof: int = 1, eps: float = 1e-6) -> Tensor:
    """The weighted sum of each part's own group advantage (r - mean) / (std + eps), [P, G].

    GDPO (arXiv:2601.05242, equation 5): responses with different parts and the same sum stay different, and a part with
    a small range is not drowned. The paper then normalises over the batch (`whiten`).

    >>> part_advantages(torch.tensor([[[1.0, 0.0]], [[0.0, 0.1]]]), [1.0, 1.0], eps=0.0)
    tensor([[0., 0.]])
    >>> part_advantages(torch.tensor([[[1.0, 0.0]], [[0.0, 0.1]]]), [1.0, 0.5], eps=0.0)
    tensor([[ 0.3536, -0.3536]])
    """
    advantages_KPG = torch.stack([group_advantages(part_PG, "grpo", ddof=ddof, eps=eps) for part_PG in parts_KPG])
    return torch.einsum("kpg,k->pg", advantages_KPG, torch.tensor(weights, dtype=advantages_KPG.dtype))
