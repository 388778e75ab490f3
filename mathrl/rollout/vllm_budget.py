"""Whether vLLM's share of a GPU holds what it needs, before anything is started.

vLLM 0.32 gives its cache what is left of gpu_memory_utilization after weights, the peak of a profiling pass and CUDA
graphs, and refuses a cache below one sequence of max_model_len (`GPUWorker.determine_available_memory`,
`check_enough_kv_cache_memory`); by then every rank has loaded its models. The weights, tables and cache are counted
exactly; the peak, the graphs and NCCL's buffers are estimates.
"""

import math
from dataclasses import dataclass

from mathrl.core.errors import UserError
from mathrl.core.gpus import Hardware
from mathrl.models.shapes import ModelShape
from mathrl.params.rollout import Rollout

GIB = 1 << 30
SIZE = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes
BLOCK = 16  # tokens per block of the cache
LARGE_GPU = 70 * GIB  # from here on vLLM profiles LARGE_BATCH tokens (EngineArgs.get_batch_defaults; not an A100)
BATCH, LARGE_BATCH = 8192, 16384
GRAPHS = 0.75 * GIB  # estimate: captured CUDA graphs, with their pool
NCCL = 0.5 * GIB  # estimate: communicators and their buffers, with several ranks


@dataclass(frozen=True)
class VllmBudget:
    """Bytes of one GPU: vLLM's share, its parts beside the cache, and one sequence of the longest length.

    Example:
        VllmBudget(share=12.9e9, parts={"weights": 6.2e9, "untied head": 0.6e9, …}, sequence=47e6)
    """

    share: float
    parts: dict[str, float]
    sequence: float
    cache: float

    @property
    def sequences(self) -> int:
        """The number of sequences of the longest length that the cache holds."""
        return max(0, int(self.cache // self.sequence))


def vllm_budget(shape: ModelShape, rollout: Rollout, dtype: str, hardware: Hardware, ranks: int) -> VllmBudget:
    """The budget of each of `ranks` engines' GPUs for a model of this shape.

    `rollout.vllm.max_model_length` must be set. `dtype` is vLLM's (see `dtype_name`).
    """
    options, size, split = rollout.vllm, SIZE[dtype], rollout.vllm.tensor_parallel
    assert options.max_model_length is not None
    requests = rollout.max_sequences
    large = hardware.memory >= LARGE_GPU and "a100" not in hardware.name.lower()
    batch = min(LARGE_BATCH if large else BATCH, requests * options.max_model_length)
    # A layer's input, residual and output; the MLP's gate, up and their product; attention's queries and output.
    layer = batch * size * (3 * shape.width + (3 * shape.mlp + 2 * shape.heads * shape.head_width) / split)
    # Logits of every sequence as the model gives them, then in float32 twice (Sampler.sample).
    logits = requests * shape.vocabulary * (size + 8)
    parts = {
        "weights": size * shape.parameters / split,
        "untied head": size * shape.head / split if shape.tied else 0.0,
        # V2's PenaltiesState: output_bin_counts, and prompt_bin_mask of one bit per token.
        "sampler's tables": requests * (4.0 * shape.vocabulary + 4 * math.ceil(shape.vocabulary / 32)),
        "activations of the profiling pass": max(layer, logits + batch * size * shape.width),
        "CUDA graphs": 0.0 if options.eager else GRAPHS,
        "NCCL": NCCL if ranks > 1 else 0.0,
    }
    share = hardware.memory * options.memory_share
    blocks = math.ceil(options.max_model_length / BLOCK)
    sequence = blocks * BLOCK * shape.layers * 2.0 * math.ceil(shape.key_heads / split) * shape.head_width * size
    cache = options.cache_gib * GIB if options.cache_gib else share - sum(parts.values())
    return VllmBudget(share, parts, sequence, cache)


def check_budget(budget: VllmBudget, rollout: Rollout, hardware: Hardware) -> None:
    """Raises UserError: vLLM's cache would not hold one sequence; with what takes its share, and what to change."""
    if budget.sequences >= 1:
        return
    options = rollout.vllm
    if options.cache_gib:
        raise UserError(
            f"rollout.vllm.cache_gib {options.cache_gib} holds no sequence of {options.max_model_length} tokens, which "
            f"takes {_gib(budget.sequence)}: raise it, or lower rollout.vllm.max_model_length"
        )
    parts = ", ".join(f"{name} {_gib(part)}" for name, part in budget.parts.items() if part >= 0.005 * GIB)
    needed = math.ceil((sum(budget.parts.values()) + budget.sequence) / hardware.memory * 100) / 100
    remedies = [f"raise rollout.vllm.memory_share to {needed:g} or more"] if needed < 0.95 else []
    remedies += [
        "lower rollout.max_sequences (the sampler's tables and logits)",
        "lower rollout.vllm.max_model_length",
        "raise rollout.vllm.tensor_parallel",
    ]
    raise UserError(
        f"rollout.vllm.memory_share {options.memory_share:g} of a GPU of {_gib(hardware.memory)} gives vLLM "
        f"{_gib(budget.share)}, of which {parts} leave no cache for one sequence of {options.max_model_length} tokens "
        f"({_gib(budget.sequence)}): {', or '.join(remedies)}"
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
