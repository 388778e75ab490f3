"""Micro-batches: which rank computes what, how many tokens at a time, and half as many after out-of-memory."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from heapq import heapreplace
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from mathrl.core.errors import OutOfMemory, memory_part
from mathrl.learners.distributed import Ranks

Item = TypeVar("Item")
Inputs = ParamSpec("Inputs")
Figures = Mapping[str, Tensor]  # what a loss reports of a micro-batch: sums, or the largest where the name ends in _max
LossOf = Callable[Inputs, tuple[Tensor, Figures]]  # the loss of a micro-batch, a share of the global batch's
LEAST_TOKENS = 16  # no smaller micro-batch is tried


@dataclass(frozen=True)
class TokenBudget:
    """How many packed tokens a micro-batch holds at most, on which ranks.

    `section` is the parameters' section whose tokens_per_microbatch it is.

    Example:
        TokenBudget(ranks, 4096, "rl")
    """

    ranks: Ranks
    tokens: int
    section: str

    @property
    def advice(self) -> str:
        """What to do if memory does not hold a micro-batch."""
        return (
            f"lower {self.section}.tokens_per_microbatch (now {self.tokens}), set "
            f"{self.section}.gradient_checkpointing where there is one, or set training.on_out_of_memory to halve"
        )


def attempts(budget: TokenBudget) -> Iterator[AbstractContextManager[TokenBudget]]:
    """Contexts to compute in until memory holds it at every rank, each with half the tokens of the one before.

    Only where `training.on_out_of_memory` is halve; else there is one. All ranks repeat together: within the context
    nothing is reduced over the ranks and no weight moves, and the loop is left by its end alone. The gradient is that
    of the global batch, so it is the same but for the order of sums.

    Raises:
        OutOfMemory: memory ran out, and on_out_of_memory is stop or the micro-batches are as small as they get.

    Example:
        for attempt in attempts(TokenBudget(ranks, 4096, "rl")):
            with attempt as budget:
                figures = compute(budget.tokens)
    """
    ranks, halves = budget.ranks, budget.ranks.training.on_out_of_memory == "halve"
    while True:
        now = replace(budget, tokens=max(1, budget.tokens >> ranks.halvings))
        failures: list[str] = []
        yield _attempt(now, failures if halves else None)
        if not halves or not any(ranks.gather(bool(failures))):
            return
        if now.tokens // 2 < LEAST_TOKENS:
            raise OutOfMemory(*failures or [f"{budget.section}: another rank is out of memory; see its output"])
        ranks.halvings += 1
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if ranks.rank == 0:
            print(
                f"{budget.section}: out of memory, continuing with micro-batches of {now.tokens // 2} tokens; "
                f"to start with them, set {budget.section}.tokens_per_microbatch",
                file=sys.stderr,
                flush=True,
            )


@contextmanager
def _attempt(budget: TokenBudget, failures: list[str] | None) -> Iterator[TokenBudget]:
    """`failures` receives the message, without the error's frames, which hold what is to be freed; None: raised."""
    try:
        with memory_part("activations of a micro-batch", budget.advice):
            yield budget
    except OutOfMemory as error:
        if failures is None:
            raise
        failures.append(str(error))


def add_gradient(backward: Callable[[Tensor], None], computed: tuple[Tensor, Figures], counts: float) -> list[Figures]:
    """Add the gradient of a micro-batch's loss, and give its figures; none of a micro-batch that does not count.

    The caller keeps no loss, so that its graph is freed where memory runs out.
    """
    loss, figures = computed
    backward(loss * counts)
    return [figures] if counts else []


def reduce_figures(micro_batches: Sequence[Figures], ranks: Ranks) -> dict[str, Tensor]:
    """The figures of this rank's micro-batches combined with those of the other ranks, on the CPU.

    Each is summed in its own dtype; of a name that ends in _max the largest is taken, or 0. Empty if no rank had a
    micro-batch.

    >>> ranks = Ranks(torch.device("cpu"))
    >>> reduce_figures([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0)}], ranks)
    {'loss': tensor(3.)}
    """
    here = {name: value.cpu() for name, value in _combine(micro_batches).items()}
    return _combine(ranks.gather_shares(here))


def _combine(parts: Sequence[Figures]) -> dict[str, Tensor]:
    combined: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        combine = torch.maximum if name.endswith("_max") else torch.add
        combined[name] = reduce(combine, values)
    return combined


def own_micro_batches(
    sizes: Sequence[int], tokens: int, ranks: Ranks, chosen: Sequence[int] | None = None
) -> list[list[int]]:
    """The items of this rank, as numbers into `sizes`, in micro-batches of at most `tokens` packed tokens.

    Shares have about equal size; `chosen` items only, where they are given.
    """
    chosen = range(len(sizes)) if chosen is None else chosen
    share = balance([sizes[item] for item in chosen], ranks.shares)[ranks.share]
    items = [chosen[place] for place in share]
    return fill(items, [sizes[item] for item in items], tokens)


def smallest(sizes: Sequence[int]) -> list[int]:
    """The micro-batch of a rank that has none left: the smallest item, as its number into `sizes`."""
    return [min(range(len(sizes)), key=lambda item: sizes[item])]


def balance(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Item numbers in `parts` lists of nearly equal total size: the largest first, each to the lightest.

    >>> balance([5, 1, 4, 2], 2)
    [[0, 1], [2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    totals = [(0, part) for part in range(parts)]  # a heap
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        total, lightest = totals[0]
        shares[lightest].append(index)
        heapreplace(totals, (total + sizes[index], lightest))
    return shares


def fill(items: Sequence[Item], sizes: Sequence[int], budget: int) -> list[list[Item]]:
    """Consecutive items in lists of at most `budget` in size; a larger item stands alone.

    >>> fill("abcd", [3, 3, 9, 1], 6)
    [['a', 'b'], ['c'], ['d']]
    """
    lists: list[list[Item]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if not lists or size > room:
            lists.append([])
            room = budget
        lists[-1].append(item)
        room -= size
    return lists
