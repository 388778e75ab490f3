"""Terms of the loss that imitate: tokens of expert responses within the policy loss, and weights of an SFT term.

Shapes: N tokens of responses; p is the policy's probability of a token.
"""

from torch import Tensor


def shaped_loss(logprobs_N: Tensor, advantages_N: Tensor, gamma: float) -> Tensor:
    """-A p / (p + gamma) of each token of an expert's response, [N].

    LUFFY's policy shaping (arXiv:2504.14945, section 3.3): the expert's probability counts as 1, so that the ratio is
    p, without a clip. The slope in log p is A gamma p / (p + gamma)^2, largest at p = gamma, and not at p = 1.

    >>> import torch
    >>> shaped_loss(torch.tensor([0.5, 0.1]).log(), torch.tensor([1.0, -1.0]), 0.1)
    tensor([-0.8333,  0.5000])
    """
    probabilities_N = logprobs_N.exp()
    return -advantages_N * probabilities_N / (probabilities_N + gamma)


def phi_weights(logprobs_N: Tensor) -> Tensor:
    """p (1 - p) of each token, [N], without a gradient: CHORD's weights of the SFT loss (arXiv:2508.11408).

    Tokens that the policy is sure of, and those that would change it most, weigh least.

    >>> import torch
    >>> phi_weights(torch.tensor([0.5, 0.9, 1.0]).log())
    tensor([0.2500, 0.0900, 0.0000])
    """
    probabilities_N = logprobs_N.detach().exp()
    return probabilities_N * (1 - probabilities_N)


def imitation_weights(imitated_S: Tensor, lengths_S: Tensor, coef: float) -> Tensor:
    """The weight of each response's tokens in the likelihood term, [S]: coef / (tokens imitated), 0 for the others.

    >>> import torch
    >>> imitation_weights(torch.tensor([True, False, True]), torch.tensor([3, 9, 1]), 0.2)
    tensor([0.0500, 0.0000, 0.0500])
    """
    return coef * imitated_S.float() / (lengths_S * imitated_S).sum().clamp(min=1)
