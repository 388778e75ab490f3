"""Handles of GPU memory that another process may open (CUDA IPC), as JSON: vLLM would pickle them for HTTP.

A handle is the arguments of torch's `rebuild_cuda_tensor` (torch/multiprocessing/reductions.py), by the physical GPU's
UUID: classes and a dtype, which are named, and numbers and bytes.
"""

import base64
from collections.abc import Mapping
from typing import Any

import torch

CLASSES: dict[str, Any] = {
    kind.__name__: kind for kind in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage, torch.storage.TypedStorage)
}
DTYPES: dict[str, Any] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
        torch.float64,
    )
}  # fmt: skip


def handles_as_json(handles: Mapping[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Handles by GPU, such as {"GPU-5f…": (torch.Tensor, (64,), …, b"…")}, as values that JSON has."""
    return {gpu: [_as_json(value) for value in arguments] for gpu, arguments in handles.items()}


def handles_from_json(handles: Mapping[str, list[Any]]) -> dict[str, tuple[Any, ...]]:
    """The handles again; raises ValueError: a class or a dtype is none of those that torch's handles have."""
    return {gpu: tuple(_from_json(value) for value in arguments) for gpu, arguments in handles.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, type):
        return {"class": value.__name__}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (tuple, torch.Size)):
        return {"tuple": [int(item) for item in value]}
    if isinstance(value, torch.device):
        return value.index
    return value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "tuple":
        return tuple(int(item) for item in content)
    tables: dict[str, dict[str, Any]] = {"class": CLASSES, "dtype": DTYPES}
    table = tables.get(kind, {})
    if content not in table:
        raise ValueError(f"a handle of GPU memory has the {kind} {content!r}, which torch's handles never have")
    return table[content]
