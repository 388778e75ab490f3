"""How mathrl computes a model: found out once, when it is loaded, and kept beside the model, never in it."""

import copy
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

Kernel = Literal["cpu", "varlen", "efficient"]
Sampling = Literal["packed", "cached", "recomputed"]


@dataclass(frozen=True)
class Prepared:
    """How a model is computed.

    Attributes:
        packed: several sequences share a row, and responses share their prompt; if not, each is padded.
        plain_head: the logits are the output head's output, neither scaled nor capped after it.
        sampling: how the torch engine decodes.
        kernel: of packed attention; None chooses by device and type (`mathrl.models.kernels`).
    """

    packed: bool
    plain_head: bool = False
    sampling: Sampling = "cached"
    kernel: Kernel | None = None


_PREPARED: WeakKeyDictionary[Any, Prepared] = WeakKeyDictionary()


def known_way(model: Any) -> Prepared | None:
    """How the model is computed; None before it is prepared."""
    return _PREPARED.get(model)


def compute_as(model: Any, way: Prepared | None) -> None:
    """Compute the model in this way from now on; None forgets the way."""
    if way is None:
        _PREPARED.pop(model, None)
    else:
        _PREPARED[model] = way


def copy_model(model: Any) -> Any:
    """A deep copy that is computed in the same way."""
    twin = copy.deepcopy(model)
    compute_as(twin, known_way(model))
    return twin
