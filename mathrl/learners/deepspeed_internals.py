"""What the DeepSpeed backend uses of DeepSpeed's internals, all in one place.

Written for the release that pyproject.toml pins (deepspeed 0.19.8). At another release, read each function
beside DeepSpeed's source and run tests/engines/test_deepspeed.py, which compares every step with plain torch.
"""

import logging
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.learners.distributed import Ranks


class _Pass(nn.Module):
    """The module that DeepSpeed wraps: its forward pass is whatever is computed of the network.

    DeepSpeed's hooks at the beginning and the end of a pass are those of its root module.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


def make_engine(network: nn.Module, optimizer: Any, config: dict[str, Any], ranks: Ranks) -> Any:
    """DeepSpeed's engine; called with a function that runs the network, it gives that function's loss."""
    if ranks.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", "0")  # one process without a launcher
    import deepspeed  # half a second, and it looks for compilers: only where it is asked for

    deepspeed.utils.logger.setLevel(logging.WARNING)
    # Else it compiles an all-reduce at the first start, and a kill meanwhile blocks every later start.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings("ignore", message=".*(reduce_scatter_tensor|all_gather_into_tensor).*")
    deepspeed.init_distributed("nccl" if ranks.device.type == "cuda" else "gloo")
    engine, *_ = deepspeed.initialize(model=_Pass(network), optimizer=optimizer, config=config)
    return engine


def element_count(weight: Tensor) -> int:
    """How many elements a weight has, also where ZeRO 3 has divided it."""
    return int(getattr(weight, "ds_numel", weight.numel()))


@contextmanager
def without_hooks(engine: Any) -> Iterator[None]:
    """ZeRO 3 within gathered weights: its hooks would divide a layer's weights again as soon as it has run."""
    offload = engine.optimizer.parameter_offload
    remove_hooks(engine)
    try:
        yield
    finally:
        offload._register_deepspeed_module(offload.module)


@contextmanager
def without_trace(engine: Any) -> Iterator[None]:
    """ZeRO 3 while scoring: its trace of a training step would have it prefetch for a backward pass."""
    offload = engine.optimizer.parameter_offload
    if not offload.get_param_coordinator().is_invalid_trace():
        offload.get_param_coordinator()._invalidate_trace()
    try:
        yield
    finally:
        offload.partition_all_parameters()


def remove_hooks(engine: Any) -> None:
    """ZeRO 3: take its hooks off the network."""
    offload = engine.optimizer.parameter_offload
    for weight in offload.module.parameters():
        weight.ds_active_sub_modules.clear()
    for hook in (*offload.forward_hooks, *offload.backward_hooks):
        hook.remove()
    offload.forward_hooks, offload.backward_hooks = [], []


@contextmanager
def safe_loads() -> Iterator[None]:
    """Within it DeepSpeed's loads, which ask for any pickle, accept only tensors, containers and its three records."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    def member(kind: Any, name: str) -> Any:
        """A stage as Python before 3.11.4 pickles it: getattr of the enumeration, and only that."""
        if kind is not ZeroStageEnum:
            raise pickle.UnpicklingError(f"getattr of {kind!r} is not allowed")
        return ZeroStageEnum[name]

    allowed = [LossScaler, ZeroStageEnum, fragment_address, (member, "builtins.getattr")]
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with torch.serialization.safe_globals(allowed):
            yield
    finally:
        os.environ.pop(name)
        os.environ.update({name: before} if before is not None else {})
