"""The data-parallel ranks of a stage: gloo on CPUs, nccl on GPUs; nothing at all with one process."""

import re
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from mathrl.core.environment import rank, world_size
from mathrl.core.errors import UserError
from mathrl.models.context_parallel import ContextGroup
from mathrl.params.training import Training
from mathrl.rollout.ranks import join_ranks, leave_ranks, neighbours, object_group, while_exchanging

Item = TypeVar("Item")


class Ranks:
    """What a trainer needs of the other ranks. All ranks call the same methods in the same order.

    `training` selects the learners' backend and what happens on faults; `halvings` counts how often the
    micro-batches were halved because memory ran out. `context` are the neighbours that share the tokens of each
    micro-batch with this rank, if there are any.

    Raises:
        UserError: two ranks have one GPU, or `training.fsdp.context_parallel` does not divide the ranks.
    """

    def __init__(self, device: torch.device, training: Training | None = None) -> None:
        self.device, self.rank, self.world = device, rank(), world_size()
        self.training, self.halvings = training or Training(), 0
        self.training.check_ranks(self.world)
        if self.world > 1:
            if device.type == "cpu":
                torch.set_num_threads(1)  # one process per core
            else:
                torch.cuda.set_device(device)
        self.timeout = timedelta(minutes=self.training.collective_timeout_minutes)
        if self.world > 1:
            join_ranks(device.type == "cuda", self.timeout)
        elif self.divides and not dist.is_initialized():  # it exchanges with itself where it is the only rank
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1)
        self.objects = object_group(self.timeout) if self.world > 1 else None
        if self.world > 1 and device.type == "cuda":
            uuid = torch.cuda.get_device_properties(device).uuid  # type: ignore[attr-defined]
            check_gpus(self.gather((socket.gethostname(), str(uuid))))
        size = self.training.context_ranks
        self.context = ContextGroup(neighbours(size, self.timeout), self.rank % size, size) if size > 1 else None

    @property
    def shares(self) -> int:
        """The number of shares that a batch is divided into: one per rank, or per group that shares micro-batches."""
        return self.world // self.training.context_ranks

    @property
    def share(self) -> int:
        """The number of this rank's share, counted from 0."""
        return self.rank // self.training.context_ranks

    def gather_shares(self, value: Any) -> list[Any]:
        """`gather`, with one value per share: ranks of a group have computed the same."""
        return self.gather(value)[:: self.training.context_ranks]

    @property
    def divides(self) -> bool:
        """Whether DeepSpeed or FSDP divides what is trained; models are then loaded without mathrl's own layers."""
        return self.training.backend != "torch"

    def sum_(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over the ranks, in place."""
        if self.world > 1:
            self._together(lambda: dist.all_reduce(tensor))

    def gather(self, value: Any) -> list[Any]:
        """The picklable `value` of every rank, in order of rank, at every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        self._together(lambda: dist.all_gather_object(values, value, group=self.objects))
        return values

    def even_out(self, micros: Sequence[Item], spare: Item) -> Iterator[tuple[Item, float]]:
        """This rank's micro-batches with factor 1.0, then `spare` with 0.0 until each rank has as many.

        For passes in which ranks exchange weights or gradients: all of them make the same number of passes,
        one at least. The factor scales the loss.
        """
        most = max(1, *self.gather(len(micros)))
        yield from ((micro, 1.0) for micro in micros)
        yield from ((spare, 0.0) for _ in range(most - len(micros)))

    def _together(self, exchange: Any) -> None:
        """Call `exchange` when every rank has come; `training.collective_timeout_minutes` limits the wait.

        Raises:
            UserError: a rank died, or did not come in time.
        """
        start = time.monotonic()
        try:
            with while_exchanging():
                dist.monitored_barrier(self.objects, self.timeout, wait_all_ranks=True)
                exchange()
        except RuntimeError as error:
            # Who came and lost the others says the second: by then rank 0 may have closed its connections.
            lost = ("failed to pass monitoredBarrier", "successfully reached monitoredBarrier", "Timed out waiting")
            if not any(words in str(error) for words in lost):
                raise
            late = re.search(r"Ranks? ([\d, ]+) failed", str(error))  # rank 0 knows them
            who = f"rank {late[1]}" if late else "rank 0, or another rank that it names,"
            raise UserError(
                f"rank {self.rank} waited {time.monotonic() - start:.0f} s in {_caller()}, but {who} did not come: "
                "see the output of each rank; if it was only slow, raise training.collective_timeout_minutes"
            ) from None

    def set_timeouts(self) -> None:
        """Give the process groups that a library has made `training.collective_timeout_minutes` too."""
        for group in list(distributed_c10d._world.pg_map):
            distributed_c10d._set_pg_timeout(self.timeout, group)

    def close(self) -> None:
        leave_ranks()


def check_gpus(places: Sequence[tuple[str, str]]) -> None:
    """Raises UserError: two ranks have the same GPU. `places` are host and GPU (its UUID), in order of rank."""
    for number, place in enumerate(places):
        if (first := places.index(place)) != number:
            host, gpu = place
            gpus = len({other for other in places if other[0] == host})
            raise UserError(
                f"ranks {first} and {number} have the same GPU of {host} ({gpu}): {host} has {gpus} for its "
                f"{sum(other[0] == host for other in places)} ranks; start one rank per GPU (run.processes, or the "
                "launcher's number of processes per node)"
            )


def _caller() -> str:
    """Where the exchange was asked for, outside this file: "`_judge` (collect.py, line 119)"."""
    frame = next(frame for frame in reversed(traceback.extract_stack()) if frame.filename != __file__)
    return f"`{frame.name}` ({Path(frame.filename).name}, line {frame.lineno})"
