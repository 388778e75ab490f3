"""One loss from token losses, by a weight per token, so that no split into micro-batches can change it.

Shapes: S responses of the global batch; N their tokens.
"""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum"]


def token_weights(lengths_S: Tensor, kind: Aggregation, max_tokens: int) -> Tensor:
    """A weight for each response's tokens, [S]; the loss is the sum over all tokens of weight times loss.

    - token_mean: 1 / (tokens of the global batch), DAPO (arXiv:2503.14476, equation 8).
    - sequence_mean: 1 / (S length), GRPO (arXiv:2402.03300, equation 3).
    - sequence_sum: 1 / (S max_tokens), Dr.GRPO (arXiv:2503.20783): a constant, never the batch's longest.

    `lengths_S` covers the global batch over all processes and micro-batches; a length of 0 marks a response
    without loss, which no denominator counts.

    >>> token_weights(torch.tensor([2, 6]), "token_mean", 8)
    tensor([0.1250, 0.1250])
    >>> token_weights(torch.tensor([2, 5]), "sequence_mean", 8)
    tensor([0.2500, 0.1000])
    >>> token_weights(torch.tensor([2, 6]), "sequence_sum", 8)
    tensor([0.0625, 0.0625])
    """
    counted_S = (lengths_S > 0).float()
    responses = counted_S.sum().clamp(min=1)
    if kind == "token_mean":
        return counted_S / lengths_S.sum().clamp(min=1)
    if kind == "sequence_mean":
        return counted_S / (lengths_S.clamp(min=1) * responses)
    return counted_S / (max_tokens * responses)


def spread(values_S: Tensor, lengths_S: Tensor, tokens: int | None = None) -> Tensor:
    """Repeat each response's value for its tokens: [S] → [N]; `tokens` is N where it is known without a sum.

    >>> spread(torch.tensor([0.5, -1.0]), torch.tensor([2, 1]))
    tensor([ 0.5000,  0.5000, -1.0000])
    """
    return torch.repeat_interleave(values_S, lengths_S, output_size=tokens)
