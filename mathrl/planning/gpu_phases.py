"""What a GPU holds in each phase of RL: the update, start, rollouts, weight sync, scoring, export.

vLLM takes its share of the memory when it opens, and frees most of it when it sleeps, so the phases differ by much.
"""

from mathrl.core.gpus import Hardware
from mathrl.models.shapes import BUCKET, MOST_LOGITS, ModelShape, rounded_up
from mathrl.params.optimizer import Adapters
from mathrl.params.rollout import Rollout
from mathrl.params.schema import Params
from mathrl.planning.memory_states import (
    GIB,
    Device,
    MemoryPlan,
    Parts,
    bytes_of,
    gathered_at_once,
    gathered_in_a_pass,
    trainable,
)
from mathrl.rollout.choices import choose_engine, stage_longest
from mathrl.rollout.vllm_budget import VllmBudget, check_budget, vllm_budget
from mathrl.servers.vllm_arguments import dtype_name


def add_start(plan: MemoryPlan, shape: ModelShape, params: Params) -> None:
    """The policy as it is loaded: whole in the model's precision, or this rank's shard with ZeRO 3 or FSDP."""
    loaded = bytes_of(params) * shape.parameters
    if divides_weights(params):
        offloaded = params.training.backend == "deepspeed" and params.training.deepspeed.offload_parameters
        loaded = 0.0 if offloaded else loaded / params.run.processes
    plan.early["start"] = {"CUDA context": plan.standing["CUDA context"], "policy: weights as loaded": loaded}


def add_rl_phases(
    plan: MemoryPlan, shape: ModelShape, params: Params, tokens: int, length: int, gpu_memory: float
) -> None:
    """The phases of RL beside the update, into the plan.

    Args:
        tokens: of a micro-batch. `length`: of the longest sequence. `gpu_memory`: in bytes.
    """
    transit = {"weights in transit to the sampler": _in_transit(shape, params)}
    awake: Parts = {}
    if params.rollout.engine == "vllm":
        awake, lacking = vllm_parts(shape, params, length, gpu_memory)
        plan.lacking.update(lacking)
        plan.early["start"] |= awake
        # It opens awake and gets its weights once the learner is made; torch makes optimizer states at the first step.
        plan.early["first weight sync"] = _before_first_step(plan, params) | awake | transit
        if params.rollout.vllm.sleep:
            kept = {name: size for name, size in awake.items() if name.removeprefix("vLLM: ") in KEPT_ASLEEP}
        else:
            kept = awake
        plan.standing.update(kept)
        awake = {name: size for name, size in awake.items() if name not in kept}
        plan.phases["rollouts"] = awake
        weights = {name: size for name, size in awake.items() if name in ("vLLM: weights", "vLLM: untied head")}
        plan.phases["weight sync"] = weights | transit
    elif params.rollout.engine == "vllm_server":
        plan.phases["rollouts"] = {"rollouts: none, the vLLM servers hold them": 0.0}
        size = bytes_of(params)
        buffers = transfer_buffers(params, size * shape.parameters, size * largest_weight(shape))
        plan.phases["weight sync"] = transit | buffers
        if on_ranks_gpus(params):
            beside, lacking = vllm_parts(shape, params, length, gpu_memory)
            plan.lacking.update(lacking)
            plan.early["start"] |= beside
            plan.standing.update(beside)
    else:
        awake = torch_engine_memory(shape, params, length)
        if params.rl.asynchronous is not None:
            plan.standing["sampler's copy of the weights"] = bytes_of(params) * shape.parameters
        elif divides_weights(params):
            awake["policy: gathered weights"] = bytes_of(params) * shape.parameters
        plan.phases["rollouts"] = awake
    plan.phases["scoring"] = gpu_scoring(shape, tokens, gpu_memory) | gathered_parts(shape, params, learns=False)
    if params.rl.ema and params.training.backend != "deepspeed":
        aside = 4.0 * trainable(shape, params.rl.lora) / (1 if params.rl.lora else weight_shards(params))
        plan.phases["dev evaluation"] = awake | {"policy: trained weights set aside": aside}


def export_parts(shape: ModelShape, params: Params, lora: Adapters | None) -> Parts:
    """What the export makes: a bucket of a sharded model's weights, a copy of DeepSpeed's, or merged adapters."""
    size = bytes_of(params)
    if divides_weights(params):
        return {"policy: gathered weights": size * _bucket(shape, params)}
    if params.training.backend == "deepspeed":
        return {"policy: weights without DeepSpeed": size * shape.parameters}
    return {"policy: merged adapters": size * shape.matrices if lora else 0.0}


def divides_weights(params: Params) -> bool:
    """Whether ZeRO 3 or FSDP divides the weights among the processes."""
    return fully_shards(params) or (params.training.backend == "deepspeed" and params.training.deepspeed.stage == 3)


def fully_shards(params: Params) -> bool:
    """Whether FSDP divides all that a model which learns has."""
    return params.training.backend == "fsdp"


def weight_shards(params: Params) -> int:
    """The number of processes among which FSDP divides what is as large as the weights; 1 with another backend."""
    return params.run.processes if fully_shards(params) else 1


def gathered_parts(shape: ModelShape, params: Params, *, learns: bool) -> Parts:
    """What ZeRO 3 or FSDP gathers in a pass."""
    if fully_shards(params):
        return gathered_in_a_pass(shape, params, learns=learns)
    return {"gathered weights (ZeRO 3)": gathered_at_once(shape, params)}


def _bucket(shape: ModelShape, params: Params) -> int:
    """Elements that are gathered at a time for sync and export: FSDP gathers one weight."""
    return largest_weight(shape) if fully_shards(params) else max(BUCKET, largest_weight(shape))


def largest_weight(shape: ModelShape) -> int:
    return max(shape.head, shape.width * shape.mlp)


def _in_transit(shape: ModelShape, params: Params) -> float:
    """Gathered buckets and the head, which stays until the end; one merged matrix of adapters; else nothing new."""
    if divides_weights(params):
        return bytes_of(params) * (_bucket(shape, params) + shape.head)
    return bytes_of(params) * shape.width * shape.mlp if params.rl.lora else 0.0


def _before_first_step(plan: MemoryPlan, params: Params) -> Parts:
    states_exist = params.training.backend == "deepspeed"
    return {name: size for name, size in plan.standing.items() if states_exist or not name.endswith("optimizer states")}


def gpu_update(
    shape: ModelShape,
    tokens: int,
    gpu_memory: float,
    *,
    recomputed: bool,
    trains_head: bool = True,
    gradient_bytes: float = 4.0,
) -> Parts:
    """Activations, logits and new gradients of T tokens at the moment when they are most.

    Per layer and token autograd keeps, in bfloat16: inputs and outputs of two norms 8 D; query, key, value and
    attention's output 4 (H + K) d, and a float32 number per head; gate, up and SwiGLU's output 6 I. Flash
    attention keeps no probabilities at any length. If they are `recomputed`, one layer is kept, and 2 D for the input
    of every layer. The second copies of a shared prompt's keys and values are not counted.

    Args:
        gpu_memory: in bytes; it sets how many logits exist at a time (`mathrl.models.head.most_logits`).
        trains_head: no with adapters; the head's and the embedding's gradients then do not exist.
        gradient_bytes: of a new gradient: 4 in the torch learner, which adds in float32; DeepSpeed takes the weight's.
    """
    packed = rounded_up(tokens)
    heads = (shape.heads + shape.key_heads) * shape.head_width
    layer = packed * (8.0 * shape.width + 4.0 * heads + 4.0 * shape.heads + 6.0 * shape.mlp)
    inputs = 2.0 * packed * shape.width * shape.layers
    kept = {"activations: inputs of the layers": inputs} if recomputed else {"activations": layer * shape.layers}
    head = float(shape.head) if trains_head else 0.0
    table = _table(shape, tokens, gpu_memory)
    product = 2 * head + table / 2  # of slopes and hidden states: the head's gradient in bfloat16
    embedding = (gradient_bytes if shape.tied else 0.0) * head  # the head's part, until the embedding's comes
    moments: list[Parts] = [
        {
            **kept,
            "activations: after the last layer": 6.0 * packed * shape.width,
            "logits": max(1.5 * table, product),  # in float32, and their gradient in bfloat16
            "gradient of the head": 4.0 * head,
        },
        {
            **kept,
            **({"activations: one layer": layer} if recomputed else {}),
            "temporary tensors of a layer": 4.0 * packed * shape.mlp,
            "gradient of the head": embedding,
        },
        {"gradients of head and embedding": (3 * gradient_bytes if shape.tied else 2 + gradient_bytes) * head},
    ]
    return max(moments, key=lambda parts: sum(parts.values()))


def gpu_scoring(shape: ModelShape, tokens: int, gpu_memory: float) -> Parts:
    """Activations and logits of a pass of T tokens without a gradient: inside one layer, or at the logits."""
    packed = rounded_up(tokens)
    heads = (shape.heads + shape.key_heads) * shape.head_width
    moments: list[Parts] = [
        {"activations: one layer": packed * max(4.0 * shape.width + 6.0 * shape.mlp, 6.0 * shape.width + 4.0 * heads)},
        {"hidden states": 4.0 * packed * shape.width, "logits": _table(shape, tokens, gpu_memory)},
    ]
    return max(moments, key=lambda parts: sum(parts.values()))


def _table(shape: ModelShape, tokens: int, gpu_memory: float) -> float:
    """Bytes of a table of logits in float32, of all tokens or of a slice of them."""
    return 4.0 * min(tokens * shape.vocabulary, max(MOST_LOGITS, gpu_memory / 256))


VLLM_RUNTIME = 0.27 * GIB  # measured for vLLM on a CPU; on a GPU its memory share includes everything
LEAST_CACHED = 16  # sequences for which vLLM needs cache to decode at a useful rate
# Of vLLM's parts on a GPU, those that it keeps while it sleeps: its allocator frees weights and cache alone.
KEPT_ASLEEP = ("sampler's tables", "CUDA graphs", "NCCL")


def with_engine(params: Params, device: Device) -> Params:
    """The parameters with `rollout.engine: auto` resolved, as on a machine where vLLM is installed."""
    rollout = choose_engine(params.rollout, params.model, Hardware(device), vllm_installed=True)
    return params.model_copy(update={"rollout": rollout})


def torch_engine_memory(shape: ModelShape, params: Params, length: int) -> Parts:
    """A float32 cache, doubled when it is full, and logits; with a tool also what is kept while calls run."""
    rl, rollout = params.rl, params.rollout
    share = -(-rl.prompts_per_step // params.run.processes) * rl.group_size
    sequences = min(share, max(rollout.max_sequences, rl.group_size))
    cache_row = 2.0 * shape.layers * shape.key_heads * shape.head_width * 4  # a token's keys and values
    return {
        "key-value cache": (1.5 if rollout.tool.kind == "none" else 2.5) * sequences * length * cache_row,
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


def check_vllm_share(shape: ModelShape, params: Params, gpu_memory: float) -> None:
    """Raises UserError: vLLM would refuse to start for RL on GPUs of this memory."""
    params = with_engine(params, "cuda")
    if params.rollout.engine == "vllm" or starts_servers(params):
        check_budget(*_vllm_budget(shape, params, stage_longest(params, "rl"), gpu_memory))


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
