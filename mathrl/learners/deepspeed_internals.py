"""What the DeepSpeed backend uses of DeepSpeed's internals, all in one place.

Written for the release that pyproject.toml pins (deepspeed 0.19.8). At another release, read each function
beside DeepSpeed's source and run tests/engines/test_deepspeed.py, which compares every step with plain torch.
"""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.core.environment import Variable
from mathrl.learners.distributed import Ranks
from mathrl.models.fsdp import Pass
from mathrl.models.sharding import own_range


def import_deepspeed(ranks: Ranks) -> Any:
    """The package, with its process group made: half a second, and it looks for compilers."""
    if ranks.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault(Variable.LOCAL_RANK, "0")  # one process without a launcher
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.WARNING)
    # Else it compiles an all-reduce at the first start, and a kill meanwhile blocks every later start.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings("ignore", message=".*(reduce_scatter_tensor|all_gather_into_tensor).*")
    deepspeed.init_distributed("nccl" if ranks.device.type == "cuda" else "gloo")
    return deepspeed


def make_engine(network: nn.Module, optimizer: Any, config: dict[str, Any], ranks: Ranks) -> Any:
    """DeepSpeed's engine; called with a function that runs the network, it gives that function's loss.

    Without an optimizer it only gathers the weights of ZeRO 3 for forward passes.
    """
    deepspeed = import_deepspeed(ranks)
    engine, *_ = deepspeed.initialize(model=Pass(network), optimizer=optimizer, config=config)
    ranks.set_timeouts()  # NCCL's is ten minutes
    return engine


@contextmanager
def without_hooks(engine: Any) -> Iterator[None]:
    """ZeRO 3 within gathered weights: its hooks would divide a layer's weights again as soon as it has run."""
    offload = _offload(engine)
    remove_hooks(engine)
    try:
        yield
    finally:
        offload._register_deepspeed_module(offload.module)


@contextmanager
def without_trace(engine: Any) -> Iterator[None]:
    """ZeRO 3 while scoring: its trace of a training step would have it prefetch for a backward pass."""
    offload = _offload(engine)
    if not offload.get_param_coordinator().is_invalid_trace():
        offload.get_param_coordinator()._invalidate_trace()
    try:
        yield
    finally:
        offload.partition_all_parameters()


def remove_hooks(engine: Any) -> None:
    """ZeRO 3: take its hooks off the network."""
    offload = _offload(engine)
    for weight in offload.module.parameters():
        weight.ds_active_sub_modules.clear()
    for hook in (*offload.forward_hooks, *offload.backward_hooks):
        hook.remove()
    offload.forward_hooks, offload.backward_hooks = [], []


def release(engine: Any, network: nn.Module) -> None:
    """End an engine of ZeRO 3; its network keeps its shards."""
    _offload(engine).partition_all_parameters()
    remove_hooks(engine)
    engine.destroy()
    for module in network.modules():
        module._parameters = dict(module._parameters)


def _offload(engine: Any) -> Any:
    return getattr(engine.optimizer, "parameter_offload", engine.optimizer)


def own_state(engine: Any) -> Iterator[tuple[Tensor, int, dict[str, Tensor]]]:
    """This rank's part of every weight that learns: the weight, where the part begins in it, and the part's tensors.

    They are flat views of what the optimizer steps, in float32: "value", and AdamW's "exp_avg" and "exp_avg_sq" from
    the first step on.
    """
    zero = engine.optimizer
    for weight, begin, (flat, start, size) in _own_parts(zero):
        moments = {name: value for name, value in zero.optimizer.state.get(flat, {}).items() if value.dim()}
        tensors = {"value": flat.detach(), **moments}
        yield weight, begin, {name: value[start : start + size] for name, value in tensors.items()}


def make_moments(engine: Any, steps: int) -> None:
    """Give AdamW the moments that it makes at its first step, after `steps` steps; their values are still to come."""
    zero = engine.optimizer
    for flat in _masters(zero):
        state = zero.optimizer.state[flat]
        state["step"] = torch.tensor(float(steps), device=flat.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(flat), torch.zeros_like(flat)


def round_masters(engine: Any) -> None:
    """Give the model the values of the float32 weights that the optimizer steps, after those were overwritten."""
    zero = engine.optimizer
    if not _shards_weights(zero):
        zero.update_lp_params()
        return
    zero.checkpoint_event_prologue()
    for group in range(len(_masters(zero))):
        zero._reassign_or_swap_out_partitioned_parameters(group)
    zero.checkpoint_event_epilogue()


def _shards_weights(zero: Any) -> bool:
    return hasattr(zero, "fp32_partitioned_groups_flat")


def _masters(zero: Any) -> list[Tensor]:
    """The flat float32 weights of this rank, one tensor per group."""
    masters: list[Tensor] = (
        zero.fp32_partitioned_groups_flat if _shards_weights(zero) else zero.single_partition_of_fp32_groups
    )
    return masters


def _own_parts(zero: Any) -> Iterator[tuple[Tensor, int, tuple[Tensor, int, int]]]:
    """Each weight of which this rank has a part: where that begins in the weight, and flat tensor, start and size."""
    if _shards_weights(zero):
        for flat, weights in zip(_masters(zero), zero.fp16_groups, strict=True):
            start = 0
            for weight in weights:
                begin, size = own_range(weight)
                yield weight, begin, (flat, start, size)
                start += weight.partition_numel()
        return
    for flat, weights in zip(_masters(zero), zero.bit16_groups, strict=True):
        for weight in weights:
            if (mapping := weight._hp_mapping) is not None:
                place = mapping.hp_fragment_address
                yield weight, mapping.lp_fragment_address.start, (flat, place.start, place.numel)
