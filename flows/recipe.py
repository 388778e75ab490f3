"""Run a recipe of params/recipes: ordered steps that start from models and data of other steps."""

from typing import Literal

from flows.factory import PARAMS, form_flow, option
from mathrl.params.recipe import recipe_names
from mathrl.params.recipe_steps import STEP_STAGES
from mathrl.params.schema import sections_read
from tasks.recipe import run_recipe

# The dropdown, from the folder as it stands when the flows are deployed.
Recipe = Literal[tuple(recipe_names(PARAMS))]  # type: ignore[valid-type]

recipe = form_flow(
    "recipe",
    __doc__,
    sections_read(STEP_STAGES),
    run_recipe,
    recipe=option(Recipe, "File of params/recipes."),
    jobs=option(int, "Maximum number of steps that run at the same time, each in a slot of its own.", 1),
)
