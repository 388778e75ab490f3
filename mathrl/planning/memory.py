"""Memory of a training process before it runs: bytes by part, from the model's shape and the parameters.

Weights, gradients, optimizer states and averages are counted exactly. Activations are what autograd keeps
for the backward pass of one micro-batch (test_memory.py counts the saved tensors); what lives for a moment
only is estimated, and said to be so by the part's name.

Symbols: P parameters, D width, I width of the MLP, H and K query and key heads of width d, V vocabulary,
T tokens of a micro-batch, B sequences decoded at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mathrl.learners.deepspeed_learner import BUCKET
from mathrl.models.logprobs import MOST_LOGITS
from mathrl.models.packing import LONG
from mathrl.params.schema import Params
from mathrl.planning.memory_states import (
    adam_share,
    bytes_of,
    critic_shape,
    divided,
    fetched,
    frozen,
    trainable,
    trained,
)
from mathrl.planning.model_shape import Shape

GIB = 1 << 30
# Measured: resident memory of a process that has imported torch, transformers and MLflow; CUDA's context.
RUNTIME = {"cpu": 0.55 * GIB, "cuda": 0.6 * GIB}
VLLM_RUNTIME = 0.27 * GIB  # the same of vLLM on a CPU; on a GPU its share holds everything
# Measured on a CPU (benchmarks/memory.py): glibc's heap holds so much more than is in use, in pieces.
HEAP_KEPT = 0.4
LEAST_CACHED = 16  # sequences that vLLM must have room for, or it decodes too few at a time to be of use
Stage = Literal["sft", "rl"]


@dataclass(frozen=True)
class Plan:
    """Bytes of one process. `standing` is there all the time, `phases` come one after the other.

    `host` is what optimizer or parameter offload puts into the CPU's memory, of one process.
    """

    standing: Mapping[str, float]
    phases: Mapping[str, Mapping[str, float]]
    host: Mapping[str, float] = field(default_factory=dict)

    @property
    def peak(self) -> float:
        return sum(self.standing.values()) + max((sum(phase.values()) for phase in self.phases.values()), default=0.0)

    @property
    def largest_phase(self) -> str:
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))


def plan_memory(
    shape: Shape,
    params: Params,
    stage: Stage,
    device: Literal["cpu", "cuda"],
    *,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    gpu_memory: float = 80 * GIB,
) -> Plan:
    """Memory of one process of a stage.

    `prompt_tokens` and `response_tokens` are the lengths that are reckoned with (the parameters' limits if
    not given: the worst case); `gpu_memory` in bytes is what vLLM's share is a share of.
    """
    part = params.rl if stage == "rl" else params.sft
    rounded = 2.0 * shape.matrices if params.model.precision == "bfloat16" else 0.0
    standing = {"Python, torch, transformers" if device == "cpu" else "CUDA context": RUNTIME[device]}
    zero = params.training.backend == "deepspeed"
    host: dict[str, float] = {}
    if zero:
        sent = min(BUCKET, trainable(shape, part.lora))
        standing["communication buckets (estimate)"] = 4.0 * bytes_of(params) * sent
        own, host = divided(shape, part.lora, params, "policy")
        standing |= own
    else:
        standing |= trained(shape, part.optimizer, part.lora, "policy")
        standing["policy: weights rounded to bfloat16"] = rounded
    length = (prompt_tokens or params.prompt.max_tokens) + (response_tokens or params.rl.max_tokens)
    tokens = micro_batch_tokens(params, stage, prompt_tokens or params.prompt.max_tokens, length)
    passes = {
        **kept_activations(
            shape, tokens, min(length, tokens), params, part.gradient_checkpointing, part.lora is not None
        ),
        **logits(shape, tokens),
    }
    biggest = max(shape.head, shape.width * shape.mlp)
    passes["one weight's new gradient"] = 4.0 * biggest
    divides = zero and params.training.deepspeed.stage == 3
    whole = bytes_of(params) * shape.parameters if divides else 0.0
    if divides:
        passes["weights fetched ahead or kept whole"] = fetched(shape, params)
    phases: dict[str, dict[str, float]] = {"forward and backward": passes}
    phases["optimizer step"] = {
        "AdamW's temporaries": 0.0 if zero or device == "cuda" else 4.0 * adam_share(shape, part.optimizer, part.lora)
    }
    if divides:
        phases["end"] = {"policy: weights, whole": whole}
    if stage == "rl":
        rl = params.rl
        if rl.ema:
            standing["policy: averaged weights"] = 4.0 * trainable(shape, rl.lora)
        if rl.export == "best":
            best = {"policy: best weights": 4.0 * trainable(shape, rl.lora)}
            host, standing = (host | best, standing) if zero else (host, standing | best)
        if (rl.kl_coef or rl.kl_probe) and rl.lora is None:
            standing["reference"] = bytes_of(params) * shape.parameters if zero else frozen(shape, rounded)
        if rl.critic is not None:
            scorer = critic_shape(shape)
            if zero:
                own, moved = divided(scorer, rl.critic.lora, params, "critic")
                standing, host = standing | own, host | moved
            else:
                standing |= trained(scorer, rl.critic.optimizer, rl.critic.lora, "critic")
                standing["critic: weights rounded to bfloat16"] = rounded
                both = [standing.pop(f"{name}: gradients") for name in ("policy", "critic")]
                standing["gradients, of policy and critic in turn"] = max(both)
        sampling = rollout_memory(shape, params, length, device, gpu_memory)
        asleep = device == "cuda" and params.rollout.vllm.sleep  # it does not sleep on a CPU
        if params.rollout.engine == "vllm" and not asleep:
            standing, sampling = standing | sampling, {}
        if params.rollout.engine != "torch":
            bucket = bytes_of(params) * (max(BUCKET, biggest) + shape.head) if divides else 0.0
            sampling["weights on their way to the sampler"] = bucket
        elif rl.prefetch:
            copied = bytes_of(params) * shape.parameters if zero else frozen(shape, rounded)
            standing["sampler's copy of the weights"] = copied
        else:
            sampling["policy: weights, whole"] = whole
        phases["roll-outs"] = sampling
    if device == "cpu":
        for phase in phases.values():
            phase["heap kept free (estimate)"] = HEAP_KEPT * sum(phase.values())
    return Plan(standing, phases, host)


def micro_batch_tokens(params: Params, stage: Stage, prompt: int, length: int) -> int:
    """Tokens of a process's largest forward pass: the budget, or all of a minibatch, or one response."""
    processes = params.run.processes
    if stage == "sft":
        return min(params.sft.tokens_per_microbatch, -(-params.sft.tokens_per_step // processes))
    rl = params.rl
    prompts = -(-rl.prompts_per_step // (rl.minibatches * processes))
    shared = prompt + rl.group_size * (length - prompt - 1)
    everything = prompts * (rl.group_size * length if length > LONG else shared)
    return max(min(rl.tokens_per_microbatch, everything), length)


def kept_activations(
    shape: Shape, tokens: int, length: int, params: Params, recomputed: bool, adapters: bool = False
) -> dict[str, float]:
    """What autograd keeps of T tokens until the backward pass; with checkpointing one layer and the inputs.

    Of a layer and token: two norms 8 D; the MLP's gate, its SiLU and up 12 I; query, key and value
    4 (H + 2 K) d; inputs of the products 4 D + 2 H d + 2 I in bfloat16, twice that in float32; and
    attention's probabilities, 4 H for each key, unless the sequence is so long that they are not kept.
    Adapters keep their inputs in float32 beside: 8 D + 4 H d + 4 I.
    """
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    inputs = 4 * shape.width + 2 * queries + 2 * shape.mlp
    if params.model.precision == "float32":
        inputs = 2 * queries + 2 * inputs - 4 * shape.width
    if adapters and params.model.precision == "bfloat16":
        inputs += 8 * shape.width + 4 * queries + 4 * shape.mlp
    layer = 8 * shape.width + 12 * shape.mlp + 4 * (queries + 2 * keys) + inputs
    probabilities = 0.0 if length > LONG else 4.0 * shape.heads * length
    after = {"activations: after the layers": 8.0 * tokens * shape.width}
    if not recomputed:
        return after | {
            "activations": float(tokens * layer * shape.layers),
            "attention's probabilities": tokens * probabilities * shape.layers,
            "a layer's temporaries (estimate)": 16.0 * tokens * max(shape.mlp, shape.width),
        }
    return after | {
        "activations: inputs of the layers": 4.0 * tokens * shape.width * shape.layers,
        "activations: one layer": float(tokens * layer),
        "attention's probabilities": tokens * probabilities,
        "a layer's temporaries (estimate)": 16.0 * tokens * max(shape.mlp, shape.width),
    }


def logits(shape: Shape, tokens: int) -> dict[str, float]:
    """Logits, their softmax, and what the loss makes of them: five tables of T V, or of a part of them."""
    table = 4.0 * min(tokens * shape.vocabulary, max(MOST_LOGITS, shape.vocabulary))
    return {"logits": 5 * table}


def cache_row(shape: Shape, size: int) -> float:
    """Keys and values of a token in all layers, at `size` bytes a number."""
    return 2.0 * shape.layers * shape.key_heads * shape.head_width * size


def rollout_memory(shape: Shape, params: Params, length: int, device: str, gpu_memory: float) -> dict[str, float]:
    """The torch engine's cache (float32, doubled when full) and logits; vLLM's share of the GPU.

    Of a share that does not hold its weights and some sequences, what it needs is counted.
    """
    rl, rollout = params.rl, params.rollout
    if rollout.engine == "vllm_server":
        return {"roll-outs: none here, the servers have them": 0.0}
    if rollout.engine == "vllm":
        if device == "cuda":
            least = bytes_of(params) * shape.parameters + LEAST_CACHED * length * cache_row(shape, 2)
            share = rollout.vllm.memory_share * gpu_memory
            return {"vLLM: weights and cache": max(share, least / rollout.vllm.tensor_parallel)}
        cache = (rollout.vllm.cache_gib or 1) * GIB
        untied = shape.parameters + (shape.head if shape.tied else 0)
        weights = bytes_of(params) * untied
        return {"vLLM": VLLM_RUNTIME, "vLLM: weights": weights, "vLLM: cache": float(cache)}
    share = -(-rl.prompts_per_step // params.run.processes) * rl.group_size
    sequences = min(share, max(rollout.max_sequences, rl.group_size))
    return {
        "key-value cache": 1.5 * sequences * length * cache_row(shape, 4),
        "logits of the next token": 5.0 * 4 * sequences * shape.vocabulary,
    }
