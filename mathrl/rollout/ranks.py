"""The process group of a stage's ranks, and the values that they exchange while they sample."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mathrl.core.environment import rank, world_size

PATIENCE = timedelta(hours=2)  # for the slowest rank; torchrun's agent ends all of them when one dies
NOTICE_SECONDS = 2.0
_object_groups: list[Any] = []  # one at most
_neighbours: dict[int, Any] = {}  # this rank's group, by the number of its ranks


def join_ranks(on_gpu: bool, timeout: timedelta = PATIENCE) -> None:
    """Join the ranks' process group: nccl on GPUs, gloo on CPUs; a no-op if this process has joined one."""
    if not dist.is_initialized():
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timeout)


def leave_ranks() -> None:
    """Leave the ranks' process group, if this process has joined one."""
    _object_groups.clear()
    _neighbours.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def object_group(timeout: timedelta = PATIENCE) -> Any:
    """The ranks' gloo group, for objects and for waiting; made at the first call, with that call's time-out.

    NCCL would copy objects through GPU memory, and aborts without an error.
    """
    if not _object_groups:
        join_ranks(torch.cuda.is_available(), timeout)
        on_gpu = dist.get_backend() != "gloo"
        _object_groups.append(dist.new_group(backend="gloo", timeout=timeout) if on_gpu else dist.group.WORLD)
    return _object_groups[0]


def neighbours(count: int, timeout: timedelta = PATIENCE) -> Any:
    """This rank's group of `count` consecutive ranks; made at the first call, by all ranks together."""
    if count not in _neighbours:
        _neighbours[count] = dist.new_subgroups(count, timeout=timeout)[0]  # type: ignore[no-untyped-call]
    return _neighbours[count]


def gather(value: Any) -> list[Any] | None:
    """The picklable `value` of every rank, in the order of ranks, at rank 0; None at the other ranks."""
    if world_size() == 1:
        return [value]
    values = [None] * world_size() if rank() == 0 else None
    with while_exchanging():
        dist.gather_object(value, values, group=object_group())
    return values


def from_rank_0(make: Callable[[], Any]) -> Any:
    """The picklable result of `make`, called at rank 0 alone, at every rank."""
    values = [make() if rank() == 0 else None]
    if world_size() > 1:
        with while_exchanging():
            dist.broadcast_object_list(values, group=object_group())
    return values[0]


@contextmanager
def while_exchanging() -> Iterator[None]:
    """An exchange that fails because a rank died fails a moment later: the agent notices the dead rank first, and
    names that one."""
    try:
        yield
    except RuntimeError:
        time.sleep(NOTICE_SECONDS)
        raise
