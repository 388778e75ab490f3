"""The distance of the sampler's log-probs from the trainer's.

Shapes: S responses of the given lengths, N their tokens in order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mathrl.algorithms.returns import response_sums

GAPS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # nats


def logprob_alignment(trainer_N: Tensor, sampler_N: Tensor, lengths_S: Tensor) -> Tensor:
    """(1/L) sum exp |trainer - sampler| of each response, [S].

    Its mean over the rollouts is 1 when they agree; a run with a mean above 1.05 is not trusted.

    >>> import torch
    >>> trainer, sampler = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -2.0 + 0.6931, -3.0])
    >>> logprob_alignment(trainer, sampler, torch.tensor([2, 1]))
    tensor([1.5000, 1.0000])
    """
    return response_sums((trainer_N - sampler_N).abs().exp(), lengths_S) / lengths_S.clamp(min=1)


def gap_counts(trainer_N: Tensor, sampler_N: Tensor) -> Tensor:
    """The number of tokens whose log-probs differ by more than each of `GAPS`, [len(GAPS)]: a cumulative histogram.

    >>> gap_counts(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -2.002, -3.5]))
    tensor([2., 2., 1., 1., 0.])
    """
    gap_N = (trainer_N - sampler_N).abs()
    return torch.stack([(gap_N > edge).float().sum() for edge in GAPS])  # no copy of the edges to a GPU


def gap_shares(counts: Sequence[float], tokens: float) -> dict[str, float]:
    """The counts as metrics: the share of tokens above each gap."""
    return {f"rollout/gap_above/{gap:g}": count / max(1.0, tokens) for gap, count in zip(GAPS, counts, strict=True)}
