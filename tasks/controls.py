"""Run the controls of an RL run: a recipe that is made from the run."""

from collections.abc import Mapping, Sequence

from prefect.artifacts import create_markdown_artifact
from pydantic import BaseModel

from mathrl.core.claims import conclusion
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.params.form import form_overrides
from mathrl.recipes.controls import write_control_recipe
from mathrl.recipes.recipe import CLAIM
from tasks.mlflow_links import artifact_key
from tasks.recipe import recipe_summary, run_recipe


def run_controls(
    *,
    preset: str | None,
    sections: Mapping[str, BaseModel | None],
    overrides: Sequence[str],
    allow_dirty: bool = False,
    rl_run: str = "rl",
    seeds: int = 3,
    only: Sequence[str] = (),
    jobs: int = 1,
) -> str:
    """Write the recipe of the run's controls, run it and report what they leave of the run's gain; returns the folder.

    `overrides` go over the run's own parameters, in every step.
    """
    if preset:
        raise UserError(
            "controls have the parameters of their run: choose no preset, but a run that was made with it, by its name "
            "under runs/"
        )
    checkout = main_checkout()
    settings = [*form_overrides(sections), *overrides]
    name, place = write_control_recipe(rl_run, seeds, only, settings, checkout)
    folder = run_recipe(
        name, preset=None, sections={}, overrides=[], allow_dirty=allow_dirty, jobs=jobs, folder=place.absolute()
    )
    for benchmark, results in recipe_summary(place, name).get(CLAIM, {}).items():
        text = "\n".join(f"- {line}" for line in conclusion(results))
        key = artifact_key(f"{name}-{benchmark}")
        create_markdown_artifact(
            text, key=key, description=f"What the controls leave of the gain of {rl_run}: {benchmark}"
        )
    return folder
