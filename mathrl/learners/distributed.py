"""The data-parallel ranks of a stage: gloo on CPUs, nccl on GPUs; nothing at all with one process."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mathrl.core.launch import check_ranks, rank, rendezvous, world_size
from mathrl.params.training import Training

Item = TypeVar("Item")


class Ranks:
    """What a trainer needs of the other ranks. All ranks call the same methods in the same order.

    `training` selects the learners' backend and what happens on faults; `halvings` counts how often the
    micro-batches were halved because memory ran out.
    """

    def __init__(self, device: torch.device, training: Training | None = None) -> None:
        self.device, self.rank, self.world = device, rank(), world_size()
        self.training, self.halvings = training or Training(), 0
        if self.world > 1:
            if device.type == "cpu":
                torch.set_num_threads(1)  # one process per core
            else:
                torch.cuda.set_device(device)
        kind = "nccl" if device.type == "cuda" else "gloo"
        if dist.is_initialized():
            return
        if self.world > 1:
            folder = rendezvous()
            where = f"file://{folder}/torch" if folder else "env://"
            dist.init_process_group(kind, init_method=where, rank=self.rank, world_size=self.world)
        elif self.uses_deepspeed:  # it exchanges with itself where it is the only rank
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(kind, store=store, rank=0, world_size=1)

    @property
    def uses_deepspeed(self) -> bool:
        """Whether DeepSpeed divides the weights; models are then loaded unchanged, without mathrl's own layers."""
        return self.training.backend == "deepspeed"

    def sum_(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over the ranks, in place."""
        if self.world > 1:
            self._guarded(lambda: dist.all_reduce(tensor))

    def gather(self, value: Any) -> list[Any]:
        """The picklable `value` of every rank, in order of rank, at every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        self._guarded(lambda: dist.all_gather_object(values, value))
        return values

    def evened(self, micros: Sequence[Item], spare: Item) -> Iterator[tuple[Item, float]]:
        """This rank's micro-batches with factor 1.0, then `spare` with 0.0 until each rank has as many.

        For passes in which ranks exchange weights or gradients: all of them make the same number of passes,
        one at least. The factor scales the loss.
        """
        most = max(1, *self.gather(len(micros)))
        yield from ((micro, 1.0) for micro in micros)
        yield from ((spare, 0.0) for _ in range(most - len(micros)))

    def _guarded(self, exchange: Any) -> None:
        try:
            exchange()
        except RuntimeError:
            check_ranks(patience=5.0)  # names the dead rank, if that is the cause
            raise

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
