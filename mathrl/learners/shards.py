"""A checkpoint in shards: flat parts of tensors, a file per rank, read again by any number of ranks.

A part is stored under "NAME@BEGIN", where BEGIN is its first element in the flat whole tensor.

Example: two ranks that hold the halves of a weight w [4, 8] write "w@0" and "w@16" of 16 elements each; of three
ranks that read them, the second fills its 11 elements from 11 on from both.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.files import written_aside
from mathrl.learners.checkpoint import Checkpoint, write_tensors

Part = tuple[str, int, Tensor]  # name, first element, flat values


def write_shards(folder: Path, parts: Iterable[Part]) -> None:
    """Write the parts that each rank holds; called at every rank."""
    dist.barrier()  # a slower rank may still read what was written before
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)  # left by a kill
    dist.barrier()
    write_shard(folder, dist.get_rank(), parts)
    dist.barrier()


def open_shards(saved: Checkpoint, name: str) -> "Shards":
    """The shards of the learner `name`.

    Raises:
        UserError: the checkpoint is one of the torch backend.
    """
    if saved.parts is None or not (saved.parts / name).is_dir():
        raise UserError(
            f"the checkpoint after step {saved.step} is not one of this training.backend, which divides the weights: "
            "remove its folder"
        )
    return Shards(saved.parts / name)


def fill_parts(shards: "Shards", parts: Iterable[Part], saved: Checkpoint, name: str) -> None:
    """Overwrite the values of the parts with those of the shards.

    Raises:
        UserError: some of them are missing.
    """
    try:
        for part, begin, values in parts:
            shards.fill(part, begin, values)
    except ValueError as error:
        raise UserError(
            f"the checkpoint after step {saved.step} is incomplete ({name}: {error}): remove its folder, and "
            "have all machines share one state folder"
        ) from None


def write_shard(folder: Path, rank: int, parts: Iterable[Part]) -> None:
    """Write the parts that this rank holds."""
    tensors = {f"{name}@{begin}": values for name, begin, values in parts if len(values)}
    with written_aside(folder / f"rank-{rank:05d}.safetensors") as aside:
        write_tensors(tensors, aside)


class Shards:
    """What all ranks wrote into a folder; only the parts that are asked for are read."""

    def __init__(self, folder: Path) -> None:
        self._parts: dict[str, dict[int, tuple[str, Any]]] = defaultdict(dict)
        for file in sorted(folder.glob("rank-*.safetensors")):
            shard = safe_open(file, framework="pt")
            for key in shard.keys():  # type: ignore[no-untyped-call]  # noqa: SIM118 (not a dict)
                name, begin = key.rsplit("@", 1)
                self._parts[name][int(begin)] = key, shard  # once, also where several ranks hold it whole

    def names(self, prefix: str) -> list[str]:
        """The names that begin with `prefix`, without it."""
        return [name.removeprefix(prefix) for name in self._parts if name.startswith(prefix)]

    def fill(self, name: str, begin: int, out: Tensor) -> None:
        """Overwrite `out` with the elements of a tensor from `begin` on.

        Raises:
            ValueError: not all of them were written.
        """
        end, missing = begin + len(out), len(out)
        for start, (key, shard) in self._parts[name].items():
            values = shard.get_slice(key)
            first, last = max(begin, start), min(end, start + values.get_shape()[0])
            if first < last:
                out[first - begin : last - begin].copy_(values[first - start : last - start])
                missing -= last - first
        if missing:
            raise ValueError(f"{name}: {missing} of the elements {begin} to {end} are missing")
