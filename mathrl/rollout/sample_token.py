"""The next token of each sequence, sampled from its row of logits.

Shapes: B sequences, V tokens in the vocabulary.
"""

import torch
from torch import Tensor


def sample_token(logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_p: float) -> tuple[Tensor, Tensor]:
    """Sample a token per row by inverting the distribution function at `uniform_B`; its log-prob too.

    A token depends on its own logits and its own random number alone, whatever else is in the batch.
    The log-probs are of softmax(logits / temperature), renormalised over the nucleus when top_p < 1. With
    temperature 0 the likeliest token is taken; its log-prob is that of softmax(logits).

    Returns:
        tokens_B (int64) and logprobs_B (float32).
    """
    logits_BV = logits_BV.float()
    if temperature == 0:
        tokens_B = logits_BV.argmax(-1)
        return tokens_B, logits_BV.log_softmax(-1).gather(1, tokens_B[:, None])[:, 0]
    probabilities_BV = torch.softmax(logits_BV / temperature, dim=-1)
    if top_p < 1:
        probabilities_BV = nucleus(probabilities_BV, top_p)
    below_BV = probabilities_BV.cumsum(-1)
    # Just under the total, so that rounding never reaches a token of probability zero behind the last one.
    target_B1 = (uniform_B * (1 - 1e-6))[:, None] * below_BV[:, -1:]
    tokens_B1 = torch.searchsorted(below_BV, target_B1, right=True).clamp_(max=logits_BV.shape[-1] - 1)
    return tokens_B1[:, 0], probabilities_BV.gather(1, tokens_B1)[:, 0].log()


def nucleus(probabilities_BV: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probabilities sum to at least top_p; renormalise."""
    ordered_BV, order_BV = probabilities_BV.sort(dim=-1, descending=True)
    before_BV = ordered_BV.cumsum(-1) - ordered_BV
    ordered_BV = ordered_BV.masked_fill(before_BV >= top_p, 0.0)
    kept_BV = torch.zeros_like(probabilities_BV).scatter_(-1, order_BV, ordered_BV)
    return kept_BV / kept_BV.sum(-1, keepdim=True)
