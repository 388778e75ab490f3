"""The device that a rank computes on, and what vLLM must be told about it.

What a process shares with another library in it: torch's global settings and the environment.

vLLM's worker sets the precision of float32 products to "highest" (vllm/v1/worker/gpu_worker.py), removes NCCL's
variables and, on a CPU, replaces `torch.set_num_threads` by a function that does nothing (cpu_worker.py).
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.gpus import CPU, Hardware

Device = torch.device | str


@dataclass(frozen=True)
class RankGpu:
    """A rank's GPU among those that its process sees, and the variables by which vLLM's worker takes the same one.

    Example: RankGpu(1, {"LOCAL_RANK": "1"}).
    """

    index: int
    variables: Mapping[str, str]


def rank_gpu(environment: Mapping[str, str], gpus: int) -> RankGpu:
    """The GPU of the rank with this environment, whose process sees `gpus` GPUs.

    A process that sees one GPU uses that one, whatever its LOCAL_RANK is: launchers such as Slurm with
    --gpus-per-task=1 show every rank its own. (`Ranks` refuses two ranks on one GPU.)

    Raises:
        UserError: the machine has more ranks than this process sees GPUs.
    """
    local = int(environment.get(Variable.LOCAL_RANK, "0"))
    if gpus > 1 and local >= gpus:
        raise UserError(
            f"LOCAL_RANK is {local}, but this process sees only {gpus} GPUs: start at most {gpus} ranks per machine "
            "(run.processes, or the launcher's number of processes per node), or let the launcher show each rank "
            "one GPU of its own (CUDA_VISIBLE_DEVICES)"
        )
    index = 0 if gpus == 1 else local
    return RankGpu(index, {Variable.LOCAL_RANK: str(index)})


def choose_device(name: str) -> torch.device:
    """The device that `run.device` names: auto takes this rank's GPU if the machine has one.

    Raises:
        UserError: cuda is asked for and torch finds no GPU, or more ranks were started than there are GPUs.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise UserError("run.device is cuda, but torch finds no GPU; set run.device to cpu or auto")
    if name == "cpu" or not has_gpu:
        return torch.device("cpu")
    return torch.device("cuda", rank_gpu(os.environ, torch.cuda.device_count()).index)


def use_device(device: torch.device) -> None:
    """Make a GPU the current device of this thread: in each thread that is GPU 0 at first."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def halve_threads() -> None:
    """Two threads of this process compute at the same time from now on: each with half of torch's threads."""
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))


def to_device(tensor: Tensor, device: Device) -> Tensor:
    """A CPU's tensor on the device; a GPU copies it from pinned memory while the host goes on launching kernels."""
    if torch.device(device).type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def hardware_of(device: Device) -> Hardware:
    """What `device` is, for those that configure something for it."""
    device = torch.device(device)
    if device.type != "cuda":
        return CPU
    properties = torch.cuda.get_device_properties(device)
    return Hardware("cuda", properties.name, properties.total_memory, torch.cuda.device_count())


# --- freed memory: glibc, the allocator of PyTorch on a CPU, returns large blocks to the system at once, so that each
# new tensor costs page faults: a third of the processor time of a small model's training step, measured.

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_HEAP_BLOCK = 32 << 20  # the most that glibc accepts
TRIM_ABOVE = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Set glibc's thresholds, where the C library is glibc; whether it accepted them."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    accepted = library.mallopt(M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK)
    return bool(accepted and library.mallopt(M_TRIM_THRESHOLD, TRIM_ABOVE))


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
