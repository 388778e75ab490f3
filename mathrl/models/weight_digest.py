"""A digest of a model's weights, computed alike by whoever sends them and by whoever receives them.

Per tensor a sum of its bits, modulo 2^64, each weighted by its position: it is computed on the tensor's own device, and
two exchanged elements, or one that differs in a bit, change it. It detects mistakes, not forgeries.
"""

import torch
from torch import Tensor

from mathrl.core.hashing import digest

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
