"""Passes without a gradient over data that the ranks divide among themselves.

Shapes: N response tokens (groups, responses, tokens in order).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mathrl.core.errors import memory_part
from mathrl.learners.micro_batches import TokenBudget, attempts, fill, own_micro_batches, smallest
from mathrl.models.kernels import attention_kernel
from mathrl.models.packing import Group
from mathrl.models.prepared import Kernel

Item = TypeVar("Item")
Result = TypeVar("Result")
Floats = npt.NDArray[np.float32]


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Context in which the model is in eval mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def own_passes(
    budget: TokenBudget, part: str, forward: Callable[[list[Item]], Result], items: Sequence[Item], sizes: Sequence[int]
) -> list[Result]:
    """What `forward` gives of each micro-batch of this rank's share: every n-th item, of n shares.

    All ranks make the same number of passes, as divided weights need. `part` says what memory holds then.
    """
    if not items:
        return []
    ranks = budget.ranks
    share = slice(ranks.share, None, ranks.shares)
    for attempt in attempts(budget):
        with attempt as now, memory_part(part, now.advice):
            micros = ranks.even_out(fill(items[share], sizes[share], now.tokens), [items[0]])
            results = [(forward(micro), counts) for micro, counts in micros]
    return [result for result, counts in results if counts]


def score_items(
    budget: TokenBudget,
    part: str,
    forward: Callable[[list[Item]], Sequence[Result]],
    items: Sequence[Item],
    sizes: Sequence[int],
) -> list[Result]:
    """The result of each item, which `forward` gives in a list for those of a micro-batch; all at every rank."""
    shares = budget.ranks.gather_shares(
        [value for values in own_passes(budget, part, forward, items, sizes) for value in values]
    )
    return [shares[number % len(shares)][number // len(shares)] for number in range(len(items))]


def score_tokens(
    budget: TokenBudget, part: str, forward: Callable[[list[Group]], Tensor], network: Any, groups: Sequence[Group]
) -> Tensor:
    """`forward` of all groups, float32 [N, …] on the CPU: each rank computes its share, every rank has all.

    The network is in eval mode meanwhile. `part` says what memory holds then.
    """
    with eval_mode(network):
        share = _own_token_scores(budget, part, forward, groups, attention_kernel(network))
    scores = {number: values for share in budget.ranks.gather_shares(share) for number, values in share.items()}
    return torch.from_numpy(np.concatenate([scores[number] for number in sorted(scores)]))


@torch.no_grad()
def _own_token_scores(
    budget: TokenBudget, part: str, forward: Callable[[list[Group]], Tensor], groups: Sequence[Group], kernel: Kernel
) -> dict[int, Floats]:
    """This rank's share, by the number of the piece that a group was cut into."""
    scores: dict[int, Floats] = {}
    for attempt in attempts(budget):
        with attempt as now, memory_part(part, now.advice):
            pieces = [piece for group in groups for piece in group.cut(now.tokens, kernel)]
            sizes = [piece.tokens_by(kernel) for piece in pieces]
            micros = own_micro_batches(sizes, now.tokens, budget.ranks)
            scores = {}
            for micro, counts in budget.ranks.even_out(micros, smallest(sizes)):
                values_N = forward([pieces[i] for i in micro]).float().cpu()
                if counts:
                    ends = accumulate(sum(pieces[i].counts) for i in micro[:-1])
                    scores |= dict(zip(micro, np.split(values_N.numpy(), list(ends)), strict=True))
    return scores
