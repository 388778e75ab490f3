"""Run a recipe: ordered steps that start from models and data of other steps."""

from typing import Literal

from mathrl.flows.factory import JOBS, PARAMS, form_flow, option
from mathrl.params.load import read_yaml
from mathrl.params.recipe_steps import STEP_STAGES
from mathrl.params.schema import sections_read
from mathrl.recipes.recipe import recipe_files
from mathrl.tasks.runs import run_recipe

RECIPES = {name: read_yaml(file)["description"] for name, file in recipe_files(PARAMS).items()}
# The dropdown, from the folder as it stands when the flows are deployed.
Recipe = Literal[tuple(RECIPES)]  # type: ignore[valid-type]

recipe = form_flow(
    "recipe",
    __doc__,
    sections_read(STEP_STAGES),
    run_recipe,
    recipe=option(Recipe, "; ".join(f"**{name}**: {text}" for name, text in RECIPES.items())),
    jobs=JOBS,
)
