"""Weights, gradients and optimizer states of a process in bytes by part, counted exactly.

Also the weights that DeepSpeed's ZeRO 3 and FSDP gather for a time. P parameters, N processes.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from mathrl.models.shapes import LIVE, ModelShape
from mathrl.params.advantage import Critic
from mathrl.params.optimizer import Adapters, Optimizer
from mathrl.params.schema import Params
from mathrl.params.train import Rl, Sft

GIB = 1 << 30
Parts = dict[str, float]  # bytes by part
Stage = Literal["sft", "rl"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one process, by part.

    `early` are the phases before the first update, with all that is held then. `standing` memory is held from the first
    update on, beside that of the `phases`, which follow one another. `host` is CPU memory of a run on a GPU: what
    offload moves there, and a teacher's tokens of a step. `lacking` is what vLLM's share of the GPU is too small by.
    """

    standing: Parts
    phases: dict[str, Parts] = field(default_factory=dict)
    host: Parts = field(default_factory=dict)
    early: dict[str, Parts] = field(default_factory=dict)
    lacking: Parts = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, float]:
        """Bytes of each phase with all that is held meanwhile."""
        standing = sum(self.standing.values())
        early = {name: sum(parts.values()) for name, parts in self.early.items()}
        return early | {name: standing + sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> float:
        return max(self.totals.values(), default=sum(self.standing.values()))

    def excess(self, room: float) -> float:
        """Bytes that are too many for `room` bytes, or that vLLM lacks; 0: it fits."""
        return max(0.0, self.peak - room) + sum(self.lacking.values())

    @property
    def largest_phase(self) -> str:
        return max(self.totals, key=self.totals.__getitem__)


def frozen(shape: ModelShape, rounded: float) -> float:
    """A model that is not trained: float32, with matrices in bfloat16 if `rounded` is their size."""
    return 4.0 * (shape.parameters - (shape.matrices if rounded else 0)) + rounded


def trained_states(shape: ModelShape, optimizer: Optimizer, lora: Adapters | None, name: str) -> Parts:
    """Float32 weights, gradients and optimizer states: 16 bytes per parameter with AdamW, 12 Muon, 10 in 8 bits."""
    count = trainable(shape, lora)
    return {
        f"{name}: weights": with_adapters(shape, lora, 4.0),
        f"{name}: gradients": 4.0 * count,
        f"{name}: optimizer states": optimizer_bytes(shape, optimizer, lora),
    }


def half(shape: ModelShape, lora: Adapters | None, name: str) -> Parts:
    """The weights of a bfloat16 model on a GPU, and the float32 masters of those that are trained."""
    count = trainable(shape, lora)
    return {f"{name}: weights": with_adapters(shape, lora, 2.0), f"{name}: float32 masters": 4.0 * count}


# A weight of 4 bits (mathrl.models.four_bit): its code, a scale of a byte per 64, and a float32 scale per 256 of those.
CODED = 0.5 + 1 / 64 + 4 / (64 * 256)


def coded_matrices(shape: ModelShape, lora: Adapters | None) -> float:
    """The number of weights that stand in 4 bits beside adapters."""
    return float(shape.matrices) if lora is not None and lora.frozen == "nf4" else 0.0


def with_adapters(shape: ModelShape, lora: Adapters | None, size: float) -> float:
    """Bytes of a model that learns, of `size` bytes per weight, with its adapters."""
    coded, adapters = coded_matrices(shape, lora), trainable(shape, lora) if lora else 0.0
    return size * (shape.parameters - coded + adapters) + CODED * coded


def bytes_of(params: Params) -> float:
    """Bytes of one weight that DeepSpeed or FSDP computes with."""
    return 2.0 if params.model.precision != "float32" else 4.0


def divided_states(shape: ModelShape, lora: Adapters | None, params: Params, name: str) -> tuple[Parts, Parts]:
    """ZeRO over N processes: bytes on the device, and bytes that offload moves to the host.

    Stage 1 divides AdamW's moments and the float32 master weights (DeepSpeed keeps these beside float32 weights
    too); stage 2 also divides the gradients, which are float32 and stored with the optimizer; stage 3 also the
    weights. The paper (arXiv:1910.02054, figure 1) counts 2 bytes per gradient. See also `gradients_until_step`.
    """
    zero, processes, size = params.training.deepspeed, params.run.processes, bytes_of(params)
    count = trainable(shape, lora)
    weights = size * (shape.parameters + (count if lora else 0))
    device = {
        f"{name}: weights": weights / processes if zero.stage == 3 else weights,
        f"{name}: gradients": 4.0 * count / (processes if zero.stage >= 2 else 1),
    }
    host: Parts = {}
    if zero.offload_parameters:
        host[f"{name}: weights"] = device.pop(f"{name}: weights")
    (host if zero.offload_optimizer else device)[f"{name}: optimizer states"] = 12.0 * count / processes
    if zero.offload_optimizer and zero.stage >= 2:
        host[f"{name}: gradients"] = device.pop(f"{name}: gradients")
    return device, host


def gradients_until_step(shape: ModelShape, lora: Adapters | None, params: Params) -> float:
    """Bytes of gradients on the GPU from the backward pass to the end of the step, although offload keeps others.

    DeepSpeed 0.19.8 adds up the gradients of bfloat16 weights in a float32 buffer on the device
    (`_build_compact_grad_partition_buffer` in stage_1_and_2.py), and copies it to the CPU for the step.
    """
    zero = params.training.deepspeed
    offloaded = params.training.backend == "deepspeed" and zero.offload_optimizer and zero.stage == 2
    if not offloaded or bytes_of(params) == 4.0:
        return 0.0
    return 4.0 * trainable(shape, lora) / params.run.processes


def gathered_at_once(shape: ModelShape, params: Params) -> float:
    """The maximum that ZeRO 3 gathers in a forward or backward pass: LIVE and the largest layer."""
    if params.training.backend != "deepspeed" or params.training.deepspeed.stage < 3:
        return 0.0
    layer = max(shape.head, shape.matrices // shape.layers)
    return bytes_of(params) * min(shape.parameters, LIVE + layer)


def trainable(shape: ModelShape, lora: Adapters | None) -> float:
    """Parameters with a gradient: all, or those of adapters beside every linear layer of the blocks."""
    if lora is None:
        return float(shape.parameters)
    sides = _sides(shape)
    chosen = len(lora.targets) / len(sides) if lora.targets else 1.0
    return shape.layers * lora.r * sum(inputs + outputs for inputs, outputs in sides) * chosen


def adam_share(shape: ModelShape, optimizer: Optimizer, lora: Adapters | None) -> float:
    """The number of trained parameters with AdamW's two moments; Muon keeps one for a matrix."""
    count = trainable(shape, lora)
    return count if optimizer.type != "muon" or lora else count - shape.matrices - shape.experts


# bitsandbytes' AdamW8bit: moments of 8 bits for tensors of so many weights, with a float32 scale for each block.
FEWEST_IN_8_BITS, BLOCK = 4096, 256


def optimizer_bytes(shape: ModelShape, optimizer: Optimizer, lora: Adapters | None) -> float:
    """Bytes of the moments: float32, or two codes of a byte with two float32 scales per 256 weights."""
    count, adam = trainable(shape, lora), adam_share(shape, optimizer, lora)
    coded = in_eight_bits(shape, lora) if optimizer.type == "adamw_8bit" else 0.0
    return 8.0 * (adam - coded) + 4.0 * (count - adam) + (2.0 + 8.0 / BLOCK) * coded


def in_eight_bits(shape: ModelShape, lora: Adapters | None) -> float:
    """The number of trained parameters in tensors that are large enough for moments of 8 bits."""
    sides = _sides(shape)
    if lora is not None:
        large = [size for pair in sides for side in pair if (size := lora.r * side) >= FEWEST_IN_8_BITS]
        return shape.layers * sum(large) * (len(lora.targets) / len(sides) if lora.targets else 1.0)
    small = sum(inputs * outputs for inputs, outputs in sides if inputs * outputs < FEWEST_IN_8_BITS)
    tables = shape.head * (1 if shape.tied else 2) if shape.vocabulary > 1 else shape.parameters - shape.matrices
    return min(shape.parameters, shape.matrices + shape.experts + tables) - shape.layers * small


def _sides(shape: ModelShape) -> list[tuple[int, int]]:
    """Inputs and outputs of the seven linear layers of a block."""
    width, mlp = shape.width, shape.mlp
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    return [(width, queries), (width, keys), (width, keys), (queries, width), (width, mlp), (width, mlp), (mlp, width)]


def critic_shape(shape: ModelShape) -> ModelShape:
    """The policy's trunk with one output per token."""
    trunk = shape.parameters - (0 if shape.tied else shape.head)
    return replace(shape, parameters=trunk + shape.width, vocabulary=1, head=shape.width, tied=False)


def fully_sharded(shape: ModelShape, section: Rl | Sft | Critic, params: Params, name: str) -> Parts:
    """A model that learns: float32 weights, gradients and optimizer states, all divided.

    With AdamW that is 16 P / N (10 with moments of 8 bits), with Muon 12 P / N for its matrices. Adapters (LoRA) are
    whole in every process; the frozen weights beside them have the model's precision and are divided.
    """
    count = trainable(shape, section.lora)
    shards, size = params.run.processes, bytes_of(params)
    if section.lora is None:
        weights, divided = 4.0 * count / shards, shards
    else:
        masters = 4.0 * count if size == 2.0 else 0.0
        weights, divided = size * (shape.parameters / shards + count) + masters, 1
    return {
        f"{name}: weights": weights,
        f"{name}: gradients": 4.0 * count / divided,
        f"{name}: optimizer states": optimizer_bytes(shape, section.optimizer, section.lora) / divided,
    }


def gathered_in_a_pass(shape: ModelShape, params: Params, *, learns: bool) -> Parts:
    """The weights that are whole at a time: those of a layer and of the next one, and a tied embedding.

    An update also has the gradient of a layer, and its float32 copy that is summed over the ranks.
    """
    layer, size = shape.matrices / shape.layers, bytes_of(params)
    apart = 0.0 if shape.tied else float(shape.head)
    gathered = layer + max(layer, apart) + (shape.head if shape.tied else 0)
    parts = {"gathered weights (FSDP)": size * gathered}
    if learns:
        parts["gradients on their way to their ranks"] = (size + 4.0) * max(layer, float(shape.head))
    return parts
