"""Recipes: params/recipes/<name>.yaml, steps that start from models and data of other steps; checked as a whole."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from mathrl.core.errors import UserError
from mathrl.params.ignored import warnings
from mathrl.params.learning_rates import unfit_rates
from mathrl.params.load import FOLDER, load_params, read_yaml
from mathrl.params.messages import did_you_mean, messages
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import READS, Params
from mathrl.params.section import Section

SPLITS = ("sft", "rl")  # dev and test are never trained on
POLICIES = ("base", "sft", "rl", "dpo")
Names = tuple[str, ...]
CLAIM = "claim"  # the entry of summary.json with the models and tests of a claim
START = "Step whose model this step starts from, or base."


class _Step(Section):
    set: Names = Field((), description="Dotted overrides of params/ for this step; they win over the recipe's.")


class _OnProblems(_Step):
    curated: str | None = Field(
        None, description="Curate step whose splits this step reads; null: the recipe's, else data/curated."
    )


class BaseStep(_OnProblems):
    """The base model of params/model.yaml; a recipe has a step of this name if another starts from it.

    It reads the sft split for a BPE tokenizer alone.
    """

    stage: Literal["base"] = "base"


class CurateStep(_Step):
    """Splits of this recipe alone; computed once, not once per seed."""

    stage: Literal["curate"]


class SftStep(_OnProblems):
    """Supervised fine-tuning on splits and on the responses that sample steps kept."""

    stage: Literal["sft"]
    start: str = Field("base", description=START)
    data: Names = Field(("sft",), min_length=1, description="Data to train on: splits or sample steps.")


class DifficultyStep(_OnProblems):
    """Pass rates of a model on a split."""

    stage: Literal["difficulty"]
    start: str = Field(description=START)
    data: str = Field("rl", description="Split whose problems are measured.")


class MixStep(_OnProblems):
    """A training set that stage mix composes by pass rates."""

    stage: Literal["mix"]
    difficulty: str = Field(description="Difficulty step with the pass rates.")
    data: str = Field("rl", description="Split to choose problems from.")


class RlStep(_OnProblems):
    """Reinforcement learning on splits or mixtures."""

    stage: Literal["rl"]
    start: str = Field(description=START)
    data: Names = Field(("rl",), min_length=1, description="Problems to train on: splits or mix steps.")
    difficulty: str | None = Field(None, description="Difficulty step whose pass@8 must reach rl.min_pass_at_8.")
    reward_model: str | None = Field(None, description="Reward model step whose scores replace the rule-based rewards.")
    process_reward_model: str | None = Field(
        None, description="Process reward model step that scores every reasoning step."
    )
    critic: str | None = Field(None, description="Step whose model initialises the critic (rl.critic.path).")
    reference: str | None = Field(None, description="Step whose model is the KL's reference; null: the start.")
    teacher: str | None = Field(None, description="Step whose model is the teacher of on-policy distillation.")


class SampleStep(_OnProblems):
    """Graded samples of a model: responses to imitate, preference pairs, labels of reasoning steps."""

    stage: Literal["sample"]
    start: str = Field(description=START)
    data: Names = Field(("rl",), min_length=1, description="Problems to sample: splits or mix steps.")


class DpoStep(_Step):
    """Direct preference optimisation on the pairs of sample steps."""

    stage: Literal["dpo"]
    start: str = Field(description=START)
    data: Names = Field(min_length=1, description="Sample steps with the pairs.")


class RewardModelStep(_Step):
    """A reward model: of responses, trained on pairs, or of reasoning steps, trained on Monte-Carlo labels."""

    stage: Literal["reward_model", "process_reward_model"]
    start: str = Field(description="Step whose model this step starts from; a reward model is trained further.")
    data: Names = Field(min_length=1, description="Sample steps with the pairs, or with the labelled steps.")
    replay: Names = Field((), description="Earlier sample steps; the share reward_model.replay of their rows is added.")


class EvaluateStep(_OnProblems):
    """Evaluation of models on held-out problems."""

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


class Claim(Section):
    """A claim that the recipe tests against controls: that training turned `start` into the better `model`.

    Every other model of the evaluations is a control, compared with both (mathrl/evaluation/claim.py).
    """

    start: str = Field(description="Step whose model the training began with.")
    model: str = Field(description="Step whose model is claimed to be better.")
    evaluations: Names = Field(
        min_length=1,
        description="Evaluate steps: the first has start, model and controls; a further one of a single model is a "
        "control by its step's name.",
    )


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
    """Ordered steps; each names the models and data that it starts from.

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
        (), description="Overrides of `mathrl recipe --set`; they win over those of the recipe and its steps."
    )
    curated: str | None = Field(None, description="Curate step whose splits the steps read; null: data/curated.")
    claim: Claim | None = Field(None, description="A claim to test against controls, over all seeds; null: none.")
    steps: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Step] = Field(
        min_length=1, description="Steps by name, each with its stage."
    )


def recipe_names(folder: Path = FOLDER) -> list[str]:
    return sorted(file.stem for file in (folder / "recipes").glob("*.yaml"))


def load_recipe(name: str, folder: Path = FOLDER, overrides: Names = ()) -> Recipe:
    """The recipe, its steps ordered so that each comes after the steps that it needs.

    `overrides` win over those of every step.

    Raises:
        UserError: no such recipe, wrong fields, a reference to an unknown step or to one without such an output,
            a cycle, or invalid parameters; all of them in one message.
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
    if errors := list(_errors(recipe, folder)):
        raise UserError("; ".join(f"{file}: {line}" for line in errors))
    return recipe.model_copy(update={"steps": _ordered(recipe, file)})


def step_overrides(recipe: Recipe, step: str) -> list[str]:
    """The overrides of a step, for the sections that its stage reads, in order: later ones win."""
    stage = recipe.steps[step].stage
    overrides = [*recipe.set, *recipe.steps[step].set, *recipe.overrides]
    return [override for override in overrides if override.split(".")[0].strip() in READS[stage]]


def references(step: Any) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """A step's references to others: the field, the name, and the kinds of output allowed. Splits are left out."""
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
        value = getattr(step, field, None)
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
        for name in (value,) if isinstance(value, str) else value or ():
            if not (field == "data" and "a split" in kinds and name in SPLITS):
                yield field, name, kinds


def _errors(recipe: Recipe, folder: Path) -> Iterator[str]:
    for split in set(SPLITS) & set(recipe.steps):
        if recipe.steps[split].stage in ("sample", "mix"):
            yield f"steps.{split}: a split has this name; give the step another"
    if recipe.curated is not None and not isinstance(recipe.steps.get(recipe.curated), CurateStep):
        yield f"curated: {recipe.curated!r} is not a step of stage curate"
    if recipe.claim is not None:
        yield from _claim_errors(recipe, recipe.claim)
    for name, step in recipe.steps.items():
        for field, other, kinds in references(step):
            stages = {stage for kind in kinds if kind != "a split" for stage in PRODUCES[kind]}
            fitting = [s for s, candidate in recipe.steps.items() if candidate.stage in stages]
            if other not in fitting:
                choices = [*SPLITS] * ("a split" in kinds) + [s for s in fitting if s != name]
                problem = f"does not produce {' or '.join(kinds)}" if other in recipe.steps else "is not a step"
                if field == "data" and other in ("dev", "test"):
                    problem = "is held out and never trained on"
                yield (
                    f"steps.{name}.{field}: {other!r} {problem}{did_you_mean(other, choices)}; "
                    f"expected {' or '.join(kinds)}: {', '.join(choices) or 'no step produces one'}"
                )
        for override in (*recipe.set, *step.set, *recipe.overrides):
            if "=" in override and override.startswith("run.seed") and recipe.seeds:
                yield f"steps.{name}: {override!r}: the recipe has seeds; change those"
        try:
            params = load_params(folder, overrides=step_overrides(recipe, name))
        except UserError as error:
            yield f"steps.{name}: {error}"
        else:
            yield from _conflicts(recipe, name, step, params, folder)
            written = None
            if recipe.overrides and isinstance(params.model.base, PretrainedModel):
                as_written = recipe.model_copy(update={"overrides": ()})
                written = load_params(folder, overrides=step_overrides(as_written, name))
            yield from (f"steps.{name}: {line}" for line in unfit_rates(params, step.stage, written))


def _claim_errors(recipe: Recipe, claim: Claim) -> Iterator[str]:
    evaluated = summary_models(recipe)
    for name in set(claim.evaluations) - set(evaluated):
        yield f"claim.evaluations: {name!r} is not an evaluate step; write one of {', '.join(evaluated) or 'none'}"
    first = evaluated.get(claim.evaluations[0], (claim.start, claim.model))
    for field, name in (("start", claim.start), ("model", claim.model)):
        if name not in first:
            yield f"claim.{field}: {name!r} is not evaluated by {claim.evaluations[0]}; models: {', '.join(first)}"
    if CLAIM in recipe.steps:
        yield f"steps.{CLAIM}: the table of the claim has this name; give the step another"


def _conflicts(recipe: Recipe, name: str, step: Any, params: Params, folder: Path) -> Iterator[str]:
    """Errors of parameters and fields that contradict each other."""
    if step.stage == "process_reward_model":
        for other in (*step.data, *step.replay):
            if isinstance(recipe.steps.get(other), SampleStep):
                sample = load_params(folder, overrides=step_overrides(recipe, other)).sample
                if not sample.continuations:
                    yield f"steps.{name}.data: {other} labels no steps; set sample.continuations in it"
    if step.stage == "rl":
        if step.reward_model and step.process_reward_model:
            yield f"steps.{name}: name a reward_model or a process_reward_model, not both"
        process, labelled = params.rl.advantage == "process", bool(params.reward.judge.continuations)
        if process != (step.process_reward_model is not None or labelled):
            yield (
                f"steps.{name}: rl.advantage process and rewards of steps go together: name a "
                "process_reward_model or set reward.judge.continuations, and set rl.advantage=process"
            )
        if (params.rl.advantage == "distillation") != (step.teacher is not None):
            yield f"steps.{name}: a teacher and rl.advantage=distillation go together: set both or neither"
        if step.reference and not params.rl.kl_coef:
            yield f"steps.{name}.reference: it has no effect unless rl.kl_coef is above 0"
        if step.critic and params.rl.critic is None:
            yield f"steps.{name}.critic: set rl.advantage=gae and rl.critic as well"


def _ordered(recipe: Recipe, file: Path) -> dict[str, Any]:
    """The steps, each after the steps that it needs, otherwise in the order of the file.

    Raises:
        UserError: a cycle of steps that need one another.
    """
    done: dict[str, Any] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " -> ".join((*path[path.index(name) :], name))
            raise UserError(f"{file}: these steps need one another in a cycle: {cycle}")
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
    """The models of each evaluate step, by the step's name."""
    return {name: step.models for name, step in recipe.steps.items() if isinstance(step, EvaluateStep)}
