"""`mathrl plan`: memory of a run by part before it is started, and what to change where it does not fit."""

import re
from collections.abc import Mapping, Sequence

from mathrl.core.errors import UserError
from mathrl.params.load import load_params
from mathrl.params.schema import Params
from mathrl.planning.memory import GIB, Plan, Stage, plan_memory
from mathrl.planning.memory_advice import advise
from mathrl.planning.model_shape import config_of, shape_of

UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 1 << 20, "gib": GIB}
SPARE = 0.05  # of a GPU, for what is not counted


def plan(
    preset: str | None,
    overrides: Sequence[str],
    gpus: int | None,
    gpu_memory: str | None,
    prompt_tokens: int | None,
    response_tokens: int | None,
) -> bool:
    """Print the plan of sft (where it trains) and rl; returns whether everything fits.

    Without `gpu_memory` it is the laptop's: processes on CPUs that share one memory.
    """
    given = [*overrides, *([f"run.processes={gpus}"] if gpus else [])]
    params = load_params(preset=preset, overrides=given)
    shape = shape_of(config_of(params.model.base))
    memory = size_in_bytes(gpu_memory) if gpu_memory else None

    def resolved(more: Sequence[str]) -> Params | None:
        try:
            return load_params(preset=preset, overrides=[*given, *more])
        except UserError:
            return None

    print(f"{shape.parameters / 1e6:,.1f} million parameters, {params.run.processes} processes")
    fits = True
    stages: list[Stage] = ["sft", "rl"] if params.sft.steps else ["rl"]
    for stage in stages:

        def planned(chosen: Params, stage: Stage = stage) -> Plan:
            return plan_memory(
                shape,
                chosen,
                stage,
                "cuda" if memory else "cpu",
                prompt_tokens=prompt_tokens,
                response_tokens=response_tokens,
                gpu_memory=memory or 0.0,
            )

        show(stage, planned(params), params.run.processes, memory)
        if memory is None:
            continue
        room = memory * (1 - SPARE)
        changes = advise(params, stage, room, resolved, planned)
        if changes is None:
            print(f"  does not fit {gpu_memory} by any setting: take more GPUs (--gpus) or a smaller model")
            fits = False
        elif changes:
            fits = False
            after = resolved(changes)
            print("  does not fit; with these it does:")
            print("".join(f"    --set '{change}'\n" for change in changes), end="")
            if after is not None:
                show(f"{stage}, changed so", planned(after), after.run.processes, memory)
        else:
            share = (room - planned(params).peak) / memory
            print(f"  fits {gpu_memory}; {share:.0%} of it is left")
    return fits


def show(title: str, plan: Plan, processes: int, memory: float | None) -> None:
    """One line a part that is not negligible, and the sums."""
    print(
        f"\n{title}: {plan.peak / GIB:.2f} GiB a process"
        + ("" if memory else f", {plan.peak * processes / GIB:.2f} GiB in all")
    )
    _parts("all the time", plan.standing)
    for name, parts in plan.phases.items():
        _parts(name + (" (the largest)" if name == plan.largest_phase else ""), parts)
    if plan.host:
        _parts("in the CPU's memory", plan.host)


def _parts(title: str, parts: Mapping[str, float]) -> None:
    total = sum(parts.values())
    print(f"  {title:<40} {total / GIB:>8.2f} GiB")
    for name, size in parts.items():
        if size >= 0.005 * GIB:
            print(f"    {name:<38} {size / GIB:>8.2f}")


def size_in_bytes(text: str) -> float:
    """
    >>> size_in_bytes("24GB"), size_in_bytes("1.5 GiB")
    (24000000000.0, 1610612736.0)

    Raises:
        UserError: it is no size.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in UNITS or match[1].count(".") > 1:
        raise UserError(f"{text!r} is no size of a memory; write it as 24GB or 80GiB")
    return float(match[1]) * UNITS[match[2].lower()]
