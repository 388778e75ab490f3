"""`mathrl evaluate`: evaluate any model on any benchmark."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.options import Overrides, Preset
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.core.results import results_table
from mathrl.data.registry import newer_than
from mathrl.params import load_params
from mathrl.params.evaluate import TEST
from mathrl.reports.evaluation import evaluate_once


def evaluate(
    model: Annotated[str, typer.Option(help="Hugging Face model folder or hub id.")],
    benchmark: Annotated[str, typer.Option(help="test (the curated split), or a name such as gsm8k or math500.")],
    preset: Preset = None,
    overrides: Overrides = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of problems.")] = None,
    samples: Annotated[int | None, typer.Option(help="Responses per problem.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for figures, responses and pictures.")] = None,
) -> None:
    """Evaluate a model on a benchmark: pass@1 with its interval, pass@k, maj@k."""
    local = Path(model).absolute()  # relative to the current folder, not to the checkout
    target = output.absolute() if output else None
    if not local.exists() and ((local.parent.is_dir() and local.parent != Path.cwd()) or Path(model).is_absolute()):
        raise UserError(f"{model}: no such folder; give a Hugging Face model folder or a hub id")
    os.chdir(main_checkout())
    options = {"evaluate.limit": limit, "evaluate.samples": samples}
    settings = [f"{name}={value}" for name, value in options.items() if value is not None]
    params = load_params(preset=preset, overrides=[*(overrides or ()), *settings])
    name = Path(model).name
    target = target or Path("reports") / "evaluations" / f"{name}-{benchmark}"
    figures = evaluate_once(local if local.exists() else model, benchmark, params, target)
    base = params.model.base
    (row,) = results_table({name: figures})
    print("  ".join(f"{column} {cell}" for column, cell in row.items()))
    if newer := newer_than(benchmark, base.released if base.type == "pretrained" else None):
        print(f"{benchmark} is {newer}: its problems cannot have been in the model's training data")
    if figures.prompts_too_long:
        print(f"{figures.prompts_too_long} prompts are longer than prompt.max_tokens and were left out")
    print(f"figures, responses and pictures: {target}")
    if benchmark == TEST and base.type == "pretrained" and base.path in (model, str(local)):
        print("next: mathrl plan    (memory, time and learning rates of the run, from the speed that was measured)")
