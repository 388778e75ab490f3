"""Frozen weights of 4 bits beside adapters (QLoRA, arXiv:2305.14314, section 3), by bitsandbytes.

A weight is one of the 16 values of NF4 times the scale of its block of 64; scales are numbers of 8 bits in blocks of
256 (double quantisation): 4.127 bits per weight. A product computes in the model's type with the weight restored.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mathrl.core.environment import install_command
from mathrl.core.errors import UserError
from mathrl.models.linear import HalfLinear


def import_bitsandbytes(setting: str) -> Any:
    """The optional package bitsandbytes, for a `setting` such as optimizer.type adamw_8bit.

    Raises:
        UserError: it is not installed.
    """
    try:
        import bitsandbytes  # here: an optional package, slow to import
    except ModuleNotFoundError:
        raise UserError(
            f"{setting} needs bitsandbytes, which is not installed: `{install_command('bitsandbytes')}` installs it"
        ) from None
    return bitsandbytes


def quantise_layers(network: Any, names: Iterable[str]) -> None:
    """Exchange the linear layers of these names for frozen ones of 4 bits, in place, one at a time.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    library = import_bitsandbytes("lora.frozen nf4")
    for name in names:
        layer = network.get_submodule(name)
        computed = layer.product_dtype if isinstance(layer, HalfLinear) else layer.weight.dtype
        coded = library.nn.Linear4bit(
            layer.in_features, layer.out_features, bias=False, compute_dtype=computed, quant_type="nf4", device="meta"
        )
        device, weight = layer.weight.device, layer.weight.detach()
        coded.weight = library.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=coded)
        coded.bias = layer.bias
        network.set_submodule(name, coded.to(device))


def is_coded(weight: Tensor) -> bool:
    """Whether a weight is one of 4 bits: its tensor then holds codes, two per byte."""
    return getattr(weight, "quant_state", None) is not None


def coded_shape(weight: Any) -> tuple[torch.dtype, torch.Size]:
    """The type and the shape of a weight of 4 bits when it is restored."""
    return weight.quant_state.dtype, weight.quant_state.shape


def restore_weight(weight: Any) -> Tensor:
    """The values of a weight of 4 bits, as products use them, in the type that it had before."""
    from bitsandbytes.functional import dequantize_4bit  # type: ignore[import-untyped]

    restored: Tensor = dequantize_4bit(weight.data, weight.quant_state)
    return restored
