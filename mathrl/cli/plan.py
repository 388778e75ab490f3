"""Estimate the memory of a run by part, or what an evaluation needs (mathrl plan evaluate).

The verdict comes first. If the run does not fit, it has what to change, and the exit status is 1. --simulate estimates
seconds per step at any size: colocated, one step ahead and asynchronous.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import astuple
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer
from typer.core import TyperGroup

from mathrl.cli.fit import fit_params, hardware_chosen, judge_lengths, named_hardware
from mathrl.cli.options import Overrides, Presets, as_words, join_presets
from mathrl.cli.output import AsJson, print_document
from mathrl.cli.plan_evaluation import evaluate
from mathrl.compose import load_params
from mathrl.compose.load import choice_notes
from mathrl.core.errors import EXIT_NO, UserError
from mathrl.core.files import read_json
from mathrl.core.paths import is_group, main_checkout
from mathrl.core.types import read_problems
from mathrl.params.load import FOLDER
from mathrl.params.schema import STAGES, Params
from mathrl.planning import simulate as simulation
from mathrl.planning.final_values import judge
from mathrl.stages.difficulty import PROBLEMS
from mathrl.stages.rl import DIFFICULTY, check_skill

if TYPE_CHECKING:
    from mathrl.models.shapes import ModelShape
    from mathrl.planning.memory_states import MemoryPlan, Stage

GIB = 1 << 30
MOST_GB = 1000.0  # below it a number without a unit means GB
UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 1 << 20, "gib": GIB}
NO_START = "rl would not start"


class PlanGroup(TyperGroup):
    """`mathrl plan data=gsm8k …`: groups stand where a subcommand could, and are options of the plan itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = next((at for at, word in enumerate(args) if word in self.commands), len(args))
        words = list[str]()
        for at, word in enumerate(args[:end]):
            option = at > 0 and args[at - 1] in ("--set", "--preset")
            words += ["--set", word] if is_group(word) and not option else [word]
        return super().parse_args(ctx, [*words, *args[end:]])


plan = typer.Typer(name="plan", cls=PlanGroup, help=__doc__, invoke_without_command=True, add_completion=False)
plan.command()(evaluate)


@plan.callback()
def plan_run(
    context: typer.Context,
    presets: Presets = None,
    overrides: Overrides = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs, with one process each.")] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(help="Memory of one GPU, e.g. 24GB; default: as hardware=1x24GB says, else for the CPU."),
    ] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Typical length of a prompt, not the longest.")] = None,
    response_tokens: Annotated[int | None, typer.Option(help="Typical length of a response, not the longest.")] = None,
    simulate: Annotated[
        str | None, typer.Option(help="Simulate a cluster instead: a set-up by name, or a YAML file.")
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Derive lengths, rates and what fits, and write them to params/.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the plan of a run, such as data=gsm8k model=FOLDER hardware=1x24GB, unless a subcommand plans something
    else."""
    if context.invoked_subcommand:
        return
    if simulate is not None:
        return show_simulation(simulate, as_json)
    preset, settings = join_presets(presets), list(overrides or ())
    if gpu_memory and re.fullmatch(r"[0-9.\s]+", gpu_memory):
        gpu_memory = f"{gpu_memory.strip()}GB"
        print(f"--gpu-memory: read as {gpu_memory}")
    memory = size_in_bytes(gpu_memory) if gpu_memory else None
    settings += named_hardware(preset, settings, gpus, memory, fit=fit)
    if fit:
        settings += fit_params(preset, settings)
    hardware = hardware_chosen(preset, settings)
    if hardware is not None and memory is None:
        gpu_memory, memory = f"{hardware.memory / 1e9:g}GB", float(hardware.memory)
    if gpus and memory is None:
        settings.append(f"run.processes={gpus}")
    from mathrl.models.model_shape import config_of, shape_of  # torch: --help answers without it

    params = load_params(preset=preset, overrides=settings)
    config = config_of(params.model.base)
    params.training.check_ranks(params.run.processes)
    shape = shape_of(config)

    def resolve(changes: Sequence[str]) -> Params | None:
        try:
            return load_params(preset=preset, overrides=[*settings, *changes])
        except UserError:
            return None

    details, verdict = io.StringIO(), list[str]()
    with redirect_stdout(details):  # the verdict is known last and printed first
        fits = _plan_memory(shape, params, resolve, memory, gpu_memory or "", (prompt_tokens, response_tokens), verdict)
        if fits:
            verdict += show_time(params, shape, preset, settings)
    cut = chain(*judge_lengths(params, STAGES, settings))
    noted = [*choice_notes(FOLDER, preset, settings), *chain(*judge(params, ("sft", "rl"), settings)), *cut]
    if as_json:
        print_document({"fits": fits, "verdict": verdict, "warnings": noted, "details": details.getvalue()})
    else:
        print("\n".join(verdict))
        for line in noted:
            print(f"warning: {line}")
        print(f"\n{details.getvalue()}", end="")
    if not fits:
        raise SystemExit(EXIT_NO)


def show_simulation(name: str, as_json: bool) -> None:
    setup = simulation.load_setup(name)
    modes = {mode: simulation.simulate(setup, mode) for mode in simulation.MODES}
    if as_json:
        print_document({"description": setup.description, "gpus": setup.gpus, "nodes": setup.nodes, "modes": modes})
        return
    gpus = f"{setup.gpus} GPUs in {setup.nodes} nodes ({setup.apart} of them sample unless colocated)"
    print(setup.description.strip(), f"{gpus}, {setup.responses:,} responses per step\n", sep="\n")
    print(" " * 19 + "step s  sample s  train s   wait s  sync s  samplers busy  stale   speed")
    for mode, times in modes.items():
        row = "{:<16}{:>9.1f}{:>10.1f}{:>9.1f}{:>9.1f}{:>8.1f}{:>15.0%}{:>7.2f}".format(mode, *astuple(times))
        print(f"{row}{modes['colocated'].step_seconds / times.step_seconds:>7.2f}x")


def _plan_memory(
    shape: "ModelShape",
    params: Params,
    resolved: Callable[[Sequence[str]], Params | None],
    memory: float | None,
    gpu_memory: str,
    lengths: tuple[int | None, int | None],
    verdict: list[str],
) -> bool:
    """Print the memory of each stage by part, and append a line on each to `verdict`; whether all fit.

    Args:
        resolved: The parameters with changes, None if they are refused.
        memory: Of one GPU, in bytes; None: the run is on the CPU. `gpu_memory` is what the person typed.
        lengths: Typical lengths of a prompt and a response, None: the limits.
    """
    from mathrl.planning.gpu_phases import check_vllm_share
    from mathrl.planning.memory import MARGIN, RESERVE, advise, plan_memory

    processes = params.run.processes
    together = f", groups of {shared} share each micro-batch" if (shared := params.training.context_ranks) > 1 else ""
    print(f"{shape.parameters / 1e6:,.1f} million parameters, {processes} process{'es' * (processes != 1)}{together}")
    if params.rl.kept_size:
        print(f"rl.keep_rollouts: {params.rl.kept_size}")
    fits = True
    stages: list[Stage] = ["sft", "rl"] if params.sft.steps else ["rl"]
    for stage in stages:

        def plan_with(chosen: Params, stage: "Stage" = stage) -> "MemoryPlan":
            return plan_memory(
                shape,
                chosen,
                stage,
                "cuda" if memory else "cpu",
                prompt_tokens=lengths[0],
                response_tokens=lengths[1],
                gpu_memory=memory or 0.0,
            )

        show(stage, plan_with(params), processes, memory)
        if memory is None:
            needed, there = plan_with(params).peak * processes / GIB, psutil.virtual_memory().total / GIB
            fit = "fits" if needed < there else "does not fit"
            verdict.append(f"{stage} {fit} this machine: it needs {needed:.2f} GiB of {there:.1f} GiB")
            if stage == "rl" and params.model.base.type == "pretrained" and params.run.device != "cpu":
                verdict.append("that is a plan for CPUs: for GPUs give the memory of one, e.g. --gpu-memory 24GB")
            continue
        if stage == "rl" and not show_servers(shape, params, memory):
            verdict.append("the servers of rl do not fit; see below")
            fits = False
        if plan_with(params).lacking:
            show_refusal(plan_with(params), lambda: check_vllm_share(shape, params, memory))
        room = memory * (1 - RESERVE)
        changes = advise(params, stage, room, resolved, plan_with)
        if changes is None:
            verdict.append(
                f"{stage} does not fit {gpu_memory} with any setting: use more GPUs (--gpus) or a smaller model"
            )
            fits = False
        elif changes:
            fits = False
            after = resolved(changes)
            verdict.append(f"{stage} does not fit {gpu_memory}; it fits with these settings:")
            verdict += [f"    --set '{change}'" for change in changes]
            if after is not None:
                show(f"{stage}, changed", plan_with(after), after.run.processes, memory)
        else:
            share = (room - plan_with(params).peak) / memory
            narrow = f"{share:.0%} of it is left, no margin for fragmentation: lower {stage}.tokens_per_microbatch"
            left = narrow if share < MARGIN else f"{share:.0%} of it is left"
            verdict.append(f"{stage} fits {gpu_memory}; {left}")
    return fits


def show_time(
    params: Params, shape: "ModelShape", preset: str | None = None, overrides: Sequence[str] = ()
) -> list[str]:
    """Print the learning rates and the time of each stage that has to run, from the speed that was measured here.

    Returns the lines of the verdict: the time, whether rl would start, and the next command, with `preset` and
    `overrides`, the options of this one.
    """
    import torch

    from mathrl.models.load import plain_dtype
    from mathrl.planning.run_time import measured_speed, planned_time, product_rate, speed_of_difficulty
    from mathrl.tasks.repro import environment, stages_up_to_date

    base, root, settings = params.model.base, main_checkout(), as_words(preset, overrides)
    trained = (("sft", params.sft),) * bool(params.sft.steps) + (("rl", params.rl),)
    rates = {f"{name}.optimizer.lr": section.optimizer.lr for name, section in trained}
    print("\nlearning rates: " + ", ".join(f"{key} {lr:g}" for key, lr in rates.items()))
    evaluated = measured_speed(base.path, root / "reports" / "evaluations") if base.type == "pretrained" else None
    speed = speed_of_difficulty(params) or evaluated
    if speed is None:
        return [f"time: not known yet; this measures the model's speed: mathrl run mix{settings}"]
    done = [] if settings else stages_up_to_date(root, STAGES, environment())
    device = torch.device("cuda" if torch.cuda.is_available() and params.run.device != "cpu" else "cpu")
    operations = product_rate(shape, device, plain_dtype(params.model))
    files = {split: root / "data" / "curated" / f"{split}.jsonl" for split in ("rl", "test")}
    problems = {split: file.read_bytes().count(b"\n") for split, file in files.items() if file.exists()}
    print(
        f"time on this machine, at {speed.tokens_per_second:,.0f} tokens/s and {speed.response_tokens:,.0f} tokens per "
        f"response as measured, and {operations / 1e9:,.0f} GFLOP/s:"
    )
    total = 0.0
    for planned in planned_time(params, shape, speed, operations, problems):
        ready = planned.part in done
        total += 0.0 if ready else planned.seconds
        print(f"  {planned.part:<12} {'done' if ready else duration(planned.seconds):>8}   {planned.account}")
    print(f"  {'together':<12} {duration(total):>8}   without start-up, grading and weight sync")
    left = [stage for stage in STAGES if stage not in done]
    lines = [f"time: about {duration(total)} on this machine, for {' -> '.join(left) or 'nothing: all is up to date'}"]
    if not settings and (root / DIFFICULTY).exists() and "rl" in left:  # other settings may have other pass rates
        lines += skill_lines(params, root)
    if not any(line.startswith(NO_START) for line in lines):
        lines.append(f"next: mathrl run pipeline{settings}")
    return lines


def skill_lines(params: Params, folder: Path, preset: str | None = None, overrides: Sequence[str] = ()) -> list[str]:
    """Whether rl would start after `mix` in this folder, and if not the commands that help.

    Args:
        preset, overrides: The options with which the folder's parameters were made.
    """
    from mathrl.planning.project import teach_first

    measured = read_json(folder / DIFFICULTY)
    skill, wanted = f"pass@8 {measured['pass_at_8']:.3f}", params.rl.min_pass_at_8
    problems = read_json(mixed)["problems"] if (mixed := folder / "data/mixture/manifest.json").exists() else 0
    mixture = f"{problems:,} problems that it solves sometimes, but not always"
    try:
        check_skill(folder / DIFFICULTY, wanted)
    except UserError:
        lines = [f"{NO_START}: the model solves too little to learn from ({skill}, rl.min_pass_at_8 {wanted:g})"]
        remedy = teach_first(params, read_problems(folder / PROBLEMS))
        if isinstance(remedy, str):
            lines.append(f"  {remedy}")
        else:
            words = as_words(preset, [*overrides, *remedy])
            lines.append(f"  teach it first, and measure again: mathrl run mix{words}")
        if problems:
            words = as_words(preset, [*overrides, "rl.min_pass_at_8=0"])
            lines.append(f"  or train all the same, on {mixture}: mathrl run pipeline{words}")
        return lines
    few = f"; a step takes {params.rl.prompts_per_step}, so they repeat" * (problems < params.rl.prompts_per_step)
    return [f"rl would start: {skill}, {mixture}{few}"]


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
        _parts("CPU memory of a process", plan.host)


def show_servers(shape: "ModelShape", params: Params, memory: float) -> bool:
    """Print what the servers that the stage starts hold on GPUs of their own; whether it fits."""
    from mathrl.planning.gpu_phases import check_vllm_share, on_ranks_gpus, starts_servers, vllm_parts
    from mathrl.rollout.choices import stage_longest

    if not starts_servers(params) or on_ranks_gpus(params):
        return True
    count, parallel = params.rollout.servers.start, params.rollout.vllm.tensor_parallel
    needed = stage_longest(params, "rl")
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

    A number without a unit below MOST_GB is one of GB.

    >>> size_in_bytes("24GB"), size_in_bytes("24"), size_in_bytes("1.5 GiB")
    (24000000000.0, 24000000000.0, 1610612736.0)

    Raises:
        UserError: `text` is not a size.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[1].count(".") > 1 or not match[1].strip("."):
        raise UserError(f"{text!r} is not a memory size; write it as 24GB or 80GiB")
    number, unit = float(match[1]), match[2].lower() or "gb"
    if unit not in UNITS or not number > 0 or (not match[2] and number >= MOST_GB):
        raise UserError(f"{text!r} is not a memory size: write it with its unit, as 24GB or 80GiB")
    return number * UNITS[unit]
