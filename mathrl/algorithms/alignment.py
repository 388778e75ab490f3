"""How far the sampler's log-probs are from the trainer's.

Shapes: N response tokens.
"""

from torch import Tensor


def logprob_alignment(trainer_N: Tensor, sampler_N: Tensor) -> float:
    """(1/N) sum exp |trainer - sampler|: 1 when they agree, and at most 1.05 for a run to be trusted.

    >>> import torch
    >>> round(logprob_alignment(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -2.0 + 0.6931])), 3)
    1.5
    """
    return float((trainer_N - sampler_N).abs().exp().mean())
