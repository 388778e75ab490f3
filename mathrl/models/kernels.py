"""Which attention kernel computes a model's packed rows: a value, so that a table of cases tests the choice.

What each kernel can do is read from PyTorch's own checks (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
and flash_attn/flash_api.cpp, torch 2.11 to 2.13): flash attention takes half types on GPUs of compute capability
8.0 or newer, heads up to 256 wide, and fewer key heads than query heads; memory-efficient attention also takes
float32 and any width, but no fewer key heads (they are repeated for it). The math kernel, which keeps whole tables
of probabilities, is never chosen.
"""

from typing import Any

import torch

from mathrl.core.errors import UserError
from mathrl.models.prepared import Kernel, known_way

WIDEST_FLASH = 256
VARLEN_SINCE = (2, 11)  # torch.nn.attention.varlen with a window


def choose_kernel(
    device: str, dtype: torch.dtype, width: int, torch_version: str, capability: tuple[int, int] | None = None
) -> Kernel:
    """The kernel for a model on a device, at every length and with any number of key heads.

    - cpu: blocks of float32 products up to 1,024 tokens, PyTorch's flash attention for CPUs beyond.
    - varlen: `torch.nn.attention.varlen.varlen_attn`, one flash-attention call for all sequences; prompts shared.
    - efficient: blocks of float32 products up to 1,024 tokens, memory-efficient attention per sequence beyond.

    Args:
        width: of a head. `capability`: of the GPU, such as (9, 0) for an H100.

    Raises:
        UserError: the GPU has no bfloat16.

    >>> choose_kernel("cuda", torch.bfloat16, 64, "2.13.0+cu130", (9, 0))
    'varlen'
    >>> choose_kernel("cuda", torch.float32, 64, "2.13.0+cu130", (9, 0))
    'efficient'
    """
    if device == "cpu":
        return "cpu"
    new_enough = capability is not None and capability >= (8, 0)
    if dtype == torch.bfloat16 and not new_enough:
        raise UserError(
            "model.precision is bfloat16, which this GPU does not have (compute capability below 8.0): "
            "set model.precision to float16 or float32"
        )
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    half = dtype in (torch.bfloat16, torch.float16)
    if half and new_enough and width <= WIDEST_FLASH and (major, minor) >= VARLEN_SINCE:
        return "varlen"
    return "efficient"


def attention_kernel(model: Any) -> Kernel:
    """The kernel of a model where it is now, unless it is prepared for a certain one."""
    way = known_way(model)
    if way is not None and way.kernel is not None:
        return way.kernel
    device = model.device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return choose_kernel(device.type, compute_dtype(model), head_width(model.config), torch.__version__, capability)


def compute_dtype(model: Any) -> torch.dtype:
    """The type that a model computes in: that of its weights, but for float32 weights that FSDP rounds to it."""
    dtype: torch.dtype = model.__dict__.get("_compute_dtype") or model.dtype
    return dtype


def head_width(config: Any) -> int:
    """Width of an attention head, from a Hugging Face configuration."""
    text = config.get_text_config()
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def flash_width(width: int) -> int:
    """The width that heads are padded to for flash and memory-efficient attention: a multiple of 8.

    Between 193 and 224 flash attention has no backward pass on GPUs such as the RTX 4090; 256 has one.

    >>> [flash_width(width) for width in (64, 20, 200)]
    [64, 24, 256]
    """
    return 256 if 192 < width <= 256 else -(-width // 8) * 8
