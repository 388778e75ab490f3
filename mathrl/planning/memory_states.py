"""Weights, gradients and optimizer states of a process, in bytes by part: counted exactly.

With DeepSpeed also what ZeRO 3 gathers for a while. P parameters, N processes.
"""

from dataclasses import replace

from mathrl.learners.deepspeed_learner import LIVE
from mathrl.params.lora import Lora
from mathrl.params.schema import Params
from mathrl.params.train import Optimizer
from mathrl.planning.model_shape import ModelShape


def frozen(shape: ModelShape, rounded: float) -> float:
    """A model that is not trained: float32, or its matrices in bfloat16 alone."""
    return 4.0 * (shape.parameters - (shape.matrices if rounded else 0)) + rounded


def trained(shape: ModelShape, optimizer: Optimizer, lora: Lora | None, name: str) -> dict[str, float]:
    """Float32 weights, gradients and optimizer states: 16 bytes per parameter with AdamW, 12 with Muon."""
    count = trainable(shape, lora)
    adam = adam_share(shape, optimizer, lora)
    return {
        f"{name}: weights": 4.0 * (shape.parameters + (count if lora else 0)),
        f"{name}: gradients": 4.0 * count,
        f"{name}: optimizer states": 8.0 * adam + 4.0 * (count - adam),
    }


def bytes_of(params: Params) -> float:
    """Bytes of one weight in DeepSpeed's model."""
    return 2.0 if params.model.precision == "bfloat16" else 4.0


def divided(
    shape: ModelShape, lora: Lora | None, params: Params, name: str
) -> tuple[dict[str, float], dict[str, float]]:
    """ZeRO over N processes: on the device, and what offload moves to the host.

    Stage 1 divides AdamW's moments and the float32 weights that are stepped (DeepSpeed keeps them beside
    float32 weights too); stage 2 also gradients, which are float32, and are where the optimizer is; stage 3
    also weights. The paper (arXiv:1910.02054, figure 1) counts 2 bytes per gradient.
    """
    zero, processes, size = params.training.deepspeed, params.run.processes, bytes_of(params)
    count = trainable(shape, lora)
    weights = size * (shape.parameters + (count if lora else 0))
    device = {
        f"{name}: weights": weights / processes if zero.stage == 3 else weights,
        f"{name}: gradients": 4.0 * count / (processes if zero.stage >= 2 else 1),
    }
    host: dict[str, float] = {}
    if zero.offload_parameters:
        host[f"{name}: weights"] = device.pop(f"{name}: weights")
    (host if zero.offload_optimizer else device)[f"{name}: optimizer states"] = 12.0 * count / processes
    if zero.offload_optimizer and zero.stage >= 2:
        host[f"{name}: gradients"] = device.pop(f"{name}: gradients")
    return device, host


def fetched(shape: ModelShape, params: Params) -> float:
    """The most that ZeRO 3 has gathered while a model runs forward or backward: LIVE and the largest layer."""
    if params.training.backend != "deepspeed" or params.training.deepspeed.stage < 3:
        return 0.0
    layer = max(shape.head, shape.matrices // shape.layers)
    return bytes_of(params) * min(shape.parameters, LIVE + layer)


def trainable(shape: ModelShape, lora: Lora | None) -> float:
    """Parameters with a gradient: all, or those of adapters beside every linear layer of the blocks."""
    if lora is None:
        return float(shape.parameters)
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    sides = [
        (shape.width, queries),
        (shape.width, keys),
        (shape.width, keys),
        (queries, shape.width),
        (shape.width, shape.mlp),
        (shape.width, shape.mlp),
        (shape.mlp, shape.width),
    ]
    chosen = len(lora.targets) / len(sides) if lora.targets else 1.0
    return shape.layers * lora.r * sum(inputs + outputs for inputs, outputs in sides) * chosen


def adam_share(shape: ModelShape, optimizer: Optimizer, lora: Lora | None) -> float:
    """The number of trained parameters with AdamW's two moments; Muon keeps one for a matrix."""
    count = trainable(shape, lora)
    return count if optimizer.type == "adamw" or lora else count - shape.matrices


def critic_shape(shape: ModelShape) -> ModelShape:
    """The policy's trunk with one output per token."""
    trunk = shape.parameters - (0 if shape.tied else shape.head)
    return replace(shape, parameters=trunk + shape.width, vocabulary=1, head=shape.width, tied=False)
