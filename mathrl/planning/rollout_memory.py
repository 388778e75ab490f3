"""Memory of sampling: the torch engine's cache and logits, or vLLM's parts."""

from mathrl.core.gpus import Hardware
from mathrl.models.shapes import ModelShape
from mathrl.params.rollout import Rollout
from mathrl.params.schema import Params
from mathrl.planning.memory_states import GIB, Device, Parts, bytes_of
from mathrl.rollout.choices import choose_engine, stage_longest
from mathrl.rollout.vllm_budget import VllmBudget, check_budget, vllm_budget
from mathrl.servers.vllm_arguments import dtype_name

VLLM_RUNTIME = 0.27 * GIB  # measured for vLLM on a CPU; on a GPU its memory share includes everything
LEAST_CACHED = 16  # sequences for which vLLM needs cache to decode at a useful rate
# Of vLLM's parts on a GPU, those that it keeps while it sleeps: its allocator frees weights and cache alone.
KEPT_ASLEEP = ("sampler's tables", "CUDA graphs", "NCCL")


def with_engine(params: Params, device: Device) -> Params:
    """The parameters with `rollout.engine: auto` resolved, as on a machine where vLLM is installed."""
    rollout = choose_engine(params.rollout, params.model, Hardware(device), vllm_installed=True)
    return params.model_copy(update={"rollout": rollout})


def cache_row(shape: ModelShape, size: int) -> float:
    """Keys and values of a token in all layers, at `size` bytes per number."""
    return 2.0 * shape.layers * shape.key_heads * shape.head_width * size


def torch_engine_memory(shape: ModelShape, params: Params, length: int) -> Parts:
    """A float32 cache, doubled when it is full, and logits; with a tool also what is kept while calls run."""
    rl, rollout = params.rl, params.rollout
    share = -(-rl.prompts_per_step // params.run.processes) * rl.group_size
    sequences = min(share, max(rollout.max_sequences, rl.group_size))
    return {
        "key-value cache": (1.5 if rollout.tool.kind == "none" else 2.5) * sequences * length * cache_row(shape, 4),
        "next-token logits": 5.0 * 4 * sequences * shape.vocabulary,
    }


def vllm_on_cpu(shape: ModelShape, params: Params) -> Parts:
    """vLLM in the process, without a GPU: it has a head of its own, and a cache of a fixed size."""
    weights = bytes_of(params) * (shape.parameters + (shape.head if shape.tied else 0))
    cache = float((params.rollout.vllm.cache_gib or 1) * GIB)
    return {"vLLM": VLLM_RUNTIME, "vLLM: weights": weights, "vLLM: cache": cache}


def vllm_parts(shape: ModelShape, params: Params, length: int, gpu_memory: float) -> tuple[Parts, Parts]:
    """vLLM's share of a GPU by part (see `vllm_budget`), and what it lacks.

    The cache is what the other parts leave; it lacks what LEAST_CACHED sequences of `length` tokens would take more.
    """
    budget, _, _ = _vllm_budget(shape, params, length, gpu_memory)
    parts = {f"vLLM: {name}": size for name, size in budget.parts.items()} | {"vLLM: cache": max(0.0, budget.cache)}
    lacking = LEAST_CACHED * budget.sequence - budget.cache
    return parts, {f"vLLM: cache for {LEAST_CACHED} sequences": lacking} if lacking > 0 else {}


def starts_servers(params: Params) -> bool:
    """Whether the stage starts vLLM servers itself (`rollout.servers.start`)."""
    return params.rollout.engine == "vllm_server" and params.rollout.servers.start > 0


def on_ranks_gpus(params: Params) -> bool:
    """Whether the servers that the stage starts share the GPUs of its ranks."""
    return starts_servers(params) and params.rollout.servers.weights == "ipc"


def transfer_buffers(params: Params, whole: float, largest: float) -> Parts:
    """What a weight sync to servers adds to rank 0's GPU; `whole` and `largest` are bytes of all weights and of one.

    vLLM packs by NCCL what exceeds a buffer with its last weight: copies of the weights, the packed buffer, and the
    one before it, which may still be on its way. By CUDA IPC it has one buffer, and a copy of a weight.
    """
    buffer = params.rollout.servers.bucket_mb * 1e6
    if params.rollout.servers.weights == "files":
        return {}
    if params.rollout.servers.weights == "ipc":
        return {"weights shared by CUDA IPC": max(buffer, largest) + largest}
    return {"weights packed for NCCL": 3 * min(buffer + largest, whole)}


def longest_request(params: Params) -> int:
    """Tokens of the longest prompt with its response that RL asks for."""
    return stage_longest(params, "rl")


def check_vllm_share(shape: ModelShape, params: Params, gpu_memory: float) -> None:
    """Raises UserError: vLLM would refuse to start for RL on GPUs of this memory."""
    params = with_engine(params, "cuda")
    if params.rollout.engine == "vllm" or starts_servers(params):
        check_budget(*_vllm_budget(shape, params, longest_request(params), gpu_memory))


def _vllm_budget(
    shape: ModelShape, params: Params, length: int, gpu_memory: float
) -> tuple[VllmBudget, Rollout, Hardware]:
    """The budget of vLLM for sequences of `length` tokens, and what it was made for."""
    rollout = params.rollout
    processes = rollout.vllm.tensor_parallel if starts_servers(params) else params.run.processes
    longest = rollout.vllm.max_model_length or length
    rollout = rollout.model_copy(update={"vllm": rollout.vllm.model_copy(update={"max_model_length": longest})})
    gpu = Hardware("cuda", memory=int(gpu_memory), count=processes)
    return vllm_budget(shape, rollout, dtype_name(rollout, params.model), gpu, processes), rollout, gpu
