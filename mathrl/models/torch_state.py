"""What a process shares with another library in it: torch's global settings and the environment.

vLLM's worker sets the precision of float32 products to "highest" (vllm/v1/worker/gpu_worker.py), removes NCCL's
variables and, on a CPU, replaces `torch.set_num_threads` by a function that does nothing (cpu_worker.py).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_mkldnn: Any = torch.backends.mkldnn  # torch's stubs leave its `matmul` out
Setting = tuple[Callable[[], Any], Callable[[Any], None]]


def _matmul_tf32(allow: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allow


def _mkldnn_precision(name: str) -> None:
    _mkldnn.matmul.fp32_precision = name


def _cudnn_tf32(allow: bool) -> None:
    torch.backends.cudnn.allow_tf32 = allow


def _cudnn_deterministic(on: bool) -> None:
    torch.backends.cudnn.deterministic = on


def _cudnn_benchmark(on: bool) -> None:
    torch.backends.cudnn.benchmark = on


def _deterministic(modes: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(modes[0], warn_only=modes[1])


def _current_device() -> int | None:
    """The GPU of this thread, or None before the process has used one."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _use_device(index: int | None) -> None:
    if index is not None:
        torch.cuda.set_device(index)


# In the order in which they are restored: the first sets the next two.
SETTINGS: dict[str, Setting] = {
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cuda.matmul.allow_tf32": (lambda: torch.backends.cuda.matmul.allow_tf32, _matmul_tf32),
    "mkldnn.matmul.fp32_precision": (lambda: _mkldnn.matmul.fp32_precision, _mkldnn_precision),
    "cudnn.allow_tf32": (lambda: torch.backends.cudnn.allow_tf32, _cudnn_tf32),
    "cudnn.deterministic": (lambda: torch.backends.cudnn.deterministic, _cudnn_deterministic),
    "cudnn.benchmark": (lambda: torch.backends.cudnn.benchmark, _cudnn_benchmark),
    "deterministic_algorithms": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _deterministic,
    ),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "current_device": (_current_device, _use_device),
}
OWN_VARIABLES = "VLLM_"  # of the engine, which reads them while it runs


def torch_settings() -> dict[str, Any]:
    """The value of each of `SETTINGS`."""
    return {name: read() for name, (read, _) in SETTINGS.items()}


@contextmanager
def state_kept() -> Iterator[None]:
    """Afterwards torch's settings and the environment are as before, but for the variables named VLLM_…"""
    settings, environment, set_num_threads = torch_settings(), dict(os.environ), torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        for name, (read, write) in SETTINGS.items():
            if read() != settings[name]:
                write(settings[name])
        for name in {*environment, *os.environ}:
            if name.startswith(OWN_VARIABLES) or os.environ.get(name) == environment.get(name):
                continue
            if name in environment:
                os.environ[name] = environment[name]
            else:
                del os.environ[name]


def use_tf32() -> None:
    """Let float32 products on a GPU use tensor cores, which round inputs to 10 bits of mantissa (bfloat16: 7 bits)."""
    _matmul_tf32(True)
    _cudnn_tf32(True)


@contextmanager
def exact_float32() -> Iterator[None]:
    """Within it float32 products are not rounded: for comparisons whose tolerance is below what TF32 rounds away."""
    with state_kept():
        torch.set_float32_matmul_precision("highest")
        _cudnn_tf32(False)
        yield


@contextmanager
def without_expandable_segments() -> Iterator[None]:
    """Within it new memory of a GPU is such that any process may open it (CUDA IPC).

    Handles of expandable segments are opened by pidfd_getfd, which containers and Yama refuse to a process that is no
    ancestor. torch finds no block of an expandable segment for what is allocated meanwhile; what is there stays.
    """
    settings = torch._C._accelerator_getAllocatorSettings()
    if "expandable_segments:true" not in settings.replace(" ", "").lower():
        yield
        return
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)
