"""Estimate the memory of a run by part, or what an evaluation needs (mathrl plan evaluate).

If the run does not fit, mathrl plan shows what to change and exits with status 1. --simulate estimates seconds per step
at any size: colocated, one step ahead and asynchronous.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mathrl.cli.options import Overrides, Preset
from mathrl.cli.plan_evaluation import evaluate
from mathrl.cli.simulate import show_simulation
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.params.load import load_params
from mathrl.params.schema import Params
from mathrl.stages.rl import DIFFICULTY, check_skill

if TYPE_CHECKING:
    from mathrl.models.model_shape import ModelShape
    from mathrl.planning.memory_states import MemoryPlan, Stage

GIB = 1 << 30
UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 1 << 20, "gib": GIB}
RESERVE = 0.05  # share of a GPU for what is not counted


plan = typer.Typer(name="plan", help=__doc__, invoke_without_command=True, add_completion=False)
plan.command()(evaluate)


@plan.callback()
def plan_run(
    context: typer.Context,
    preset: Preset = None,
    overrides: Overrides = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs, with one process each.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Memory of one GPU, e.g. 24GB; omit to plan for CPU.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Typical length of a prompt, not the longest.")] = None,
    response_tokens: Annotated[int | None, typer.Option(help="Typical length of a response, not the longest.")] = None,
    simulate: Annotated[
        str | None, typer.Option(help="Simulate a cluster instead: a file of params/simulate, by name or path.")
    ] = None,
) -> None:
    """Print the plan of a run, unless a subcommand plans something else."""
    if context.invoked_subcommand:
        return
    if simulate is not None:
        show_simulation(simulate)
        return
    from mathrl.models.model_shape import config_of, shape_of
    from mathrl.planning.memory import plan_memory  # torch and transformers: --help answers without them
    from mathrl.planning.memory_advice import advise
    from mathrl.planning.rollout_memory import check_vllm_share

    settings = [*(overrides or ()), *([f"run.processes={gpus}"] if gpus else [])]
    params = load_params(preset=preset, overrides=settings)
    config = config_of(params.model.base)
    params.training.check_ranks(params.run.processes)
    shape = shape_of(config)
    memory = size_in_bytes(gpu_memory) if gpu_memory else None

    def resolved(changes: Sequence[str]) -> Params | None:
        try:
            return load_params(preset=preset, overrides=[*settings, *changes])
        except UserError:
            return None

    processes = params.run.processes
    together = f", groups of {shared} share each micro-batch" if (shared := params.training.context_ranks) > 1 else ""
    print(f"{shape.parameters / 1e6:,.1f} million parameters, {processes} process{'es' * (processes != 1)}{together}")
    if params.rl.kept_size:
        print(f"rl.keep_rollouts: {params.rl.kept_size}")
    fits = True
    stages: list[Stage] = ["sft", "rl"] if params.sft.steps else ["rl"]
    for stage in stages:

        def planned(chosen: Params, stage: "Stage" = stage) -> "MemoryPlan":
            return plan_memory(
                shape,
                chosen,
                stage,
                "cuda" if memory else "cpu",
                prompt_tokens=prompt_tokens,
                response_tokens=response_tokens,
                gpu_memory=memory or 0.0,
            )

        show(stage, planned(params), processes, memory)
        if memory is None:
            continue
        if stage == "rl" and not show_servers(shape, params, memory):
            fits = False
        if planned(params).lacking:
            show_refusal(planned(params), lambda: check_vllm_share(shape, params, memory))
        room = memory * (1 - RESERVE)
        changes = advise(params, stage, room, resolved, planned)
        if changes is None:
            print(f"  does not fit {gpu_memory} with any setting: use more GPUs (--gpus) or a smaller model")
            fits = False
        elif changes:
            fits = False
            after = resolved(changes)
            print("  does not fit; it fits with these settings:")
            print("".join(f"    --set '{change}'\n" for change in changes), end="")
            if after is not None:
                show(f"{stage}, changed", planned(after), after.run.processes, memory)
        else:
            share = (room - planned(params).peak) / memory
            print(f"  fits {gpu_memory}; {share:.0%} of it is left")
    if not fits:
        raise SystemExit(1)
    show_time(params, shape)


def show_time(params: Params, shape: "ModelShape") -> None:
    """Print the learning rates and the time of each stage, if an evaluation has measured the model's speed here."""
    import torch

    from mathrl.models.load import plain_dtype
    from mathrl.planning.run_time import measured_speed, planned_time, product_rate

    base, root = params.model.base, main_checkout()
    if base.type == "fresh":
        return
    rates = {"sft.lr": params.sft.lr} if params.sft.steps else {}
    print("\nlearning rates: " + ", ".join(f"{key} {lr:g}" for key, lr in {**rates, "rl.lr": params.rl.lr}.items()))
    speed = measured_speed(base.path, root / "reports" / "evaluations")
    if speed is None:
        command = f"mathrl evaluate --model {shlex.quote(base.path)} --benchmark test"
        print(f"time: not known; measure the model's speed first: {command}")
        return
    device = torch.device("cuda" if torch.cuda.is_available() and params.run.device != "cpu" else "cpu")
    operations = product_rate(shape, device, plain_dtype(params.model))
    files = {split: root / "data" / "curated" / f"{split}.jsonl" for split in ("rl", "test")}
    problems = {split: file.read_bytes().count(b"\n") for split, file in files.items() if file.exists()}
    print(
        f"time on this machine, at {speed.tokens_per_second:,.0f} tokens/s and {speed.response_tokens:,.0f} tokens per "
        f"response as evaluated, and {operations / 1e9:,.0f} GFLOP/s:"
    )
    total = 0.0
    for planned in planned_time(params, shape, speed, operations, problems):
        total += planned.seconds
        print(f"  {planned.part:<12} {duration(planned.seconds):>8}   {planned.account}")
    print(f"  {'together':<12} {duration(total):>8}   without start-up, grading and weight sync")
    if (root / DIFFICULTY).exists() and not params.sft.steps:  # SFT would change the pass rates
        try:
            check_skill(root / DIFFICULTY, params.rl.min_pass_at_8)
        except UserError as error:
            print(f"rl would not start: {error}")
            return
    print("next: mathrl run pipeline")


def duration(seconds: float) -> str:
    """A time as a person says it.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def show(title: str, plan: "MemoryPlan", processes: int, memory: float | None) -> None:
    """Print one line per part that is not negligible, and the sums."""
    print(
        f"\n{title}: {plan.peak / GIB:.2f} GiB per process"
        + ("" if memory else f", {plan.peak * processes / GIB:.2f} GiB in total")
    )
    if plan.early:
        print("before the first update, all that is held:")
    for name, parts in plan.early.items():
        _parts(name, parts, name == plan.largest_phase)
    if plan.early:
        print("from the first update on:")
    _parts("in every phase", plan.standing)
    for name, parts in plan.phases.items():
        _parts("also in: " + name, parts, name == plan.largest_phase)
    if plan.host:
        _parts("CPU memory (offload)", plan.host)


def show_servers(shape: "ModelShape", params: Params, memory: float) -> bool:
    """Print what the servers that the stage starts hold on GPUs of their own; whether it fits."""
    from mathrl.planning.rollout_memory import (
        check_vllm_share,
        longest_request,
        on_ranks_gpus,
        starts_servers,
        vllm_parts,
    )

    if not starts_servers(params) or on_ranks_gpus(params):
        return True
    count, parallel = params.rollout.servers.start, params.rollout.vllm.tensor_parallel
    needed = longest_request(params)
    longest = params.rollout.vllm.max_model_length or needed
    parts, lacking = vllm_parts(shape, params, longest, memory)
    print(f"\nservers: {count}, each on {parallel} GPU{'s' * (parallel != 1)} of its own, for {longest:,} tokens")
    if longest != params.rollout.vllm.max_model_length:
        print(f"  set rollout.vllm.max_model_length to {needed}: without it a server takes the model's own length")
    _parts("each GPU", parts)
    try:
        check_vllm_share(shape, params, memory)
    except UserError as error:
        print(f"  {error}")
        return False
    for name, size in lacking.items():
        print(f"  {name}: {size / GIB:.2f} GiB are missing: raise rollout.vllm.memory_share")
    return not lacking


def show_refusal(plan: "MemoryPlan", check: Callable[[], None]) -> None:
    """Print what vLLM's share lacks, or `check`'s error: the one with which the stage would refuse to start."""
    try:
        check()
        print("".join(f"  {name}: {size / GIB:.2f} GiB are missing\n" for name, size in plan.lacking.items()), end="")
    except UserError as error:
        print(f"  {error}")


def _parts(title: str, parts: Mapping[str, float], peak: bool = False) -> None:
    total = sum(parts.values())
    print(f"  {title + ' (peak)' * peak:<40} {total / GIB:>8.2f} GiB")
    for name, size in parts.items():
        if size >= 0.005 * GIB:
            print(f"    {name:<38} {size / GIB:>8.2f}")


def size_in_bytes(text: str) -> float:
    """A memory size as a person writes it.

    >>> size_in_bytes("24GB"), size_in_bytes("1.5 GiB")
    (24000000000.0, 1610612736.0)

    Raises:
        UserError: `text` is not a size.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in UNITS or match[1].count(".") > 1:
        raise UserError(f"{text!r} is not a memory size; write it as 24GB or 80GiB")
    return float(match[1]) * UNITS[match[2].lower()]
