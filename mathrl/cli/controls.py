"""`mathrl controls`: run the controls of an RL run as a recipe, and say what they leave of its gain."""

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.options import Overrides
from mathrl.cli.output import AsJson
from mathrl.cli.recipe import print_recipe, print_steps
from mathrl.cli.run import call_flow
from mathrl.core.paths import main_checkout
from mathrl.recipes.controls import CONTROLS, write_control_recipe


def controls(
    run: Annotated[
        str,
        typer.Argument(
            help="RL run: rl (the pipeline's), the settings it ran with such as run.seed=1, a folder under runs/, "
            "or a recipe's RECIPE/STEP or NAME/STEP."
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

    It writes params/recipes/controls-RUN.yaml from the run's own parameters and runs it as `mathrl recipe` does.
    """
    os.chdir(main_checkout())
    if "=" in run:
        from mathrl.tasks.workspace import prepare  # git, for this alone

        folder = prepare("pipeline", None, shlex.split(run)).folder
        run = "rl" if folder == Path.cwd() else folder.name
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    name, folder = write_control_recipe(run, seeds, chosen, overrides or ())
    print(f"wrote {os.path.relpath(folder / 'params' / 'recipes' / name)}.yaml")
    if dry_run:
        os.chdir(folder)
        print_steps(name, None, (), as_json)
        return
    began = time.time()
    folder = Path(call_flow("controls", rl_run=run, seeds=seeds, only=chosen, overrides=overrides or [], jobs=jobs))
    print_recipe(folder, name, time.time() - began, as_json)
