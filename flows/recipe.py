"""Ordered steps, each starting from the model and the data of others: params/recipes."""

from typing import Literal

from flows.factory import PARAMS, form_flow, option
from mathrl.params.recipe import STEP_STAGES, recipe_names
from mathrl.params.schema import sections_read
from tasks.recipe import run_recipe

# The dropdown, from the folder as it stands when the flows are deployed.
Recipe = Literal[tuple(recipe_names(PARAMS))]  # type: ignore[valid-type]

recipe = form_flow(
    "recipe", __doc__, sections_read(STEP_STAGES), run_recipe, recipe=option(Recipe, "A file of params/recipes.")
)
