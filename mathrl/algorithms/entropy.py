"""Entropy of next-token distributions.

Shapes: N tokens, V the vocabulary.
"""

import torch
from torch import Tensor


def entropy(logits_NV: Tensor) -> Tensor:
    """H = logsumexp(z) - sum p z in nats, [N], stable for large logits and for tokens ruled out by -inf.

    >>> entropy(torch.zeros(1, 4))  # ln 4
    tensor([1.3863])
    """
    logp_NV = torch.log_softmax(logits_NV.float(), dim=-1)
    # A token of probability zero adds nothing: 0 log 0 = 0.
    return -(logp_NV.exp() * logp_NV.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
