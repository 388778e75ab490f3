"""`mathrl evaluate`: evaluate any model on any benchmark."""

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mathrl.cli.options import Choices, Overrides, Presets, joined, with_choices
from mathrl.cli.output import AsJson, print_document
from mathrl.cli.tables import print_lines, print_table
from mathrl.cli.vary import combinations, evaluate_settings
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.core.results import results_table
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.params.evaluate import TEST
from mathrl.params.messages import near_path
from mathrl.params.own_code import tool_problems
from mathrl.params.rollout import Bubblewrap, NoTool
from mathrl.params.schema import Params
from mathrl.reading.registry import newer_than
from mathrl.reports.evaluation import check_lengths, evaluate_once

if TYPE_CHECKING:
    from mathrl.reports.probe import ProbeReport


class ToolName(StrEnum):
    """Tools of --tools."""

    PYTHON = "python"


def with_tool(params: Params) -> Params:
    """The parameters with the tool of section rollout, or with the sandbox of this machine where it has none.

    Raises:
        UserError: something that is set does not go with a tool.
    """
    rollout, prompt = params.rollout, params.prompt
    if rollout.tool.kind == "none":
        rollout = rollout.model_copy(update={"tool": Bubblewrap()})
    if rollout.turns.format == "tool_call":
        prompt = prompt.model_copy(update={"tools": "python"})
    params = params.model_copy(update={"rollout": rollout, "prompt": prompt})
    if problems := list(tool_problems(params)):
        raise UserError("; ".join(problems))
    return params


def without_tool(params: Params) -> Params:
    rollout = params.rollout.model_copy(update={"tool": NoTool()})
    return params.model_copy(update={"rollout": rollout, "prompt": params.prompt.model_copy(update={"tools": "none"})})


def print_probe(report: "ProbeReport", target: Path) -> None:
    """The table of the probe, with a verdict per score."""
    rows = [
        {
            "score": score.score,
            "problems": str(score.problems),
            "twins": str(score.twins),
            "AUC": str(score.auc),
            "mean": f"{score.own:.3f}",
            "mean of twins": f"{score.of_twins:.3f}",
            "verbatim": "" if score.verbatim is None else f"{score.verbatim:.1%} ({score.twins_verbatim:.1%})",
        }
        for score in report.scores
    ]
    print_table("contamination probe: problems against their twins", rows, left=("score",))
    lines = [f"{score.score}: {score.verdict}" for score in report.scores]
    print_lines([*lines, *(f"{name}: not probed, {why}" for name, why in report.missing.items())])
    print(f"probe: {target}/probe.json")


def evaluate(
    model: Annotated[str, typer.Option(help="Hugging Face model folder or hub id.")],
    benchmark: Annotated[str, typer.Option(help="test (the curated split), or a name such as gsm8k or math500.")],
    choices: Choices = None,
    presets: Presets = None,
    overrides: Overrides = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of problems.")] = None,
    samples: Annotated[int | None, typer.Option(help="Responses per problem.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for figures, responses and pictures.")] = None,
    tools: Annotated[
        ToolName | None,
        typer.Option(help="Also evaluate with this tool: Python code that a response calls is run in a sandbox."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="Evaluate with each value, as 'prompt.template=[plain, boxed]'; several: all combinations."),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also probe whether the benchmark's problems were in the training data.")
    ] = False,
    twins: Annotated[int, typer.Option(min=1, help="--probe: twins that each problem is compared with.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on a benchmark: pass@1 with its interval, pass@k, maj@k; with --tools without and with them."""
    overrides = with_choices(choices, overrides)
    if probe and (vary or tools is not None):
        raise UserError("--probe goes with neither --vary nor --tools; probe the model in a command of its own")
    if vary and tools is not None:
        raise UserError("--vary and --tools exclude each other; vary rollout.tool.kind to compare tools")
    local = Path(model).resolve()  # relative to the current folder, not to the checkout
    target = output.absolute() if output else None
    if not local.exists() and ((local.parent.is_dir() and local.parent != Path.cwd()) or Path(model).is_absolute()):
        raise UserError(
            f"{model}: no such folder{near_path(Path(model))}; give a Hugging Face model folder or a hub id"
        )
    os.chdir(main_checkout())
    options = {"evaluate.limit": limit, "evaluate.samples": samples}
    settings = [f"{name}={value}" for name, value in options.items() if value is not None]
    preset = joined(presets)
    params = load_params(preset=preset, overrides=[*(overrides or ()), *settings])
    name, started_from = Path(model).name, params.model.base.path if params.model.base.type == "pretrained" else ""
    if not local.exists() and Path(started_from).is_absolute() and Path(started_from).name == name:
        raise UserError(f"{model}: no such folder here (did you mean {started_from}?)")
    target = target or Path("reports") / "evaluations" / f"{name}-{benchmark}"
    runs = {name: (params, target)}
    if tools is not None:
        runs = {
            name: (without_tool(params), target),
            f"{name} + {tools}": (with_tool(params), target.with_name(f"{target.name}-{tools}")),
        }
    start = local if local.exists() else model
    typed = [*(overrides or ()), *settings]
    if vary:
        changed = {label: [*typed, *changes] for label, changes in combinations(vary).items()}
        varied = {label: load_params(preset=preset, overrides=changes) for label, changes in changed.items()}
        _check_lengths(start, benchmark, [(varied[label], changes) for label, changes in changed.items()])
        evaluate_settings(start, benchmark, varied, target, as_json)
        return
    _check_lengths(start, benchmark, [(settings, typed) for settings, _ in runs.values()])
    results = {label: evaluate_once(start, benchmark, *run) for label, run in runs.items()}
    figures, base = results[name], params.model.base
    if as_json:
        from mathrl.reports.probe import probe_benchmark  # torch: --help answers without it

        report = probe_benchmark(start, benchmark, params, target, twins) if probe else None
        outputs = {label: str(folder) for label, (_, folder) in runs.items()}
        figures_of = {label: each.to_row() for label, each in results.items()}
        print_document({"benchmark": benchmark, "models": figures_of, "outputs": outputs, "probe": report})
        return
    for row in results_table(results):
        print("  ".join(f"{column} {cell}" for column, cell in row.items()))
    if probe:
        from mathrl.reports.probe import probe_benchmark  # torch: --help answers without it

        print_probe(probe_benchmark(start, benchmark, params, target, twins), target)
    if newer := newer_than(benchmark, base.released if base.type == "pretrained" else None):
        print(f"{benchmark} is {newer}: its problems cannot have been in the model's training data")
    if figures.prompts_too_long:
        print(f"{figures.prompts_too_long} prompts are longer than prompt.max_tokens and were left out")
    print(f"figures, responses and pictures: {', '.join(str(folder) for _, folder in runs.values())}")
    if benchmark == TEST and started_from and started_from in (model, str(local)):
        print("next: mathrl plan    (memory, time and learning rates of the run, and whether RL would start)")


def _check_lengths(model: Path | str, benchmark: str, settings: Sequence[tuple[Params, Sequence[str]]]) -> None:
    """Refuse lengths that cut the benchmark off, and warn of typed ones, before anything is sampled.

    Args:
        settings: Parameters of evaluations, with what was typed for each.
    """
    warned = []
    for params, typed in settings:
        warned += check_lengths(model, benchmark, params, benchmark_problems(benchmark, params), typed)
    for line in dict.fromkeys(warned):
        print(f"warning: {line}", file=sys.stderr)
