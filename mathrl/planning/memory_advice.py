"""What to change so that a run fits its GPUs: the fewest of a list of settings, mildest first."""

from collections.abc import Callable, Sequence

from mathrl.params.schema import Params
from mathrl.planning.memory_states import MemoryPlan, Stage
from mathrl.planning.rollout_memory import with_engine

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
