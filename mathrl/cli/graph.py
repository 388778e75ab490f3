"""`mathrl graph`: the DVC graph of a side pipeline or a recipe, for those who run `dvc repro` themselves."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mathrl.compose.resolved import write_resolved
from mathrl.core.errors import UserError
from mathrl.core.paths import RECIPES, main_checkout
from mathrl.params.watched_code import side_pipelines, write_side_graph
from mathrl.recipes.graph import write_recipe_graph
from mathrl.recipes.recipe import recipe_names


def graph(name: Annotated[str, typer.Argument(help="controls, pages, suite, or a recipe.")]) -> None:
    """Write the DVC graph of a side pipeline or a recipe, so that DVC's own commands see it.

    `mathrl run` and `mathrl recipe` write it themselves. Remove its folder to hide it from `dvc status` and `dvc dag`.
    """
    os.chdir(main_checkout())
    if name in side_pipelines(Path()):
        write_resolved()  # the suite has its names from it
        file = write_side_graph(name, Path())
    elif name in recipe_names():
        write_recipe_graph(name, Path())
        file = RECIPES / name / "dvc.yaml"
    else:
        there = [*side_pipelines(Path()), *recipe_names()]
        raise UserError(f"no pipeline or recipe {name!r}; write one of {', '.join(there)}")
    print(f"wrote {file}; run it with: dvc repro {file}")
