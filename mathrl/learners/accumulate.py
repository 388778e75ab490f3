"""The gradient of a global batch, a micro-batch of so many tokens at a time."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from mathrl.core.out_of_memory import OutOfMemory, memory_part
from mathrl.learners.distributed import Backend
from mathrl.learners.learner import Learner
from mathrl.learners.partition import filled

Item = TypeVar("Item")
Told = TypeVar("Told")
LEAST_TOKENS = 16  # of a micro-batch that is halved once more


class Halved(Exception):
    """Memory ran out at some process; all of them begin the update again with smaller micro-batches."""


def accumulate(
    learner: Learner,
    backend: Backend,
    items: Sequence[Item],
    sizes: Sequence[int],
    tokens: int,
    spare: Item,
    loss_of: Callable[[list[Item]], tuple[Tensor, Told]],
    name: str,
) -> list[Told]:
    """Fill the learner's gradient with the sum of the losses over this process's items, and of the others'.

    A micro-batch is consecutive items of at most `tokens` by `sizes`. `loss_of` gives its loss and figures,
    which are returned, a micro-batch each. `spare` is any item, for a process that has fewer of them.

    Raises:
        OutOfMemory: it ran out, and `training.on_out_of_memory` is stop or nothing is left to halve.
        Halved: it ran out, and `halving` is to begin anew.
    """
    found: list[Told] = []
    with halvable(backend, "activations of a micro-batch", tokens, name):
        for micro, counts in learner.rounds(filled(items, sizes, tokens), [spare]):

            def compute(micro: list[Item] = micro, counts: float = counts) -> Tensor:
                loss, told = loss_of(micro)
                if counts:
                    found.append(told)
                    return loss
                return loss * 0.0

            learner.descend(compute)
    learner.reduce()
    return found


@contextmanager
def halvable(backend: Backend, part: str, tokens: int, name: str) -> Iterator[None]:
    """Within it every process computes its micro-batches of `tokens`, which memory may not hold.

    Raises:
        OutOfMemory: it ran out, and `training.on_out_of_memory` is stop or nothing is left to halve.
        Halved: it ran out at some process, and `halving` is to begin anew.
    """
    failed: OutOfMemory | None = None
    advice = (
        f"lower {name}.tokens_per_microbatch (now {tokens}), set {name}.gradient_checkpointing where there "
        "is one, or set training.on_out_of_memory to halve"
    )
    try:
        with memory_part(part, advice):
            yield
    except OutOfMemory as error:
        if backend.training.on_out_of_memory == "stop":
            raise
        failed = OutOfMemory(str(error))  # without the frames, which hold what is to be freed
    if backend.training.on_out_of_memory == "halve" and any(backend.gather(failed is not None)):
        if tokens // 2 < LEAST_TOKENS:
            raise failed or OutOfMemory(f"{name}: another process is out of memory; see its output")
        backend.halvings += 1
        raise Halved


def halving(backend: Backend, tokens: int, attempt: Callable[[int], Told], name: str) -> Told:
    """What `attempt` gives with micro-batches of `tokens`, or of half as many, and so on, as memory demands.

    The gradient is that of the global batch, so it is the same but for the order of sums.
    """
    while True:
        budget = max(1, tokens >> backend.halvings)
        try:
            return attempt(budget)
        except Halved:
            pass
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if backend.rank == 0:
            print(
                f"{name}: out of memory, going on with micro-batches of {max(1, tokens >> backend.halvings)} "
                f"tokens; to begin so, set {name}.tokens_per_microbatch",
                file=sys.stderr,
                flush=True,
            )
