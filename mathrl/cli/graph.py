"""`mathrl graph`: the DVC graph of a recipe, for those who run `dvc repro` themselves."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.core.paths import main_checkout
from mathrl.recipes.graph import graph_file, write_recipe_graph


def graph(name: Annotated[str, typer.Argument(help="A recipe.")], as_json: AsJson = False) -> None:
    """Write the DVC graph of a recipe, so that DVC's own commands see it.

    `mathrl recipe` writes it itself. Remove its folder to hide it from `dvc status` and `dvc dag`.
    """
    os.chdir(main_checkout())
    write_recipe_graph(name, Path())
    file = graph_file(name)
    if as_json:
        print_document({"file": str(file), "command": f"dvc repro {file}"})
        return
    print(f"wrote {file}; run it with: dvc repro {file}")
