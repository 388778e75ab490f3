"""Data-parallel processes: gloo on CPUs, nccl on GPUs; nothing at all with one process."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.launch import check_ranks, rank, rendezvous, world_size
from mathrl.params.training import Training

Item = TypeVar("Item")


def choose_device(name: str) -> torch.device:
    """The device of this process: `auto` takes a GPU where there is one.

    Raises:
        UserError: cuda is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("run.device is cuda, but torch finds no GPU; set run.device to cpu or auto")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


class Backend:
    """What a trainer needs of the other processes. All of them call the same methods in the same order.

    `training` says which backend learners have, and what they do on faults; `halvings` is how often the
    micro-batches were halved since memory ran out.
    """

    def __init__(self, device: torch.device, training: Training | None = None) -> None:
        self.device, self.rank, self.world = device, rank(), world_size()
        self.training, self.halvings = training or Training(), 0
        if self.world > 1:
            if device.type == "cpu":
                torch.set_num_threads(1)  # a process a core
            else:
                torch.cuda.set_device(device)
        # DeepSpeed exchanges with itself where it is alone.
        if (self.world > 1 or self.training.backend == "deepspeed") and not dist.is_initialized():
            kind = "nccl" if device.type == "cuda" else "gloo"
            folder = rendezvous()
            where = f"file://{folder}/torch" if folder else "env://"
            if self.world == 1:
                where = f"file://{tempfile.mkdtemp(prefix='mathrl-alone-')}/torch"
            dist.init_process_group(kind, init_method=where, rank=self.rank, world_size=self.world)

    @property
    def plain(self) -> bool:
        """Whether models are loaded as they are, for DeepSpeed to divide."""
        return self.training.backend == "deepspeed"

    def sum_(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over the processes, in place."""
        if self.world > 1:
            self._guarded(lambda: dist.all_reduce(tensor))

    def gather(self, value: Any) -> list[Any]:
        """The picklable `value` of every process, in order of rank, at every process."""
        if self.world == 1:
            return [value]
        out: list[Any] = [None] * self.world
        self._guarded(lambda: dist.all_gather_object(out, value))
        return out

    def evened(self, micros: Sequence[Item], spare: Item) -> Iterator[tuple[Item, float]]:
        """This process's micro-batches with 1.0, then `spare` with 0.0 until each process has as many.

        For passes in which processes exchange weights or gradients: all of them make the same number, one
        at least. The factor says what a pass counts.
        """
        most = max(1, *self.gather(len(micros)))
        yield from ((micro, 1.0) for micro in micros)
        yield from ((spare, 0.0) for _ in range(most - len(micros)))

    def _guarded(self, call: Any) -> None:
        try:
            call()
        except RuntimeError:
            check_ranks(patience=5.0)  # name the dead rank, if that is why
            raise

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
