"""What to change so that a run fits its GPUs: the fewest of a list of settings, mildest first."""

from collections.abc import Callable, Sequence

from mathrl.params.schema import Params
from mathrl.planning.memory import MemoryPlan, Stage


def saving_overrides(params: Params, stage: Stage) -> list[str]:
    """Overrides that save memory, from those that cost nothing to those that cost most.

    Recomputing activations costs a third of the update's time; smaller batches of decoding, or a smaller
    cache of vLLM, cost rollout time; ZeRO costs communication; adapters (LoRA) train fewer weights, which
    is a different run; offload costs most.
    """
    section = params.rl if stage == "rl" else params.sft
    length = params.prompt.max_tokens + params.rl.max_tokens
    overrides: list[str] = []
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
    if params.run.processes > 1:
        overrides += ["training.backend=deepspeed", "training.deepspeed.stage=3"]
    if section.lora is None:
        critic = stage == "rl" and params.rl.critic is not None
        overrides.append(f"{stage}.lora={{}}")
        overrides += ["rl.critic.lora={}"] if critic else []
    overrides += ["training.backend=deepspeed", "training.deepspeed.offload_optimizer=true"]
    overrides += ["training.deepspeed.stage=3", "training.deepspeed.offload_parameters=true"]
    return list(dict.fromkeys(overrides))


def advise(
    params: Params,
    stage: Stage,
    room: float,
    resolved: Callable[[Sequence[str]], Params | None],
    planned: Callable[[Params], MemoryPlan],
) -> list[str] | None:
    """Overrides with which the peak is at most `room` bytes; [] if it is already, None if none help.

    `resolved` gives the parameters with overrides, or None where the overrides contradict each other. Overrides
    are added in their order until the run fits; then each that is not needed is removed.
    """
    chosen: list[str] = []
    peak, candidates = planned(params).peak, iter(saving_overrides(params, stage))
    while peak > room:
        override = next(candidates, None)
        if override is None:
            return None
        changed = resolved([*chosen, override])
        if changed is not None and planned(changed).peak <= peak:
            chosen, peak = [*chosen, override], planned(changed).peak
    for override in list(chosen):
        fewer = [kept for kept in chosen if kept != override]
        changed = resolved(fewer)
        if changed is not None and planned(changed).peak <= room:
            chosen = fewer
    return chosen
