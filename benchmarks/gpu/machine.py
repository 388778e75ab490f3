"""The machine: its name, versions, and the rates that other figures are shares of."""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.workload import nominal_flops, synchronize


def main(device: torch.device, toy: bool) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    size = 512 if toy else 8192
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    copied = torch.empty((1 << 20) if toy else (1 << 31), dtype=torch.int8, device=device)
    target = torch.empty_like(copied)
    operations = 2.0 * size**3
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU ({platform.machine()})",
        "memory_gib": torch.cuda.get_device_properties(device).total_memory / (1 << 30) if on_gpu else 0.0,
        "driver": driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
        "bfloat16_flops": product_flops(device, size),
        "nominal_flops": nominal_flops(device),
        "copy_bytes_per_s": 2.0 * len(copied) / fastest(lambda: target.copy_(copied), device),
    }
    for name, allowed in (("float32_flops", False), ("tf32_flops", True)):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        facts[name] = operations / fastest(lambda: a @ b, device)
    return facts


def product_flops(device: torch.device, size: int) -> float:
    """Operations per second of a product of square bfloat16 matrices."""
    matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    return 2.0 * size**3 / fastest(lambda: matrix @ matrix, device)


def fastest(work: Callable[[], Any], device: torch.device, runs: int = 10) -> float:
    """Seconds of the fastest of several runs, after one that does not count."""
    times = []
    for _ in range(runs + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def driver() -> str | None:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None
