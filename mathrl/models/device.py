"""The device that a rank computes on, and what vLLM must be told about it."""

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.hardware import CPU, Hardware

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
