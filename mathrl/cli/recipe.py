"""`mathrl recipe`: the flow `recipe` in this terminal, and what recipes there are."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from mathrl.cli.run import call_flow
from mathrl.core.paths import RECIPES, main_checkout
from mathrl.params.recipe import load_recipe, recipe_names


def run(name: str, preset: str | None, overrides: Sequence[str], *, allow_dirty: bool) -> None:
    """Bring the recipe up to date and print its table.

    Raises:
        UserError: a wrong recipe or parameter, or a step that failed.
    """
    os.chdir(main_checkout())
    load_recipe(name, overrides=tuple(overrides))  # before any server is started
    began = time.time()
    folder = Path(call_flow("recipe", recipe=name, preset=preset, overrides=list(overrides), allow_dirty=allow_dirty))
    _print(folder, name, time.time() - began)


def dry(name: str, preset: str | None, overrides: Sequence[str]) -> None:
    """Print the steps, each with its command."""
    from mathrl.params import load_params
    from mathrl.params.recipe_graph import graph

    os.chdir(main_checkout())
    load_params(preset=preset)
    recipe = load_recipe(name, overrides=tuple(overrides))
    print(recipe.description)
    for step, stage in graph(name, recipe, Path()).items():
        print(f"{step}: {stage['cmd'].removeprefix('python -m mathrl.stages.recipe_step ')}")


def show() -> None:
    """Print every recipe with its steps."""
    os.chdir(main_checkout())
    for name in recipe_names():
        recipe = load_recipe(name)
        print(f"{name:<24} {recipe.description}")
        print(f"{'':<24} {' -> '.join(recipe.steps)}")


def _print(folder: Path, name: str, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from tasks.recipe import recipe_summary, summary_rows, verdicts

    summary = recipe_summary(folder, name)
    console = Console(width=110)
    rows = summary_rows(summary)
    if rows:
        table = Table(title=f"recipe {name}")
        for column in dict.fromkeys(column for row in rows for column in row):
            table.add_column(column, justify="left" if column in ("evaluation", "model") else "right")
        for row in rows:
            table.add_row(*(row.get(str(column.header), "") for column in table.columns))
        console.print(table)
    where = os.path.relpath(folder / RECIPES / name, Path.cwd())
    for line in (*verdicts(summary), f"everything: {where}", f"took {seconds:.0f} s"):
        console.print(line, soft_wrap=True, highlight=False)
