"""`mathrl recipe`: run the flow `recipe` in this terminal, or list the recipes."""

import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.options import AllowDirty, Choices, Overrides, Presets, join_presets, with_choices
from mathrl.cli.output import AsJson, print_document, print_lines, print_result, print_table
from mathrl.cli.run import call_flow, run
from mathrl.compose import load_params
from mathrl.compose.experiment import split_choices
from mathrl.compose.load import choice_notes, read_layers
from mathrl.core.errors import UserError
from mathrl.core.paths import RECIPES, is_group, main_checkout
from mathrl.core.records import IMPORTED, read_record, records_folder
from mathrl.core.results import results_table
from mathrl.evaluation.conclusion import conclusion
from mathrl.params.load import FOLDER
from mathrl.params.recipe_steps import DEFAULT, Recipe
from mathrl.recipes.controls import CONTROLS, write_control_recipe
from mathrl.recipes.graph import graph, graph_file, write_recipe_graph
from mathrl.recipes.recipe import (
    CLAIM,
    load_recipe,
    read_recipe,
    recipe_is_judged,
    recipe_names,
    recipe_values,
    recipe_warnings,
    step_params,
)


def recipe(
    name: Annotated[
        str | None, typer.Argument(help="Recipe by name: one of mathrl's, or a file of params/recipes.")
    ] = None,
    choices: Choices = None,
    presets: Presets = None,
    overrides: Overrides = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="List the recipes with their steps.")] = False,
    only_graph: Annotated[
        bool, typer.Option("--graph", help="Only write pipelines/recipes/NAME/dvc.yaml, for DVC's own commands.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps and exit without running.")] = False,
    allow_dirty: AllowDirty = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Steps that run at a time, where they do not depend on one another.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Run the steps of a recipe that are out of date; without a name, list the recipes.

    As params/ has it, it writes pipelines/recipes/NAME/dvc.yaml and runs `dvc repro` on it in the project; with
    data=…, model=…, method=…, hardware=…, --preset or --set, in a worktree under runs/.
    """
    overrides = with_choices(choices, overrides)
    os.chdir(main_checkout())
    preset = join_presets(presets)
    if list_recipes or name is None or (name == "list" and name not in recipe_names()):
        print_recipes(as_json)
    elif only_graph:
        if preset or overrides:
            raise UserError("--graph writes the recipe as params/ has it: leave out data=…, --preset and --set")
        _write_graph(name, as_json)
    elif name == DEFAULT:
        run("pipeline", None, presets, overrides, dry_run, allow_dirty=allow_dirty, as_json=as_json)
    elif dry_run:
        print_steps(name, preset, overrides or (), as_json)
    else:
        load_recipe(name, overrides=tuple(overrides or ()), preset=preset)  # before any server is started
        began = time.time()
        options = {"preset": preset, "overrides": overrides or [], "allow_dirty": allow_dirty, "jobs": jobs}
        folder = Path(call_flow("recipe", recipe=name, **options))
        print_recipe(folder, name, time.time() - began, as_json)


def _write_graph(name: str, as_json: bool) -> None:
    write_recipe_graph(name, Path())
    file = graph_file(name)
    line = f"wrote {file}; run it with: dvc repro {file}; without its folder `dvc status` does not name it"
    print_result(as_json, {"file": str(file), "command": f"dvc repro {file}"}, line)


def print_recipes(as_json: bool) -> None:
    """The recipes with their steps, and why one cannot run in this project."""
    rows = []
    for name in recipe_names():
        misfit, written = "", None
        try:
            written = read_recipe(name)
            written = load_recipe(name)
        except UserError as error:
            misfit = str(error)
        description, steps = (written.description, list(written.steps)) if written else ("", [])
        rows.append({"name": name, "description": description, "steps": steps, "misfit": misfit})
    if as_json:
        print_document({"recipes": rows})
        return
    for row in rows:
        print(f"{row['name']:<24} {row['description']}")
        print(f"{'':<24} {' -> '.join(row['steps'])}")
        if row["misfit"]:
            print(f"{'':<24} not in this project: {row['misfit']}")


def print_steps(name: str, preset: str | None, overrides: Sequence[str], as_json: bool = False) -> None:
    """Each step with its command, and the rates and lengths that it gets."""
    checked = load_recipe(name, overrides=tuple(overrides), preset=preset)
    groups = [override for override in overrides if is_group(override)]
    if not as_json:
        print(checked.description)
    if not as_json and (preset or groups):
        print(f"over params/ with {', '.join([*groups, *([f'preset {preset}'] if preset else [])])}")
    refused, cut = _lengths(checked, preset, groups)
    if refused:
        raise UserError("; ".join(refused))
    values = recipe_values(checked, preset, tuple(groups))
    noted = [
        *choice_notes(FOLDER, preset, groups),
        *recipe_warnings(checked, preset=preset, overrides=tuple(groups)),
        *cut,
    ]
    commands = {step: stage["cmd"] for step, stage in graph(name, checked, Path(), preset, groups).items()}
    written = {step: re.sub(r"-s\d+$", "", step) for step in commands}  # the same for every seed
    if as_json:
        steps = [
            {"name": step, "command": command, "settings": values.get(written[step], "")}
            for step, command in commands.items()
        ]
        print_document({"recipe": name, "description": checked.description, "steps": steps, "warnings": noted})
        return
    for step, command in commands.items():
        print(f"{step}: {command.removeprefix('python -m mathrl.stages.')}")
        if line := values.pop(written[step], ""):
            print(f"  with {line}")
    for step in (name for name, step in checked.steps.items() if step.stage == "pages"):
        from mathrl.stages.pages import resolve  # scikit-learn and datatrove, for this stage alone

        layers = read_layers(FOLDER, preset, None, split_choices(groups)[0])
        for parameter, files in resolve(step_params(checked, step, layers)).items():
            print(f"{parameter}: {', '.join(map(str, files))}")
    for line in noted:
        print(f"warning: {line}")


def _lengths(checked: Recipe, preset: str | None, groups: Sequence[str]) -> tuple[list[str], list[str]]:
    """What the steps would say of their lengths, as far as the data are known: refused, and typed."""
    if not recipe_is_judged(checked, preset=preset, overrides=tuple(groups)):
        return [], []
    from mathrl.stages.known_lengths import judge_recipe  # the formats of rows, for a dry run alone
    from mathrl.tasks.lengths import curated_splits

    curated = curated_splits(Path.cwd(), load_params(preset=preset, overrides=groups))
    judged = judge_recipe(checked, preset=preset, overrides=groups, curated=curated)
    return judged.refused, judged.warned


def print_recipe(folder: Path, name: str, seconds: float, as_json: bool = False) -> None:
    """The tables and verdicts of a recipe that was run; where it makes a claim, the claim's with its conclusion."""
    from mathrl.tasks.report import recipe_summary, summary_rows, verdicts

    summary = recipe_summary(folder, name)
    if as_json:
        rows = {step: {b: r.to_row() for b, r in results.items()} for step, results in summary.items()}
        where = str((folder / RECIPES / name).absolute())
        print_document({"recipe": name, "folder": where, "seconds": seconds, "results": rows})
        return
    for benchmark, results in summary.get(CLAIM, {}).items():
        evaluated = [pair for step in summary.values() for pair in step[benchmark].models.items()]
        beside = {model: figures for model, figures in evaluated if model not in results.models}
        print_table(f"{benchmark}: the claim of {name}", results_table({**beside, **results.models}))
        print_lines(conclusion(results))
    if CLAIM not in summary:
        print_table(f"recipe {name}", summary_rows(summary), left=("evaluation", "model"))
        print_lines(verdicts(summary))
    print_lines([f"outputs: {os.path.relpath(folder / RECIPES / name, Path.cwd())}", f"took {seconds:.0f} s"])


def controls(
    run: Annotated[
        str,
        typer.Argument(
            help="RL run: rl (the pipeline's), the settings it ran with such as run.seed=1, a folder under runs/, "
            "a recipe's RECIPE/STEP or NAME/STEP, or imported-NAME."
        ),
    ] = "rl",
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Number of seeds: the run's own and those that follow it. 1: a pipeline's own models are taken."
        ),
    ] = 3,
    only: Annotated[
        str, typer.Option(help=f"Controls to run, comma-separated, of {', '.join(CONTROLS)}; default: all that fit.")
    ] = "",
    overrides: Overrides = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Steps that run at a time, where they do not depend on one another.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the recipe, print its steps and exit without running.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the controls of an RL run: rewards without information, more SFT, a start made to think, over seeds.

    It writes params/recipes/controls-RUN.yaml from the run's own parameters and runs it as `mathrl recipe` does. Of an
    imported run it writes controls-RUN/ with reward functions for the run's own trainer, and for verl the commands.
    """
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    if run.startswith(IMPORTED):
        if overrides:
            raise UserError(f"{run}: its own trainer runs the controls: leave out --set; run.sh takes its overrides")
        _print_foreign_controls(run, chosen, as_json)
        return
    os.chdir(main_checkout())
    if "=" in run:
        from mathrl.tasks.workspace import prepare  # git, for this alone

        folder = prepare("pipeline", None, shlex.split(run)).folder
        run = "rl" if folder == Path.cwd() else folder.name
    name, folder = write_control_recipe(run, seeds, chosen, overrides or ())
    print(f"wrote {os.path.relpath(folder / 'params' / 'recipes' / name)}.yaml")
    if dry_run:
        os.chdir(folder)
        print_steps(name, None, (), as_json)
        return
    began = time.time()
    folder = Path(call_flow("controls", rl_run=run, seeds=seeds, only=chosen, overrides=overrides or [], jobs=jobs))
    print_recipe(folder, name, time.time() - began, as_json)


def _print_foreign_controls(run: str, chosen: list[str], as_json: bool) -> None:
    from mathrl.imports.foreign_controls import write_foreign_controls

    record = read_record(records_folder() / run)
    if record is None:
        raise UserError(f"{run}: no such record; `mathrl import FOLDER` makes one, `mathrl runs` lists them")
    folder = Path(f"controls-{run}")
    lines = write_foreign_controls(record, chosen, folder)
    print_result(as_json, {"folder": str(folder.absolute()), "notes": lines}, *lines)
