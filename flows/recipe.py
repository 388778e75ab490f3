"""Run a recipe: ordered steps, each starting from the model and the data of others."""

from typing import Literal

from prefect import flow

from flows.form import (
    PARAMS,
    EvaluateForm,
    HealthForm,
    ModelForm,
    Preset,
    PromptForm,
    RewardForm,
    RlForm,
    RolloutForm,
    RunForm,
    SftForm,
    TrainingForm,
)
from mathrl.params.recipe import recipe_names
from tasks.recipe import run_recipe

# The dropdown, from the folder as it stands when the flows are deployed.
Recipe = Literal[tuple(recipe_names(PARAMS))]  # type: ignore[valid-type]


@flow(
    name="recipe",
    description="Ordered steps, each starting from the model and the data of others: params/recipes.",
    validate_parameters=True,
)
def recipe(
    recipe: Recipe,
    preset: Preset = None,
    run: RunForm = None,
    model: ModelForm = None,
    prompt: PromptForm = None,
    reward: RewardForm = None,
    rollout: RolloutForm = None,
    training: TrainingForm = None,
    health: HealthForm = None,
    sft: SftForm = None,
    rl: RlForm = None,
    evaluate: EvaluateForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    allow_dirty: bool = False,
) -> str:
    """Run a recipe: ordered steps, each starting from the model and the data of others.

    Nothing set: in the checkout, as `dvc repro pipelines/recipes/NAME/dvc.yaml` would. Anything set: in a worktree
    under runs/, over what the recipe's steps set.

    Args:
        recipe: A file of params/recipes.
        preset: A file of params/presets that goes over params/; what is set here goes over it.
        overrides: Any other parameter as section.key=value, such as rl.optimizer.beta2=0.99.
        allow_dirty: Run from the last commit although code or parameters have uncommitted changes.
    """
    sections = {
        "run": run,
        "model": model,
        "prompt": prompt,
        "reward": reward,
        "rollout": rollout,
        "training": training,
        "health": health,
        "sft": sft,
        "rl": rl,
        "evaluate": evaluate,
    }
    return run_recipe(recipe, preset, sections, overrides, allow_dirty=allow_dirty)
