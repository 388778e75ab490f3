"""Memory of a training process before it runs: bytes by part, from the model's shape and the parameters.

Weights, gradients, optimizer states and averages are counted exactly. Activations are what autograd keeps
for the backward pass of one micro-batch (test_memory.py counts the saved tensors); short-lived tensors are
estimates, and their parts are named so.

Symbols: P parameters, D width, I width of the MLP, H and K query and key heads of width d, V vocabulary,
T tokens of a micro-batch (with context parallelism a rank's part of them), B sequences decoded at a time.

What to change so that a run fits its GPUs: the fewest of a list of settings, mildest first.
"""

from collections.abc import Callable, Sequence

from mathrl.models.shapes import BUCKET, LONG, MOST_LOGITS, ModelShape, check_heads
from mathrl.params.advantage import Critic, Distillation
from mathrl.params.loss import TeacherLoss
from mathrl.params.schema import Params
from mathrl.params.train import Rl, Sft
from mathrl.planning.gpu_phases import (
    add_rl_phases,
    add_start,
    divides_weights,
    export_parts,
    fully_shards,
    gathered_parts,
    gpu_update,
    largest_weight,
    torch_engine_memory,
    vllm_on_cpu,
    weight_shards,
    with_engine,
)
from mathrl.planning.memory_states import (
    GIB,
    Device,
    MemoryPlan,
    Parts,
    Stage,
    adam_share,
    bytes_of,
    coded_matrices,
    critic_shape,
    divided_states,
    frozen,
    fully_sharded,
    gradients_until_step,
    half,
    trainable,
    trained_states,
)

# Measured: resident memory of a process that has imported torch, transformers and MLflow; CUDA's context.
RUNTIME = {"cpu": 0.55 * GIB, "cuda": 0.6 * GIB}
# Measured on a CPU (benchmarks/memory.py): fragments that glibc's heap keeps, as a share of the memory in use.
HEAP_KEPT = 0.4
# Bytes for each of a teacher's tokens. Of a step: float32 log-probs and int32 ids in the batch, in its mini-batch, and
# as the ranks send them; in an update: log-probs of both models with the bin, what their loss keeps, int64 ids.
OF_A_STEP, OF_AN_UPDATE = 24, 64


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

    `prompt_tokens` and `response_tokens` are the assumed lengths (default: the parameters' limits, the worst case);
    `gpu_memory` is the size of the GPU's memory in bytes, of which vLLM takes its share.

    Raises:
        UserError: the ranks that share a micro-batch cannot divide the model's heads.
    """
    check_heads(shape.heads, shape.key_heads, params.training.context_ranks)
    params = with_engine(params, device)
    prompt = prompt_tokens or params.prompt.max_tokens
    length = prompt + (response_tokens or params.rl.max_tokens)
    row = micro_batch_tokens(params, stage, prompt, length)
    tokens, longest = -(-row // params.training.context_ranks), min(length, row)
    plan = MemoryPlan({"Python, torch, transformers" if device == "cpu" else "CUDA context": RUNTIME[device]})
    _add_policy(plan, shape, params, stage, device)
    if stage == "rl":
        _add_further_weights(plan, shape, params, device)
        _add_critic(plan, shape, params, device)
    if device == "cuda":
        add_start(plan, shape, params)
        if stage == "rl":
            add_rl_phases(plan, shape, params, tokens, length, gpu_memory)
        _add_gpu_update(plan, shape, params, stage, tokens, longest, gpu_memory)
        if stage == "rl":
            _add_teacher_tokens(plan, shape, params, device, tokens)
        return plan
    _add_cpu_update(plan, shape, params, stage, tokens, longest)
    if stage == "rl":
        _add_teacher_tokens(plan, shape, params, device, tokens)
        _add_cpu_rollouts(plan, shape, params, length)
    for phase in plan.phases.values():
        phase["heap fragments (estimate)"] = HEAP_KEPT * sum(phase.values())
    return plan


def _trained_section(params: Params, stage: Stage) -> Rl | Sft:
    return params.rl if stage == "rl" else params.sft


def _zero(params: Params) -> bool:
    return params.training.backend == "deepspeed"


def _gathered_weights(shape: ModelShape, params: Params) -> float:
    """Size of the gathered weights if ZeRO 3 or FSDP divides them, else 0."""
    return bytes_of(params) * shape.parameters if divides_weights(params) else 0.0


def _rounded_copy(shape: ModelShape, params: Params) -> float:
    """The bfloat16 copy of the matrices."""
    return 2.0 * shape.matrices if params.model.precision != "float32" else 0.0


def _half(params: Params, device: Device) -> bool:
    """Whether the torch backend's models are bfloat16 as a whole, over float32 weights of the optimizer."""
    return device == "cuda" and params.model.precision != "float32"


def _add_policy(plan: MemoryPlan, shape: ModelShape, params: Params, stage: Stage, device: Device) -> None:
    section = _trained_section(params, stage)
    if _zero(params):
        bucket = min(BUCKET, trainable(shape, section.lora))
        plan.standing["communication buckets (estimate)"] = 4.0 * bytes_of(params) * bucket
        on_device, on_host = divided_states(shape, section.lora, params, "policy")
        plan.standing.update(on_device)
        plan.host.update(on_host)
    else:
        plan.standing.update(_trained_parts(shape, params, section, "policy", device))


def _trained_parts(shape: ModelShape, params: Params, section: Rl | Sft | Critic, name: str, device: Device) -> Parts:
    """What the torch or the FSDP learner holds of a model."""
    if fully_shards(params):
        return fully_sharded(shape, section, params, name)
    parts = trained_states(shape, section.optimizer, section.lora, name)
    if _half(params, device):
        return parts | half(shape, section.lora, name)
    rounded = 0.0 if coded_matrices(shape, section.lora) else _rounded_copy(shape, params)
    return parts | {f"{name}: weights rounded to {params.model.precision}": rounded}


def _add_gpu_update(
    plan: MemoryPlan, shape: ModelShape, params: Params, stage: Stage, tokens: int, length: int, gpu_memory: float
) -> None:
    """The phases of an update on a GPU, and the export."""
    section = _trained_section(params, stage)
    if params.model.precision != "float32":
        passes = gpu_update(
            shape,
            tokens,
            gpu_memory,
            recomputed=section.gradient_checkpointing,
            trains_head=section.lora is None,
            gradient_bytes=4.0 if params.training.backend == "torch" else 2.0,
        )
    else:
        passes = _passes(shape, params, stage, tokens, length)
    late = {"policy: gradients until the step": gradients_until_step(shape, section.lora, params)}
    if coded_matrices(shape, section.lora):
        passes["a weight restored from 4 bits"] = bytes_of(params) * shape.width * shape.mlp
    plan.phases["forward and backward"] = passes | late | gathered_parts(shape, params, learns=True)
    plan.phases["optimizer step"] = late
    plan.phases["export"] = export_parts(shape, params, section.lora)


def _add_cpu_update(
    plan: MemoryPlan, shape: ModelShape, params: Params, stage: Stage, tokens: int, length: int
) -> None:
    """The phases of an update (forward and backward, optimizer step), and the export's gathered weights."""
    section, whole = _trained_section(params, stage), _gathered_weights(shape, params)
    plan.phases["forward and backward"] = _passes(shape, params, stage, tokens, length)
    if whole:
        plan.phases["forward and backward"] |= gathered_parts(shape, params, learns=True)
    temporaries = 0.0 if _zero(params) else 4.0 * adam_share(shape, section.optimizer, section.lora)
    temporaries /= 1 if section.lora else weight_shards(params)
    plan.phases["optimizer step"] = {"AdamW temporaries": temporaries}
    if whole:
        plan.phases["export"] = {"policy: gathered weights": whole}


def _passes(shape: ModelShape, params: Params, stage: Stage, tokens: int, length: int) -> Parts:
    """A forward and backward pass in float32, or with float32 activations around bfloat16 products."""
    section = _trained_section(params, stage)
    recomputed, adapters = section.gradient_checkpointing, section.lora is not None
    return {
        **kept_activations(shape, tokens, length, params, recomputed, adapters),
        **logits(shape, tokens),
        "gradient of the largest weight": 4.0 * largest_weight(shape),
    }


def _add_further_weights(plan: MemoryPlan, shape: ModelShape, params: Params, device: Device) -> None:
    """The averaged and the best weights of the policy, and the reference model."""
    rl = params.rl
    kept = 4.0 * trainable(shape, rl.lora) / (1 if rl.lora else weight_shards(params))
    if rl.ema:
        plan.standing["policy: EMA of the weights"] = kept
    if rl.dev.export == "best":
        place = plan.standing if params.training.backend == "torch" else plan.host
        place["policy: best weights"] = kept
    if rl.needs_reference and rl.lora is None:
        shards = params.run.processes if divides_weights(params) else 1
        plan.standing["reference"] = _frozen_copy(shape, params, device) / shards
    if isinstance(rl.advantage, Distillation):
        shards = params.run.processes if divides_weights(params) else 1
        plan.standing["teacher (if as large as the policy)"] = _frozen_copy(shape, params, device) / shards


def _add_teacher_tokens(plan: MemoryPlan, shape: ModelShape, params: Params, device: Device, tokens: int) -> None:
    """The teacher's top-k tokens, where the loss is over them: those of a step on the CPU, those of an update."""
    rl = params.rl
    if not isinstance(rl.loss, TeacherLoss):
        return
    most = min(rl.loss.top_k, shape.vocabulary)
    sampled = rl.prompts_per_step * rl.group_size * rl.max_tokens
    place = plan.standing if device == "cpu" else plan.host
    place["teacher's tokens of a step"] = float(OF_A_STEP * sampled * most)
    plan.phases["forward and backward"]["teacher's tokens (estimate)"] = float(OF_AN_UPDATE * tokens * most)


def _frozen_copy(shape: ModelShape, params: Params, device: Device) -> float:
    if params.training.backend != "torch" or _half(params, device):
        return bytes_of(params) * shape.parameters
    return frozen(shape, _rounded_copy(shape, params))


def _add_critic(plan: MemoryPlan, shape: ModelShape, params: Params, device: Device) -> None:
    critic = params.rl.critic
    if critic is None:
        return
    scorer = critic_shape(shape)
    if _zero(params):
        on_device, on_host = divided_states(scorer, critic.lora, params, "critic")
        plan.standing.update(on_device)
        plan.host.update(on_host)
        return
    plan.standing.update(_trained_parts(scorer, params, critic, "critic", device))
    gradients = [plan.standing.pop(f"{name}: gradients") for name in ("policy", "critic")]
    plan.standing["gradients (policy, then critic)"] = max(gradients)


def _add_cpu_rollouts(plan: MemoryPlan, shape: ModelShape, params: Params, length: int) -> None:
    """vLLM never sleeps on a CPU; ZeRO 3 and FSDP gather all weights for the torch engine, for others a bucket."""
    whole, engine, sampling = _gathered_weights(shape, params), params.rollout.engine, Parts()
    if engine == "vllm":
        plan.standing.update(vllm_on_cpu(shape, params))
    elif engine == "vllm_server":
        sampling["rollouts: none, the vLLM servers hold them"] = 0.0
    else:
        sampling = torch_engine_memory(shape, params, length)
    if engine != "torch":
        bucket = bytes_of(params) * (max(BUCKET, largest_weight(shape)) + shape.head) if whole else 0.0
        sampling["weights in transit to the sampler"] = bucket
    elif params.rl.asynchronous is not None:
        plan.standing["sampler's copy of the weights"] = _frozen_copy(shape, params, "cpu")
    else:
        sampling["policy: gathered weights"] = whole
    plan.phases["rollouts"] = sampling


def micro_batch_tokens(params: Params, stage: Stage, prompt: int, length: int) -> int:
    """Tokens of the largest micro-batch: the budget, a whole mini-batch, or one response."""
    processes = max(1, params.run.processes // params.training.context_ranks)
    if stage == "sft":
        return min(params.sft.tokens_per_microbatch, -(-params.sft.tokens_per_step // processes))
    rl = params.rl
    prompts = -(-rl.prompts_per_step // (rl.minibatches * processes))
    shared = prompt + rl.group_size * (length - prompt - 1)
    minibatch = prompts * (rl.group_size * length if length > LONG else shared)
    return max(min(rl.tokens_per_microbatch, minibatch), length)


def kept_activations(
    shape: ModelShape, tokens: int, length: int, params: Params, recomputed: bool, adapters: bool = False
) -> Parts:
    """Activations of T tokens that autograd keeps until the backward pass; recomputed: one layer and the inputs.

    Per layer and token: two norms 8 D; the MLP's gate, its SiLU and up 12 I; query, key and value
    4 (H + 2 K) d; inputs of the products 4 D + 2 H d + 2 I in bfloat16, twice that in float32; and
    attention probabilities, 4 H for each key, unless the sequence is longer than LONG.
    Adapters also keep their inputs in float32: 8 D + 4 H d + 4 I.
    """
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    inputs = 4 * shape.width + 2 * queries + 2 * shape.mlp
    if params.model.precision == "float32":
        inputs = 2 * queries + 2 * inputs - 4 * shape.width
    if adapters and params.model.precision != "float32":
        inputs += 8 * shape.width + 4 * queries + 4 * shape.mlp
    layer = 8 * shape.width + 12 * shape.mlp + 4 * (queries + 2 * keys) + inputs
    probabilities = 0.0 if length > LONG else 4.0 * shape.heads * length
    kept_layers = 1 if recomputed else shape.layers
    inputs_of_layers = {"activations: inputs of the layers": 4.0 * tokens * shape.width * shape.layers}
    return {
        "activations: after the last layer": 8.0 * tokens * shape.width,
        **(inputs_of_layers if recomputed else {}),
        "activations: one layer" if recomputed else "activations": float(tokens * layer * kept_layers),
        "attention probabilities": tokens * probabilities * kept_layers,
        "temporaries of a layer (estimate)": 16.0 * tokens * max(shape.mlp, shape.width),
    }


def logits(shape: ModelShape, tokens: int) -> Parts:
    """Logits, their softmax and the loss's intermediates: five tables of T x V, or of a part of the T tokens."""
    table = 4.0 * min(tokens * shape.vocabulary, max(MOST_LOGITS, shape.vocabulary))
    return {"logits": 5 * table}


RESERVE = 0.05  # share of a GPU for what is not counted
MARGIN = 0.03  # share of a GPU beside the reserve, below which fragmentation may end a run


def saving_overrides(params: Params, stage: Stage) -> list[list[str]]:
    """Overrides that save memory, the cheapest first; those of a list belong together.

    Recomputing activations costs a third of the update's time; smaller batches of decoding, or a smaller
    cache of vLLM, cost rollout time; ZeRO costs communication; adapters (LoRA) train fewer weights, which
    is a different run; offload costs most.
    """
    params = with_engine(params, "cuda")
    section = params.rl if stage == "rl" else params.sft
    length = params.prompt.max_tokens + params.rl.max_tokens
    overrides: list[str] = []
    shares: list[list[str]] = []
    if section.tokens_per_microbatch > 2 * length:
        overrides.append(f"{stage}.tokens_per_microbatch={2 * length}")
    if not section.gradient_checkpointing:
        overrides.append(f"{stage}.gradient_checkpointing=true")
    if stage == "rl" and params.rollout.engine == "torch":
        fewest = params.rl.group_size
        overrides += [
            f"rollout.max_sequences={size}"
            for size in (512, 256, 128, 64, 32)
            if fewest <= size < params.rollout.max_sequences
        ]
    if stage == "rl" and params.rollout.engine == "vllm":
        overrides.append("rollout.vllm.sleep=true")
        share = params.rollout.vllm.memory_share
        overrides += [f"rollout.vllm.memory_share={less}" for less in (0.3, 0.2, 0.15, 0.1) if less < share]
        # Smaller tables of the sampler; a larger share, once the rest leaves it.
        overrides += [f"rollout.max_sequences={size}" for size in (256, 128, 64) if size < params.rollout.max_sequences]
        shares = [[f"rollout.vllm.memory_share={more}"] for more in (0.3, 0.4, 0.5, 0.6, 0.7) if more > share]
    deepspeed = "training.backend=deepspeed"
    changes = [[[override] for override in overrides]]
    if params.run.processes > 1:
        changes.append([[deepspeed, "training.deepspeed.stage=3"]])
    if section.lora is None:
        critic = stage == "rl" and params.rl.critic is not None
        changes.append([[f"{stage}.lora={{}}"], *([["rl.advantage.critic.lora={}"]] if critic else [])])
    changes.append([[deepspeed, "training.deepspeed.offload_optimizer=true"]])
    changes.append([[deepspeed, "training.deepspeed.stage=3", "training.deepspeed.offload_parameters=true"]])
    return [change for part in changes for change in (*part, *shares)]


def advise(
    params: Params,
    stage: Stage,
    room: float,
    resolved: Callable[[Sequence[str]], Params | None],
    planned: Callable[[Params], MemoryPlan],
) -> list[str] | None:
    """Overrides with which the run fits into `room` bytes; [] if it does already, None if none help.

    `resolved` gives the parameters with overrides, or None where the overrides contradict each other. Overrides
    are added in their order until the run fits; then each that is not needed is removed.
    """
    chosen: list[str] = []

    def need(plan: MemoryPlan) -> tuple[float, float]:
        return plan.excess(room), sum(plan.totals.values())  # of two that lack as much, the smaller in all phases

    least, candidates = need(planned(params)), iter(saving_overrides(params, stage))
    while least[0]:
        overrides = next(candidates, None)
        if overrides is None:
            return None
        more = [*chosen, *(override for override in overrides if override not in chosen)]
        changed = resolved(more)
        if changed is not None and need(planned(changed)) <= least:
            chosen, least = more, need(planned(changed))
    for override in list(chosen):
        fewer = [kept for kept in chosen if kept != override]
        changed = resolved(fewer)
        if changed is not None and not planned(changed).excess(room):
            chosen = fewer
    return chosen
