"""Recipes: params/recipes/<name>.yaml, steps that start from one another's models and data, checked whole."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from mathrl.core.errors import UserError
from mathrl.params.ignored import warnings
from mathrl.params.load import FOLDER, load_params, read_yaml
from mathrl.params.messages import did_you_mean, messages
from mathrl.params.schema import READS, Params
from mathrl.params.section import Section

SPLITS = ("sft", "rl")  # dev and test are never trained on
POLICIES = ("base", "sft", "rl", "dpo")
Names = tuple[str, ...]
START = "Step whose model this step starts from, or base."


class _Step(Section):
    set: Names = Field((), description="Dotted overrides of params/ for this step, over the recipe's.")


class _OnProblems(_Step):
    curated: str | None = Field(
        None, description="The curate step whose splits it reads; null: the recipe's, else data/curated."
    )


class BaseStep(_Step):
    """The base model that params/model.yaml names; a recipe has one of this name if a step starts from it."""

    stage: Literal["base"] = "base"


class CurateStep(_Step):
    """Splits of the recipe's own; made once, whatever the number of seeds."""

    stage: Literal["curate"]


class SftStep(_OnProblems):
    """Supervised fine-tuning on splits and on what sample steps kept."""

    stage: Literal["sft"]
    start: str = Field("base", description=START)
    data: Names = Field(("sft",), min_length=1, description="Splits, or sample steps.")


class DifficultyStep(_OnProblems):
    """Pass rates of a model on a split."""

    stage: Literal["difficulty"]
    start: str = Field(description=START)
    data: str = Field("rl", description="A split.")


class MixStep(_OnProblems):
    """A training set chosen by pass rates."""

    stage: Literal["mix"]
    difficulty: str = Field(description="The difficulty step with the pass rates.")
    data: str = Field("rl", description="A split.")


class RlStep(_OnProblems):
    """Reinforcement learning on splits or mixtures."""

    stage: Literal["rl"]
    start: str = Field(description=START)
    data: Names = Field(("rl",), min_length=1, description="Splits, or mix steps.")
    difficulty: str | None = Field(None, description="Refuse to start below rl.min_pass_at_8 of this step.")
    reward_model: str | None = Field(None, description="Reward model step whose scores replace the rule-based rewards.")
    process_reward_model: str | None = Field(
        None, description="Process reward model step that scores every reasoning step."
    )
    critic: str | None = Field(None, description="Step whose model initialises the critic (rl.critic.path).")
    reference: str | None = Field(None, description="The model of the KL; null: the start.")
    teacher: str | None = Field(None, description="Step whose model is the teacher of on-policy distillation.")


class SampleStep(_OnProblems):
    """Graded samples of a model: responses to imitate, preference pairs, labels of steps."""

    stage: Literal["sample"]
    start: str = Field(description=START)
    data: Names = Field(("rl",), min_length=1, description="Splits, or mix steps.")


class DpoStep(_Step):
    """Direct preference optimisation on the pairs of sample steps."""

    stage: Literal["dpo"]
    start: str = Field(description=START)
    data: Names = Field(min_length=1, description="Sample steps.")


class RewardModelStep(_Step):
    """A reward model of responses, on pairs, or of steps, on Monte-Carlo labels."""

    stage: Literal["reward_model", "process_reward_model"]
    start: str = Field(description="A model, or the reward model that is refreshed.")
    data: Names = Field(min_length=1, description="Sample steps.")
    replay: Names = Field((), description="Earlier sample steps, of which reward_model.replay are repeated.")


class EvaluateStep(_OnProblems):
    """Models on held-out problems."""

    stage: Literal["evaluate"]
    models: Names = Field(min_length=1, description="Steps whose models are evaluated; base may be one of them.")


Step = Annotated[
    BaseStep
    | CurateStep
    | SftStep
    | DifficultyStep
    | MixStep
    | RlStep
    | SampleStep
    | DpoStep
    | RewardModelStep
    | EvaluateStep,
    Field(discriminator="stage"),
]
PRODUCES = {
    "a model": POLICIES,
    "a reward model": ("reward_model",),
    "a process reward model": ("process_reward_model",),
    "pass rates": ("difficulty",),
    "splits": ("curate",),
    "samples": ("sample",),
    "a mixture": ("mix",),
}
STEP_STAGES = (*chain.from_iterable(PRODUCES.values()), "evaluate")


class Recipe(Section):
    """Ordered steps, each naming what it starts from.

    Example:
        Recipe(description="SFT, then RL", steps={"sft": SftStep(stage="sft"), "rl": RlStep(stage="rl",
               start="sft"), "test": EvaluateStep(stage="evaluate", models=("sft", "rl"))})
    """

    description: str = Field(min_length=1, description="One line for the list of recipes.")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="Seeds; every step runs once per seed. Empty: once, with run.seed of params/."
    )
    set: Names = Field((), description="Dotted overrides of params/ for every step.")
    overrides: Names = Field(
        (), description="Overrides that a run was started with (--set); they win over those of the steps."
    )
    curated: str | None = Field(None, description="The curate step whose splits the steps read.")
    steps: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Step] = Field(
        min_length=1, description="Steps by name, each with its stage."
    )


def recipe_names(folder: Path = FOLDER) -> list[str]:
    return sorted(file.stem for file in (folder / "recipes").glob("*.yaml"))


def load_recipe(name: str, folder: Path = FOLDER, overrides: Names = ()) -> Recipe:
    """The recipe, its steps in an order in which each comes after what it needs.

    `overrides` go over those of every step.

    Raises:
        UserError: no such recipe, wrong fields, a step that names an unknown one or one that makes no such
            thing, a cycle, or parameters that do not fit; all of them at once.
    """
    names = recipe_names(folder)
    if name not in names:
        raise UserError(f"no recipe {name!r}{did_you_mean(name, names)}; recipes: {', '.join(names)}")
    file = folder / "recipes" / f"{name}.yaml"
    values = read_yaml(file)
    values["overrides"] = [*(values.get("overrides") or []), *overrides]
    try:
        recipe = TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        raise UserError(
            "; ".join(f"{file}: {'.'.join(map(str, path))}: {text}" for _, path, text in messages(error, Recipe))
        ) from None
    if "base" not in recipe.steps and any(
        other == "base" for step in recipe.steps.values() for _, other, _ in references(step)
    ):
        recipe = recipe.model_copy(update={"steps": {"base": BaseStep(), **recipe.steps}})
    wrong = list(_wrong(recipe, folder))
    if wrong:
        raise UserError("; ".join(f"{file}: {line}" for line in wrong))
    return recipe.model_copy(update={"steps": _ordered(recipe, file)})


def step_overrides(recipe: Recipe, step: str) -> list[str]:
    """The overrides of a step in their order, later ones winning, of the sections that its stage reads."""
    own = recipe.steps[step]
    every = [*recipe.set, *own.set, *recipe.overrides]
    return [each for each in every if each.split(".")[0].strip() in READS[own.stage]]


def references(step: Any) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What a step names of other steps: the field, the name, and what it may be. Splits are left out."""
    for field, kinds in (
        ("start", ("a model",)),
        ("teacher", ("a model",)),
        ("reference", ("a model",)),
        ("models", ("a model",)),
        ("reward_model", ("a reward model",)),
        ("process_reward_model", ("a process reward model",)),
        ("curated", ("splits",)),
        ("critic", ("a model", "a reward model")),
        ("difficulty", ("pass rates",)),
        ("replay", ("samples",)),
        ("data", ("samples",)),
    ):
        given = getattr(step, field, None)
        if step.stage == "process_reward_model" and field == "start":
            kinds = ("a model", "a process reward model")
        elif step.stage == "reward_model" and field == "start":
            kinds = ("a model", "a reward model")
        elif field == "data" and step.stage == "sft":
            kinds = ("a split", "samples")
        elif field == "data" and step.stage in ("rl", "sample"):
            kinds = ("a split", "a mixture")
        elif field == "data" and step.stage in ("difficulty", "mix"):
            kinds = ("a split",)
        for name in (given,) if isinstance(given, str) else given or ():
            if not (field == "data" and "a split" in kinds and name in SPLITS):
                yield field, name, kinds


def _wrong(recipe: Recipe, folder: Path) -> Iterator[str]:
    for split in set(SPLITS) & set(recipe.steps):
        if recipe.steps[split].stage in ("sample", "mix"):
            yield f"steps.{split}: a split has this name; give the step another"
    if recipe.curated is not None and not isinstance(recipe.steps.get(recipe.curated), CurateStep):
        yield f"curated: {recipe.curated!r} is no step of stage curate"
    for name, step in recipe.steps.items():
        for field, other, kinds in references(step):
            fitting = [
                s for s, each in recipe.steps.items() if any(each.stage in PRODUCES[k] for k in kinds if k != "a split")
            ]
            if other not in fitting:
                can = [*SPLITS] * ("a split" in kinds) + [each for each in fitting if each != name]
                known = "makes no such thing" if other in recipe.steps else "is no step"
                if field == "data" and other in ("dev", "test"):
                    known = "is held out, never trained on"
                known += did_you_mean(other, can)
                yield (
                    f"steps.{name}.{field}: {other!r} {known}; wanted is {' or '.join(kinds)}: "
                    f"{', '.join(can) or 'no step makes one'}"
                )
        for override in (*recipe.set, *step.set, *recipe.overrides):
            if "=" in override and override.startswith("run.seed") and recipe.seeds:
                yield f"steps.{name}: {override!r}: the recipe has seeds; change those"
        try:
            params = load_params(folder, overrides=step_overrides(recipe, name))
        except UserError as error:
            yield f"steps.{name}: {error}"
        else:
            yield from _unfit(recipe, name, step, params, folder)


def _unfit(recipe: Recipe, name: str, step: Any, params: Params, folder: Path) -> Iterator[str]:
    """Parameters and fields that only fit together."""
    if step.stage == "process_reward_model":
        for other in (*step.data, *step.replay):
            if isinstance(recipe.steps.get(other), SampleStep):
                made = load_params(folder, overrides=step_overrides(recipe, other)).sample
                if not made.continuations:
                    yield f"steps.{name}.data: {other} labels no steps; set sample.continuations in it"
    if step.stage == "rl":
        if step.reward_model and step.process_reward_model:
            yield f"steps.{name}: reward_model or process_reward_model, not both"
        process, labelled = params.rl.advantage == "process", bool(params.reward.judge.continuations)
        if process != (step.process_reward_model is not None or labelled):
            yield (
                f"steps.{name}: rl.advantage process and rewards of steps go together: name a "
                "process_reward_model or set reward.judge.continuations, and set rl.advantage=process"
            )
        if (params.rl.advantage == "distillation") != (step.teacher is not None):
            yield f"steps.{name}: a teacher and rl.advantage=distillation go together"
        if step.reference and not params.rl.kl_coef:
            yield f"steps.{name}.reference: without rl.kl_coef above 0 nothing reads it"
        if step.critic and params.rl.critic is None:
            yield f"steps.{name}.critic: set rl.advantage=gae and rl.critic as well"


def _ordered(recipe: Recipe, file: Path) -> dict[str, Any]:
    """The steps, each after what it needs, otherwise as they stand in the file.

    Raises:
        UserError: steps that need one another in a circle.
    """
    done: dict[str, Any] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            raise UserError(f"{file}: steps that need one another in a circle: {circle}")
        if name not in done:
            needed = [other for _, other, _ in references(recipe.steps[name])]
            if recipe.curated and isinstance(recipe.steps[name], _OnProblems):
                needed.append(recipe.curated)
            for other in needed:
                visit(other, (*path, name))
            done[name] = recipe.steps[name]

    for name in recipe.steps:
        visit(name, ())
    return done


def recipe_warnings(recipe: Recipe, folder: Path = FOLDER) -> list[str]:
    """Settings without effect (mathrl/params/ignored.py), each with the first step that has it."""
    steps: dict[str, str] = {}
    for step in recipe.steps:
        for line in warnings(load_params(folder, overrides=step_overrides(recipe, step))):
            steps.setdefault(line, step)
    return [f"{step}: {line}" for line, step in steps.items()]


def summary_models(recipe: Recipe) -> Mapping[str, Names]:
    """The evaluate steps with their models."""
    return {name: step.models for name, step in recipe.steps.items() if isinstance(step, EvaluateStep)}
