"""What keeps the entropy of the policy up: tokens chosen by entropy or covariance, and an adaptive entropy bonus.

Shapes: N the tokens of a mini-batch; means, quantiles and counts are over those in `kept_N`.
"""

import math

import torch
from torch import Tensor


def highest_entropies(entropies_N: Tensor, kept_N: Tensor, share: float) -> Tensor:
    """The tokens whose entropy is at least the (1 - share) quantile, [N]: forks of the reasoning, which alone learn.

    The 80/20 paper (arXiv:2506.01939, section 5; it takes 0.2). The quantile lies between two entropies as in
    torch.quantile, so at least one token is chosen (TRL's top_entropy_quantile).

    >>> entropies, kept = torch.tensor([0.0, 3.0, 1.0, 2.0, 9.0]), torch.tensor([True, True, True, True, False])
    >>> highest_entropies(entropies, kept, 0.5)  # at least 1.5
    tensor([False,  True, False,  True, False])
    """
    sorted_K = entropies_N[kept_N].double().sort().values
    if not len(sorted_K):
        return kept_N
    place = (1 - share) * (len(sorted_K) - 1)
    low, high = sorted_K[math.floor(place)], sorted_K[math.ceil(place)]
    return kept_N & (entropies_N >= low + (high - low) * (place - math.floor(place)))


def covariances(logprobs_N: Tensor, advantages_N: Tensor, kept_N: Tensor) -> Tensor:
    """(logprob - mean) (A - mean) of each token, [N]; -inf where it is not in `kept_N`.

    Tokens that are likely and good, where it is large, are those whose updates lower the entropy (arXiv:2505.22617,
    section 4).

    >>> covariances(torch.tensor([0.0, -2.0, -9.0]), torch.tensor([1.0, -1.0, 5.0]), torch.tensor([True, True, False]))
    tensor([1., 1., -inf])
    """
    count = kept_N.sum().clamp(min=1)
    centred = [values_N - (values_N * kept_N).sum() / count for values_N in (logprobs_N, advantages_N)]
    return (centred[0] * centred[1]).masked_fill(~kept_N, -math.inf)


def covariances_within(
    covariances_N: Tensor, share: float, low: float, high: float, generator: torch.Generator
) -> Tensor:
    """Clip-Cov's tokens, [N]: a random `share` of all (one at least) among those with a covariance in (low, high).

    arXiv:2505.22617, section 4: they have no gradient. verl and the paper take 2e-4, 1 and 5.

    >>> covariances_within(torch.tensor([0.5, 2.0, 7.0]), 0.1, 1.0, 5.0, torch.Generator())
    tensor([False,  True, False])
    """
    inside = ((covariances_N > low) & (covariances_N < high)).nonzero()[:, 0]
    order = torch.randperm(len(inside), generator=generator)[: _count(covariances_N, share)]
    return torch.zeros_like(covariances_N, dtype=torch.bool).index_fill_(0, inside[order], True)


def highest_covariances(covariances_N: Tensor, share: float) -> Tensor:
    """KL-Cov's tokens, [N]: the `share` of all (one at least) with the largest covariances.

    arXiv:2505.22617, section 4: a KL to the old policy holds them back. The paper takes 2e-3 at 7B.

    >>> highest_covariances(torch.tensor([0.5, 2.0, 7.0, -1.0]), 0.5)
    tensor([False,  True,  True, False])
    """
    chosen = covariances_N.topk(min(len(covariances_N), _count(covariances_N, share))).indices
    chosen_N = torch.zeros_like(covariances_N, dtype=torch.bool).index_fill_(0, chosen, True)
    return chosen_N & (covariances_N > -math.inf)


def _count(covariances_N: Tensor, share: float) -> int:
    return max(1, int(share * int((covariances_N > -math.inf).sum())))


def adapted_entropy_coef(
    coef: float, entropy: float, target: float, delta: float, bounds: tuple[float, float]
) -> float:
    """The coefficient of the entropy bonus after a step with this mean entropy per token.

    c + delta where the entropy is at most the target, else c - delta, within the bounds: the adaptive entropy control
    of Skywork-OR1 (arXiv:2505.22312), which applies c only where the entropy is at most the target (TRL's
    use_adaptive_entropy: in the step after).

    >>> adapted_entropy_coef(0.01, entropy=0.15, target=0.2, delta=0.005, bounds=(0.0, 1.0))
    0.015
    """
    low, high = bounds
    return min(high, max(low, coef + (delta if entropy <= target else -delta)))
