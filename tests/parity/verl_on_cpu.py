"""verl without a GPU: a platform whose device is the CPU, and a server of responses in the place of vLLM's.

Loaded into every process of verl by VERL_USE_EXTERNAL_MODULES, its own hook for other hardware. Everything else is
verl's: its trainer, its workers with FSDP over gloo, agent loops, reward workers, queue, checkpoints and their merger.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.plugin.platform.platform_manager import set_platform


class _CpuModule(ModuleType):
    """torch.cpu with the memory figures that verl asks a device for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("max_memory", "memory_", "reset_", "mem_get_info")):
            return lambda *_, **__: (0, 0) if name == "mem_get_info" else 0
        if name in ("get_rng_state", "set_rng_state"):
            return getattr(torch, name)
        if name in ("empty_cache", "ipc_collect", "manual_seed", "manual_seed_all"):
            return lambda *_, **__: None
        if name == "get_device_name":
            return lambda *_, **__: "CPU"
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    device_name, vendor_name = "cpu", "none"
    device_module = _CpuModule("torch_cpu")

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: Any = None) -> None: ...
    def manual_seed(self, seed: int) -> None: ...
    def manual_seed_all(self, seed: int) -> None: ...
    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...
    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...
    def cudart(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


set_platform(PlatformCPU())

from verl.utils import distributed, fsdp_utils, import_utils  # noqa: E402

# This environment's TRL is newer than what verl patches.
import_utils.is_trl_available = lambda: False

# A reference model is offloaded to memory that is pinned for a GPU.
fsdp_utils.CPUOffloadPolicy = lambda **_: CPUOffloadPolicy(pin_memory=False)

from verl.workers.rollout import base, replica  # noqa: E402

# verl asks for "cpu:gloo,DEVICE:BACKEND", in which the CPU would stand twice.
distributed.initialize_global_process_group_ray = partial(
    distributed.initialize_global_process_group_ray, backend="gloo"
)

base._ROLLOUT_REGISTRY["vllm", "async"] = "verl_cpu_rollout.CpuAdapter"


def _replica() -> Any:
    from verl_cpu_rollout import CpuReplica

    return CpuReplica


replica.RolloutReplicaRegistry.register("vllm", _replica)
assert os.environ["VERL_USE_EXTERNAL_MODULES"] and "torch" in sys.modules
