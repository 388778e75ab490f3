"""The hardware of a process as a value, and the GPUs of this machine, counted without importing torch.

NVIDIA's /proc/driver/nvidia/gpus is not asked: it is missing under WSL2, in some containers and on ROCm.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

WSL_NVIDIA_SMI = "/usr/lib/wsl/lib/nvidia-smi"  # not on the path of every shell
# A GPU may be there without nvidia-smi: NVIDIA in a container with compute capability alone, WSL2, ROCm.
DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
ASK_TORCH = "import torch; print(torch.cuda.device_count())"
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def gpu_count() -> int:
    """How many GPUs the processes of this environment see; 0 without a working driver."""
    listing = installed_gpus()
    if listing is not None:
        return visible_gpus(listing, os.environ)
    return _torch_count() if any(Path(file).exists() for file in DEVICE_FILES) else 0


def nvidia_smi() -> str | None:
    """The path of nvidia-smi, if the machine has it."""
    return shutil.which("nvidia-smi") or shutil.which(WSL_NVIDIA_SMI)


@functools.cache
def installed_gpus() -> str | None:
    """The lines of `nvidia-smi -L`, empty if the driver does not answer; None without nvidia-smi."""
    command = nvidia_smi()
    if command is None:
        return None
    done = subprocess.run([command, "-L"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def visible_gpus(listing: str, environment: Mapping[str, str]) -> int:
    """How many GPUs CUDA shows to a process, of those that `nvidia-smi -L` lists.

    CUDA_VISIBLE_DEVICES names them by index or UUID; CUDA ignores what follows the first index that does not exist.
    Of a GPU that is divided into MIG instances a process sees a single instance unless the variable names others.

    >>> visible_gpus("GPU 0: H100 (UUID: GPU-a)\\nGPU 1: H100 (UUID: GPU-b)", {"CUDA_VISIBLE_DEVICES": "1"})
    1
    """
    lines = listing.splitlines()
    installed = sum(line.startswith("GPU ") for line in lines)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return 1 if any(line.lstrip().startswith("MIG ") for line in lines) else installed
    count = 0
    for name in (word.strip() for word in visible.split(",")):
        exists = name in listing if name.startswith(("GPU-", "MIG-")) else name.isdigit() and int(name) < installed
        if not exists:
            break
        count += 1
    return count


@functools.cache
def _torch_count() -> int:
    done = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def use_expandable_segments() -> None:
    """Let torch's allocator on a GPU grow its blocks, which lengths that vary would fragment otherwise.

    A choice of the user's stays. vLLM switches it off while it allocates its own memory. Before torch is imported.
    """
    if not any(os.environ.get(name) for name in ALLOCATOR_VARIABLES):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


@dataclass(frozen=True)
class Hardware:
    """The device of a process: `memory` is that of one GPU in bytes, `count` the GPUs of the machine.

    Example:
        Hardware("cuda", "NVIDIA H100 80GB HBM3", memory=85_028_765_696, count=8)
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    name: str = ""
    memory: int = 0
    count: int = 0

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"


CPU = Hardware()
