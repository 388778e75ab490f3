"""How far the sampler's log-probs are from the trainer's.

Shapes: S responses of the given lengths, N their tokens in order.
"""

from torch import Tensor

from mathrl.algorithms.returns import response_sums


def logprob_alignment(trainer_N: Tensor, sampler_N: Tensor, lengths_S: Tensor) -> Tensor:
    """(1/L) sum exp |trainer - sampler| of each response, [S].

    Its mean over the roll-outs is 1 when they agree, and at most 1.05 for a run to be trusted.

    >>> import torch
    >>> trainer, sampler = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -2.0 + 0.6931, -3.0])
    >>> logprob_alignment(trainer, sampler, torch.tensor([2, 1]))
    tensor([1.5000, 1.0000])
    """
    return response_sums((trainer_N - sampler_N).abs().exp(), lengths_S) / lengths_S.clamp(min=1)
