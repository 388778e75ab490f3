"""All weights of a model, one at a time, under their Hugging Face names, and the digest that tells if they arrived."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mathrl.core.hashing import digest
from mathrl.models.four_bit import coded_shape, is_coded
from mathrl.models.lora import merged_weights, weight_parts

WeightShape = tuple[str, torch.dtype, tuple[int, ...]]  # name, type and shape of a whole weight
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


def full_weights(network: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a causal LM, adapters merged, the head also where it is tied to the embedding.

    One at a time, so that no second copy of the model is made.
    """
    yield from with_head(merged_weights(network))


def with_head(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The weights, and the embedding again as the head if there is none: an engine with a separate head matrix would
    silently keep its old one."""
    embedding: Tensor | None = None
    has_head = False
    for name, weight in weights:
        has_head = has_head or name == HEAD
        if name.endswith(EMBEDDING):
            embedding = weight
        yield name, weight
    if not has_head and embedding is not None:
        yield HEAD, embedding


def weight_shapes(network: Any) -> list[WeightShape]:
    """The weights of `full_weights`, without gathering any: example ("lm_head.weight", torch.float32, (96, 64))."""
    shapes = ((name, *_whole_shape(parts[0])) for name, parts, _ in weight_parts(network))
    whole = ((name, torch.empty(shape, dtype=dtype, device="meta")) for name, dtype, shape in shapes)
    return [(name, weight.dtype, tuple(weight.shape)) for name, weight in with_head(whole)]


def _whole_shape(weight: Tensor) -> tuple[torch.dtype, torch.Size]:
    if is_coded(weight):
        return coded_shape(weight)
    return weight.dtype, getattr(weight, "ds_shape", weight.shape)


def copy_weights(network: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy the weights into the network's own: in place, which invalidates what is cached of them."""
    own_weights = network.state_dict()
    with torch.no_grad():
        for name, weight in weights:
            own_weights[name].copy_(weight)


def folder_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The weights of a folder's safetensors files, read one at a time."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # not a mapping
                yield name, tensors.get_tensor(name)


def folder_digest(folder: Path) -> str:
    """The digest of the weights in a folder's safetensors files."""
    total = WeightDigest()
    for name, weight in folder_weights(folder):
        total.add(name, weight)
    return total.hexdigest()


def adapter_digest(base: str, folder: Path | str) -> str:
    """The digest of weights with the digest `base` and the adapter in the folder (as `save_adapter` writes it)."""
    folder = Path(folder)
    return digest([base, folder_digest(folder), (folder / "adapter_config.json").read_text(encoding="utf-8")])


def write_buckets(weights: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype, megabytes: int) -> str:
    """Write the weights, in their order, as safetensors files of about this many megabytes; returns their digest."""
    folder.mkdir(parents=True)
    total = WeightDigest()
    bucket: dict[str, Tensor] = {}
    size = number = 0
    for name, weight in weights:
        stored_dtype = dtype if weight.is_floating_point() else weight.dtype
        bucket[name] = weight.detach().to("cpu", stored_dtype, copy=True).contiguous()  # a copy: tied weights share
        total.add(name, bucket[name])
        size += bucket[name].nbytes
        if size >= megabytes * 1_000_000:
            save_file(bucket, folder / f"{number:05d}.safetensors")
            bucket, size, number = {}, 0, number + 1
    if bucket:
        save_file(bucket, folder / f"{number:05d}.safetensors")
    return total.hexdigest()


BLOCK = 2**22  # elements widened to 64 bits at a time
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightDigest:
    """Collects tensors, in any order, and gives the digest of all.

    Example:
        total = WeightDigest(); total.add("lm_head.weight", weight); total.hexdigest()   # "9f86d081884c7d65"
    """

    def __init__(self) -> None:
        self.parts: dict[str, tuple[str, list[int], Tensor]] = {}

    def add(self, name: str, weight: Tensor) -> None:
        """Count a tensor in. What it computes on a GPU is not waited for."""
        self.parts[name] = (str(weight.dtype), list(weight.shape), bit_sum(weight))

    def hexdigest(self) -> str:
        """Digest of the names, types, shapes and bits of all tensors."""
        return digest(sorted([name, kind, shape, int(total)] for name, (kind, shape, total) in self.parts.items()))


def bit_sum(weight: Tensor) -> Tensor:
    """The sum over i of (2i + 1) times the i-th element's bits, modulo 2^64, on the weight's device.

    >>> int(bit_sum(torch.tensor([3, 5], dtype=torch.int64)))   # 1 * 3 + 3 * 5
    18
    """
    bits = weight.detach().contiguous().view(-1).view(INTEGERS[weight.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=weight.device)
    for start in range(0, len(bits), BLOCK):
        block = bits[start : start + BLOCK].to(torch.int64)
        total += (block * torch.arange(2 * start + 1, 2 * (start + len(block)), 2, device=weight.device)).sum()
    return total
