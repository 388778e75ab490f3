"""Memory of a training process before it runs: bytes by part, from the model's shape and the parameters.

Weights, gradients, optimizer states and averages are counted exactly. Activations are what autograd keeps
for the backward pass of one micro-batch (test_memory.py counts the saved tensors); short-lived tensors are
estimates, and their parts are named so.

Symbols: P parameters, D width, I width of the MLP, H and K query and key heads of width d, V vocabulary,
T tokens of a micro-batch, B sequences decoded at a time.
"""

from dataclasses import dataclass, field
from typing import Literal

from mathrl.learners.deepspeed_learner import BUCKET
from mathrl.models.logprobs import MOST_LOGITS
from mathrl.models.packing import LONG
from mathrl.params.schema import Params
from mathrl.params.train import Rl, Sft
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
from mathrl.planning.model_shape import ModelShape

GIB = 1 << 30
# Measured: resident memory of a process that has imported torch, transformers and MLflow; CUDA's context.
RUNTIME = {"cpu": 0.55 * GIB, "cuda": 0.6 * GIB}
VLLM_RUNTIME = 0.27 * GIB  # the same for vLLM on a CPU; on a GPU its share holds everything
# Measured on a CPU (benchmarks/memory.py): what glibc's heap holds in fragments, as a share of what is in use.
HEAP_KEPT = 0.4
LEAST_CACHED = 16  # sequences that vLLM must have room for to decode at a useful rate
Stage = Literal["sft", "rl"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one process. `standing` is held all the time, `phases` come one after the other.

    `host` is what optimizer or parameter offload puts into the CPU's memory, per process.
    """

    standing: dict[str, float]
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)

    @property
    def peak(self) -> float:
        return sum(self.standing.values()) + max((sum(phase.values()) for phase in self.phases.values()), default=0.0)

    @property
    def largest_phase(self) -> str:
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))


def plan_memory(
    shape: ModelShape,
    params: Params,
    stage: Stage,
    device: Device,
    *,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    gpu_memory: float = 80 * GIB,
) -> MemoryPlan:
    """Memory of one process of a stage.

    `prompt_tokens` and `response_tokens` are the lengths that are assumed (default: the parameters' limits,
    the worst case); `gpu_memory` in bytes is what vLLM's share is a share of.
    """
    prompt = prompt_tokens or params.prompt.max_tokens
    length = prompt + (response_tokens or params.rl.max_tokens)
    plan = MemoryPlan({"Python, torch, transformers" if device == "cpu" else "CUDA context": RUNTIME[device]})
    _add_policy(plan, shape, params, stage)
    _add_update(plan, shape, params, stage, device, prompt, length)
    if stage == "rl":
        _add_further_weights(plan, shape, params)
        _add_critic(plan, shape, params)
        _add_rollouts(plan, shape, params, device, length, gpu_memory)
    if device == "cpu":
        for phase in plan.phases.values():
            phase["heap kept free (estimate)"] = HEAP_KEPT * sum(phase.values())
    return plan


def _trained_section(params: Params, stage: Stage) -> Rl | Sft:
    return params.rl if stage == "rl" else params.sft


def _zero(params: Params) -> bool:
    return params.training.backend == "deepspeed"


def _gathered(shape: ModelShape, params: Params) -> float:
    """The whole weights where ZeRO 3 divides them and something needs them in one piece, else 0."""
    divides = _zero(params) and params.training.deepspeed.stage == 3
    return bytes_of(params) * shape.parameters if divides else 0.0


def _rounded(shape: ModelShape, params: Params) -> float:
    """The bfloat16 copy of the matrices."""
    return 2.0 * shape.matrices if params.model.precision == "bfloat16" else 0.0


def _add_policy(plan: MemoryPlan, shape: ModelShape, params: Params, stage: Stage) -> None:
    section = _trained_section(params, stage)
    if _zero(params):
        bucket = min(BUCKET, trainable(shape, section.lora))
        plan.standing["communication buckets (estimate)"] = 4.0 * bytes_of(params) * bucket
        on_device, on_host = divided(shape, section.lora, params, "policy")
        plan.standing.update(on_device)
        plan.host.update(on_host)
    else:
        plan.standing.update(trained(shape, section.optimizer, section.lora, "policy"))
        plan.standing["policy: weights rounded to bfloat16"] = _rounded(shape, params)


def _add_update(
    plan: MemoryPlan, shape: ModelShape, params: Params, stage: Stage, device: Device, prompt: int, length: int
) -> None:
    """The phases of an update: forward and backward, the optimizer step, and at the end the whole weights."""
    section = _trained_section(params, stage)
    tokens = micro_batch_tokens(params, stage, prompt, length)
    recomputed, adapters = section.gradient_checkpointing, section.lora is not None
    passes = {
        **kept_activations(shape, tokens, min(length, tokens), params, recomputed, adapters),
        **logits(shape, tokens),
        "one weight's new gradient": 4.0 * _largest_weight(shape),
    }
    whole = _gathered(shape, params)
    if whole:
        passes["weights fetched ahead or kept whole"] = fetched(shape, params)
    plan.phases["forward and backward"] = passes
    in_place = _zero(params) or device == "cuda"
    temporaries = 0.0 if in_place else 4.0 * adam_share(shape, section.optimizer, section.lora)
    plan.phases["optimizer step"] = {"AdamW's temporaries": temporaries}
    if whole:
        plan.phases["end"] = {"policy: weights, whole": whole}


def _largest_weight(shape: ModelShape) -> int:
    return max(shape.head, shape.width * shape.mlp)


def _add_further_weights(plan: MemoryPlan, shape: ModelShape, params: Params) -> None:
    """The averaged and the best weights of the policy, and the reference model."""
    rl = params.rl
    if rl.ema:
        plan.standing["policy: averaged weights"] = 4.0 * trainable(shape, rl.lora)
    if rl.export == "best":
        place = plan.host if _zero(params) else plan.standing
        place["policy: best weights"] = 4.0 * trainable(shape, rl.lora)
    if (rl.kl_coef or rl.kl_probe) and rl.lora is None:
        plan.standing["reference"] = _frozen_copy(shape, params)


def _frozen_copy(shape: ModelShape, params: Params) -> float:
    return bytes_of(params) * shape.parameters if _zero(params) else frozen(shape, _rounded(shape, params))


def _add_critic(plan: MemoryPlan, shape: ModelShape, params: Params) -> None:
    critic = params.rl.critic
    if critic is None:
        return
    scorer = critic_shape(shape)
    if _zero(params):
        on_device, on_host = divided(scorer, critic.lora, params, "critic")
        plan.standing.update(on_device)
        plan.host.update(on_host)
        return
    plan.standing.update(trained(scorer, critic.optimizer, critic.lora, "critic"))
    plan.standing["critic: weights rounded to bfloat16"] = _rounded(shape, params)
    gradients = [plan.standing.pop(f"{name}: gradients") for name in ("policy", "critic")]
    plan.standing["gradients, of policy and critic in turn"] = max(gradients)


def _add_rollouts(
    plan: MemoryPlan, shape: ModelShape, params: Params, device: Device, length: int, gpu_memory: float
) -> None:
    sampling = rollout_memory(shape, params, length, device, gpu_memory)
    asleep = device == "cuda" and params.rollout.vllm.sleep  # vLLM does not sleep on a CPU
    if params.rollout.engine == "vllm" and not asleep:
        plan.standing.update(sampling)
        sampling = {}
    whole = _gathered(shape, params)
    if params.rollout.engine != "torch":
        bucket = bytes_of(params) * (max(BUCKET, _largest_weight(shape)) + shape.head) if whole else 0.0
        sampling["weights on their way to the sampler"] = bucket
    elif params.rl.prefetch:
        plan.standing["sampler's copy of the weights"] = _frozen_copy(shape, params)
    else:
        sampling["policy: weights, whole"] = whole
    plan.phases["roll-outs"] = sampling


def micro_batch_tokens(params: Params, stage: Stage, prompt: int, length: int) -> int:
    """Tokens of a process's largest forward pass: the budget, a whole minibatch, or one response."""
    processes = params.run.processes
    if stage == "sft":
        return min(params.sft.tokens_per_microbatch, -(-params.sft.tokens_per_step // processes))
    rl = params.rl
    prompts = -(-rl.prompts_per_step // (rl.minibatches * processes))
    shared = prompt + rl.group_size * (length - prompt - 1)
    minibatch = prompts * (rl.group_size * length if length > LONG else shared)
    return max(min(rl.tokens_per_microbatch, minibatch), length)


def kept_activations(
    shape: ModelShape, tokens: int, length: int, params: Params, recomputed: bool, adapters: bool = False
) -> dict[str, float]:
    """What autograd keeps of T tokens until the backward pass; with checkpointing one layer and the inputs.

    Per layer and token: two norms 8 D; the MLP's gate, its SiLU and up 12 I; query, key and value
    4 (H + 2 K) d; inputs of the products 4 D + 2 H d + 2 I in bfloat16, twice that in float32; and
    attention's probabilities, 4 H for each key, unless the sequence is longer than LONG.
    Adapters also keep their inputs in float32: 8 D + 4 H d + 4 I.
    """
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    inputs = 4 * shape.width + 2 * queries + 2 * shape.mlp
    if params.model.precision == "float32":
        inputs = 2 * queries + 2 * inputs - 4 * shape.width
    if adapters and params.model.precision == "bfloat16":
        inputs += 8 * shape.width + 4 * queries + 4 * shape.mlp
    layer = 8 * shape.width + 12 * shape.mlp + 4 * (queries + 2 * keys) + inputs
    probabilities = 0.0 if length > LONG else 4.0 * shape.heads * length
    kept_layers = 1 if recomputed else shape.layers
    inputs_of_layers = {"activations: inputs of the layers": 4.0 * tokens * shape.width * shape.layers}
    return {
        "activations: after the layers": 8.0 * tokens * shape.width,
        **(inputs_of_layers if recomputed else {}),
        "activations: one layer" if recomputed else "activations": float(tokens * layer * kept_layers),
        "attention's probabilities": tokens * probabilities * kept_layers,
        "a layer's temporaries (estimate)": 16.0 * tokens * max(shape.mlp, shape.width),
    }


def logits(shape: ModelShape, tokens: int) -> dict[str, float]:
    """Logits, their softmax and the loss's intermediates: five tables of T x V, or of a part of the T tokens."""
    table = 4.0 * min(tokens * shape.vocabulary, max(MOST_LOGITS, shape.vocabulary))
    return {"logits": 5 * table}


def cache_row(shape: ModelShape, size: int) -> float:
    """Keys and values of a token in all layers, at `size` bytes per number."""
    return 2.0 * shape.layers * shape.key_heads * shape.head_width * size


def rollout_memory(shape: ModelShape, params: Params, length: int, device: str, gpu_memory: float) -> dict[str, float]:
    """The torch engine's cache (float32, doubled when full) and logits; vLLM's share of the GPU.

    A share too small for the weights and LEAST_CACHED sequences is counted as what those need.
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
