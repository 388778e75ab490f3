"""`mathrl report RUN`: one HTML file about a run."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.paths import RECIPES, main_checkout
from mathrl.reports.find_run import mlflow_record, near_run
from mathrl.reports.html import Material, pipeline_material, step_material, write_report

PIPELINE = ("pipeline", "sft", "rl", "evaluate", "register")


def report(
    run: Annotated[str, typer.Argument(help="Stage, recipe's step, run under runs/, or MLflow run.")] = "pipeline",
    output: Annotated[Path | None, typer.Option(help="HTML file to write; default: in reports/html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file: verdict, curves, examples before and after, health, lineage, how to reproduce."""
    here, target = Path(run).absolute(), output.absolute() if output else None
    os.chdir(main_checkout())
    material = _material(run, here)
    target = target or Path("reports") / "html" / f"{material.title.replace('/', '-').replace(' ', '-')}.html"
    colour = write_report(material, target, load_params())
    if as_json:
        print_document({"file": str(target.absolute()), "health": colour})
        return
    print(f"{target}  (health {colour}); open it in a browser: {target.absolute().as_uri()}")


def _material(run: str, here: Path) -> Material:
    root = Path.cwd()
    if run in PIPELINE or here == root:
        return pipeline_material(root)
    for folder in (here, root / "runs" / run):
        if (folder / "reports").is_dir():
            return pipeline_material(folder)
    for step in (here, root / RECIPES / run):
        if step.is_dir() and step.parent.parent.name == "recipes":
            return step_material(step.parents[3], step.parent.name, step.name)
    if here.is_dir() and here.parent.name == "reports":
        return pipeline_material(here.parents[1])
    record = mlflow_record(run)
    if record is None:
        raise UserError(
            f"{run}: no such run{near_run(run)}; give a stage (rl), a recipe's step (NAME/STEP), a run under runs/, a "
            "folder, or the name or id of an MLflow run"
        )
    name, workspace = record.name, Path(record.workspace)
    if not workspace.is_dir():
        raise UserError(f"{run}: its folder {workspace} no longer exists; its MLflow run may have its report")
    return step_material(workspace, *name.split("/", 1)) if "/" in name else pipeline_material(workspace)
