"""What autograd keeps for the backward pass, counted by its own hooks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_bytes(others: set[int]) -> Iterator[dict[int, int]]:
    """Within the context, the bytes of each memory that autograd keeps, by its address; without those of `others`."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in others:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept
