"""Models that ZeRO 3 or FSDP shards among the ranks: copied and read without any rank ever holding one whole.

Of DeepSpeed's marks on a sharded weight (deepspeed/runtime/zero/partition_parameters.py) two are used: `ds_tensor`,
this rank's flat shard, and `ds_numel`, the number of elements of the whole weight. FSDP's is a DTensor: each rank has
as many rows, rounded up, and the last ones fewer or none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mathrl.models.fsdp import is_divided, made_divided
from mathrl.models.kernels import compute_dtype
from mathrl.models.shapes import BUCKET
from mathrl.models.transformers_import import set_hf_deepspeed_config, unset_hf_deepspeed_config

Part = tuple[str, list[Tensor], Callable[[], Tensor]]  # see `mathrl.models.lora.weight_parts`


class _Settings:
    """The part of transformers' HfDeepSpeedConfig that loading asks for; the class itself imports accelerate."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = dict(config)

    def is_zero3(self) -> bool:
        return True


@contextmanager
def sharded_loads(config: Mapping[str, Any]) -> Iterator[None]:
    """Context in which transformers shards a model while it makes or loads it, by DeepSpeed's `config`.

    Each weight is made and filled alone: rank 0 reads it from the memory-mapped files and sends it to the others.
    Every rank loads the same models in the same order.
    """
    settings = _Settings(config)  # transformers keeps a weak reference
    set_hf_deepspeed_config(settings)
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del settings


def is_sharded(network: Any) -> bool:
    return is_divided(network) or any(hasattr(weight, "ds_tensor") for weight in network.parameters())


def own_part(weight: Tensor) -> Tensor:
    """This rank's shard of a sharded weight (ZeRO's is flat, FSDP's has rows); another weight as it is."""
    part: Tensor = getattr(weight, "ds_tensor", weight).detach()
    return part.to_local() if isinstance(part, DTensor) else part


def own_range(weight: Tensor) -> tuple[int, int]:
    """Where `own_part` begins in the flat whole weight, and how many of its elements are not padding."""
    if isinstance(weight, DTensor):
        begin, _ = row_range(weight, dist.get_rank())
        return begin, own_part(weight).numel()
    if not hasattr(weight, "ds_tensor"):
        return 0, weight.numel()
    length = weight.ds_tensor.numel()
    begin = dist.get_rank() * length
    return begin, max(0, min(length, element_count(weight) - begin))


def row_range(weight: Tensor, rank: int) -> tuple[int, int]:
    """Where the rows that a rank has of an FSDP weight begin and end in the flat whole weight."""
    rows, row = len(weight), weight.numel() // max(1, len(weight))
    share = -(-rows // dist.get_world_size())
    return min(rows, rank * share) * row, min(rows, (rank + 1) * share) * row


def whole(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """All of an FSDP weight, gathered as `dtype`; another tensor as it is. Called at every rank."""
    if not isinstance(tensor, DTensor):
        return tensor
    rounded: Any = tensor.to(dtype)
    values: Tensor = rounded.full_tensor()
    return values


def element_count(weight: Tensor) -> int:
    """The number of elements of a whole weight, also where it is sharded."""
    return int(getattr(weight, "ds_numel", weight.numel()))


def with_whole_weights(weights: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Context in which every rank has these weights of ZeRO whole (see `whole` for FSDP's); all ranks enter it."""
    sharded = [weight for weight in weights if hasattr(weight, "ds_tensor")]
    if not sharded:
        return nullcontext()
    import deepspeed

    context: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(sharded)
    return context


def gathered_weights(parts: Sequence[Part]) -> Iterator[tuple[str, Tensor]]:
    """Weights by their names, about BUCKET elements of them gathered at a time; valid until the next one is taken."""
    bucket: list[Part] = []
    size = 0
    for part in parts:
        elements = sum(element_count(weight) for weight in part[1])
        if bucket and size + elements > BUCKET:
            yield from _of_bucket(bucket)
            bucket, size = [], 0
        bucket.append(part)
        size += elements
    yield from _of_bucket(bucket)


def _of_bucket(bucket: Sequence[Part]) -> Iterator[tuple[str, Tensor]]:
    with with_whole_weights(weight for _, weights, _ in bucket for weight in weights):
        for name, _, make in bucket:
            yield name, make()


@torch.no_grad()
def copy_shards(source: Any, target: Any) -> None:
    """Copy the weights of a sharded network to another of the same shapes, without those of adapters."""
    weights = {name.replace(".base_layer.", "."): weight for name, weight in source.named_parameters()}
    for name, weight in target.named_parameters():
        own_part(weight).copy_(own_part(weights[name]))


def sharded_copy(network: Any) -> Any:
    """A second model with the weights of a sharded one, without its adapters; within `sharded_loads` for ZeRO."""

    def make() -> Any:
        return type(network)._from_config(network.config, dtype=compute_dtype(network))

    if is_divided(network):
        made = made_divided(make, network)
    else:
        with torch.random.fork_rng(devices=[]):
            made = make().eval()
        made = made.to(network.device)
    copy_shards(network, made)
    return made
