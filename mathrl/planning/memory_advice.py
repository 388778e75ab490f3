"""What to change so that a run fits its GPUs: the fewest of a list of settings, mildest first."""

from collections.abc import Callable, Sequence

from mathrl.params.schema import Params
from mathrl.planning.memory import Plan, Stage


def settings(params: Params, stage: Stage) -> list[str]:
    """Overrides that save memory, from those that cost nothing to those that cost most.

    Recomputing activations costs a third of the update's time; smaller batches of decoding, or a smaller
    cache of vLLM's, cost roll-out time; ZeRO costs communication; adapters (LoRA) train fewer weights, so
    another run; offload costs most.
    """
    part = params.rl if stage == "rl" else params.sft
    length = params.prompt.max_tokens + params.rl.max_tokens
    out: list[str] = []
    if part.tokens_per_microbatch > 2 * length:
        out.append(f"{stage}.tokens_per_microbatch={2 * length}")
    if not part.gradient_checkpointing:
        out.append(f"{stage}.gradient_checkpointing=true")
    if stage == "rl" and params.rollout.engine == "torch":
        fewest = params.rl.group_size
        out += [
            f"rollout.max_sequences={size}"
            for size in (512, 256, 128, 64, 32)
            if fewest <= size < params.rollout.max_sequences
        ]
    if stage == "rl" and params.rollout.engine == "vllm":
        out.append("rollout.vllm.sleep=true")
        share = params.rollout.vllm.memory_share
        out += [f"rollout.vllm.memory_share={less}" for less in (0.3, 0.2, 0.15, 0.1) if less < share]
    if params.run.processes > 1:
        out += ["training.backend=deepspeed", "training.deepspeed.stage=3"]
    if part.lora is None:
        critic = stage == "rl" and params.rl.critic is not None
        out.append(f"{stage}.lora={{}}")
        out += ["rl.critic.lora={}"] if critic else []
    out += ["training.backend=deepspeed", "training.deepspeed.offload_optimizer=true"]
    out += ["training.deepspeed.stage=3", "training.deepspeed.offload_parameters=true"]
    return list(dict.fromkeys(out))


def advise(
    params: Params,
    stage: Stage,
    room: float,
    resolved: Callable[[Sequence[str]], Params | None],
    planned: Callable[[Params], Plan],
) -> list[str] | None:
    """Overrides with which the peak is at most `room` bytes; none if it is so already, None if none helps.

    `resolved` gives the parameters with overrides, or None where they do not fit together. Settings are added
    in their order until the run fits; then each that is not needed is taken back.
    """
    chosen: list[str] = []
    peak, more = planned(params).peak, iter(settings(params, stage))
    while peak > room:
        setting = next(more, None)
        if setting is None:
            return None
        tried = resolved([*chosen, setting])
        if tried is not None and planned(tried).peak <= peak:
            chosen, peak = [*chosen, setting], planned(tried).peak
    for setting in list(chosen):
        without = [each for each in chosen if each != setting]
        tried = resolved(without)
        if tried is not None and planned(tried).peak <= room:
            chosen = without
    return chosen
