"""Recipes: the files of library/ and a project's params/recipes, resolved over params/ and a preset and checked as a
whole.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mathrl.compose.experiment import split_choices
from mathrl.compose.load import Layers, read_layers
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.params.advantage import Distillation, Gae, Process
from mathrl.params.data import Curate
from mathrl.params.load import FOLDER, apply_override, dump_yaml, parse_yaml, read_yaml
from mathrl.params.messages import did_you_mean, messages
from mathrl.params.recipe_steps import (
    DEFAULT,
    PIPELINE_OUTPUTS,
    PRODUCES,
    SPLITS,
    BaseStep,
    Claim,
    CurateStep,
    EvaluateStep,
    Names,
    OnProblems,
    Recipe,
    SampleStep,
    is_path,
    paths,
    references,
    short,
)
from mathrl.params.run import FreshModel
from mathrl.params.schema import READS, SECTIONS, Params
from mathrl.planning.final_values import NOTHING_TAUGHT, ignored_settings, judge, trained_values

SIZES = frozenset(f"model.base.{field}" for field in FreshModel.model_fields if field != "type")
PIPELINE_SPLITS = "data/curated"
CLAIM = "claim"  # the entry of summary.json with the models and tests of a claim


LIBRARY = Path(__file__).with_name("library")


def recipe_files(folder: Path = FOLDER) -> dict[str, Path]:
    """The file of each recipe by name: the package's, and over them those of params/ `folder`."""
    found = {file.stem: file for place in (LIBRARY, folder / "recipes") for file in place.glob("[!.]*.yaml")}
    return dict(sorted(found.items()))


def recipe_names(folder: Path = FOLDER) -> list[str]:
    return list(recipe_files(folder))


def load_recipe(name: str, folder: Path = FOLDER, overrides: Names = (), preset: str | None = None) -> Recipe:
    """The recipe over params/ and the preset, its steps ordered so that each comes after the steps that it needs.

    `overrides` win over those of every step; groups among them, such as model=FOLDER, count for the whole recipe. What
    depends on the model is resolved: `set_fresh` is part of `set` where the base has random weights, and {times: 0.5}
    is a number.

    Raises:
        UserError: no such recipe, wrong fields, a reference to an unknown step or to one without such an output,
            a cycle, or invalid parameters; all of them in one message.
    """
    chosen, settings = split_choices(overrides)
    recipe = read_recipe(name, folder, tuple(settings))
    file = recipe_files(folder)[name]
    layers = read_layers(folder, preset, None, chosen)
    recipe = _resolve(recipe, layers)
    errors = list(_errors(recipe, layers, folder.parent))
    for step in (step for step, each in recipe.steps.items() if each.stage == "register" and name != DEFAULT):
        errors.append(f"steps.{step}: only the pipeline, recipe {DEFAULT}, registers its model")
    if errors:
        raise UserError("; ".join(f"{file}: {line}" for line in dict.fromkeys(errors)))
    return recipe.model_copy(update={"steps": _order_steps(recipe, file)})


def read_recipe(name: str, folder: Path = FOLDER, overrides: Names = ()) -> Recipe:
    """The recipe as its file says, and the step `base` if others start from it.

    Raises:
        UserError: no such recipe, or wrong fields.
    """
    files = recipe_files(folder)
    if name not in files:
        raise UserError(f"no recipe {name!r}{did_you_mean(name, files)}; recipes: {', '.join(files)}")
    values = read_yaml(files[name])
    written = values.get("overrides") or []
    if isinstance(written, list):  # else the error names it
        values["overrides"] = [*written, *overrides]
    try:
        recipe = TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        lines = (f"{files[name]}: {'.'.join(map(str, path))}: {text}" for _, path, text in messages(error, Recipe))
        raise UserError("; ".join(lines)) from None
    needed = {other for step in recipe.steps.values() for _, other, _ in references(step)}
    if "base" in needed - {*recipe.steps}:
        recipe = recipe.model_copy(update={"steps": {"base": BaseStep(), **recipe.steps}})
    return recipe


def write_recipe(recipe: Recipe, file: Path, header: str) -> None:
    """Write a recipe that a command made into its file, without what is a default, if the file is another."""
    values = recipe.model_dump(mode="json", exclude_defaults=True)
    values["steps"] = {
        name: {"stage": step.stage, **values["steps"].get(name, {})} for name, step in recipe.steps.items()
    }
    text = header + dump_yaml(values)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_text(file, text)


def _resolve(recipe: Recipe, layers: Layers) -> Recipe:
    """The recipe without `set_fresh` and relative values."""

    of_model = tuple(override for override in recipe.overrides if override.startswith("model."))

    def settings(before: Names, level: Any) -> Names:
        own: Names = level.set
        if level.set_fresh and layers.is_fresh((*before, *own, *recipe.overrides)):
            own = (*own, *level.set_fresh)
        for number, override in enumerate(own):
            absolute = _absolute(override, layers, (*before, *own[:number], *of_model))
            own = (*own[:number], absolute, *own[number + 1 :])
        return own

    whole = settings((), recipe)
    steps = {
        name: step.model_copy(update={"set": settings(whole, step), "set_fresh": ()})
        for name, step in recipe.steps.items()
    }
    return recipe.model_copy(update={"set": whole, "set_fresh": (), "steps": steps})


def _absolute(override: str, layers: Layers, before: Names) -> str:
    """rl.optimizer.lr={times: 0.5} as a number: so many times the value that it has so far.

    Any other override is returned as it is, as is one of a parameter that is no number: the schema refuses it.
    """
    key, _, text = override.partition("=")
    if "times" not in text:
        return override
    value = parse_yaml(text, f"override {override!r}")
    if not (isinstance(value, dict) and value.keys() == {"times"} and isinstance(value["times"], int | float)):
        return override
    try:
        present = layers.value(key.strip(), before)
    except (UserError, AttributeError):
        return override
    if isinstance(present, bool) or not isinstance(present, int | float):
        return override
    result = present * value["times"]
    if not math.isfinite(result):
        return override
    return f"{key.strip()}={round(result) if isinstance(present, int) else float(f'{result:.12g}')}"


def step_overrides(recipe: Recipe, step: str) -> list[str]:
    """The overrides of a step, for the sections that its stage reads, in order: later ones win."""
    stage = recipe.steps[step].stage
    overrides = [*recipe.set, *recipe.steps[step].set, *recipe.overrides]
    return [override for override in overrides if override.split(".")[0].strip() in READS[stage]]


def step_params(recipe: Recipe, step: str, layers: Layers) -> Params:
    return layers.params(step_overrides(recipe, step))


def curate_of(recipe: Recipe, step: str, layers: Layers) -> Curate | None:
    """The settings of the splits that a step reads; None where it reads none, or those of a folder that is given."""
    reads = recipe.steps[step]
    if not isinstance(reads, OnProblems):
        return None
    curated = reads.curated or recipe.curated or PIPELINE_SPLITS
    if curated in recipe.steps:
        return step_params(recipe, curated, layers).curate
    if curated != PIPELINE_SPLITS:
        return None
    return layers.params([each for each in recipe.overrides if each.startswith("curate.")]).curate


def _errors(recipe: Recipe, layers: Layers, checkout: Path) -> Iterator[str]:
    for split in set(SPLITS) & set(recipe.steps):
        if recipe.steps[split].stage in ("sample", "mix"):
            yield f"steps.{split}: a split has this name; give the step another"
    if recipe.curated is not None and not isinstance(recipe.steps.get(recipe.curated), CurateStep):
        yield f"curated: {recipe.curated!r} is not a step of stage curate"
    if recipe.claim is not None:
        yield from _claim_errors(recipe, recipe.claim)
    # An override counts for the steps that read its section, so what has none would count nowhere.
    for override in (*recipe.set, *(each for step in recipe.steps.values() for each in step.set), *recipe.overrides):
        if override.split(".")[0].strip() not in SECTIONS:
            try:
                apply_override({}, override)
            except UserError as error:
                yield str(error)
    for name, step in recipe.steps.items():
        for path in paths(step):
            if not path.startswith(PIPELINE_OUTPUTS) and not (checkout / path).exists():
                yield (
                    f"steps.{name}: {path!r} is no file of the checkout, and nothing that the pipeline makes: "
                    f"{', '.join(PIPELINE_OUTPUTS)}"
                )
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
        labels = [short(model) for model in getattr(step, "models", ())]
        for label in sorted({label for label in labels if labels.count(label) > 1}):
            yield f"steps.{name}.models: two are called {label}; evaluate them in two steps"
        if problem := _shape_of_pretrained(recipe, name, layers):
            yield f"steps.{name}: {problem}"
            continue
        try:
            params = step_params(recipe, name, layers)
        except UserError as error:
            yield f"steps.{name}: {error}"
        else:
            yield from _conflicts(recipe, name, step, params, layers)
            yield from (f"steps.{name}: {line}" for line in judge(params, [step.stage], recipe.overrides)[0])


def _shape_of_pretrained(recipe: Recipe, name: str, layers: Layers) -> str:
    """What is wrong where a step gives random weights their sizes, and the model is pretrained; empty if nothing is."""
    sizes = [key for override in recipe.steps[name].set if (key := override.partition("=")[0].strip()) in SIZES]
    if not sizes or layers.is_fresh((*recipe.set, *recipe.steps[name].set, *recipe.overrides)):
        return ""
    return (
        f"it sets {', '.join(sizes)} of a model of random weights, but model.base is pretrained: write a copy of the "
        "recipe in which this step names its model, set: ['model.base={type: pretrained, path: FOLDER_OR_HUB_ID}']"
    )


def _claim_errors(recipe: Recipe, claim: Claim) -> Iterator[str]:
    evaluated = summary_models(recipe)
    for name in {name for name in claim.evaluations if not is_path(name)} - set(evaluated):
        yield f"claim.evaluations: {name!r} is not an evaluate step; write one of {', '.join(evaluated) or 'none'}"
    first = evaluated.get(claim.evaluations[0], (claim.start, claim.model))
    for field, name in (("start", claim.start), ("model", claim.model)):
        if name not in first:
            yield f"claim.{field}: {name!r} is not evaluated by {claim.evaluations[0]}; models: {', '.join(first)}"
    for name in {short(name) for name in claim.evaluations if is_path(name)} & set(recipe.steps):
        yield f"steps.{name}: an evaluation of the claim that is taken by its path has this name; give the step another"
    if CLAIM in recipe.steps:
        yield f"steps.{CLAIM}: the table of the claim has this name; give the step another"


def _conflicts(recipe: Recipe, name: str, step: Any, params: Params, layers: Layers) -> Iterator[str]:
    """Errors of parameters and fields that contradict each other."""
    curate = curate_of(recipe, name, layers)
    if step.stage == "mix" and curate is not None:
        sources = [source.name for source in curate.sources]
        for part in params.mix.components:
            if part.source not in ("*", *sources):
                yield (
                    f"steps.{name}: mix.components: no source {part.source!r}{did_you_mean(part.source, sources)}; "
                    f"write one of {', '.join(dict.fromkeys(sources))}, or '*' for all"
                )
    taught = step.stage == "sft" and params.sft.steps and "sft" in step.data
    if taught and curate is not None and not curate.fills("sft"):
        yield f"steps.{name}: {NOTHING_TAUGHT}"
    if step.stage == "process_reward_model":
        for other in (*step.data, *step.replay):
            if isinstance(recipe.steps.get(other), SampleStep):
                sample = step_params(recipe, other, layers).sample
                if not sample.continuations:
                    yield f"steps.{name}.data: {other} labels no steps; set sample.continuations in it"
    if step.stage == "rl":
        if step.reward_model and step.process_reward_model:
            yield f"steps.{name}: name a reward_model or a process_reward_model, not both"
        process, labelled = isinstance(params.rl.advantage, Process), bool(params.reward.judge.continuations)
        if process != (step.process_reward_model is not None or labelled):
            yield (
                f"steps.{name}: rl.advantage process and rewards of steps go together: name a "
                "process_reward_model or set reward.judge.continuations, and set rl.advantage=process"
            )
        if isinstance(params.rl.advantage, Distillation) != (step.teacher is not None):
            yield f"steps.{name}: a teacher and rl.advantage=distillation go together: set both or neither"
        if step.reference and not params.rl.kl_coef:
            yield f"steps.{name}.reference: it has no effect unless rl.kl.coef is above 0"
        if step.critic and not isinstance(params.rl.advantage, Gae):
            yield f"steps.{name}.critic: set rl.advantage=gae as well"


def _order_steps(recipe: Recipe, file: Path) -> dict[str, Any]:
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
            if recipe.curated and isinstance(recipe.steps[name], OnProblems):
                needed.append(recipe.curated)
            for other in needed:
                visit(other, (*path, name))
            done[name] = recipe.steps[name]

    for name in recipe.steps:
        visit(name, ())
    return done


def recipe_is_judged(recipe: Recipe, folder: Path = FOLDER, preset: str | None = None, overrides: Names = ()) -> bool:
    """Whether there is anything to ask of the data: a step starts from a pretrained model, or learns from rows of files
    or the hub, which may have no solutions."""
    layers = read_layers(folder, preset, None, split_choices(overrides)[0])
    steps = recipe.steps.values()
    pretrained = any(not layers.is_fresh((*recipe.set, *step.set, *recipe.overrides)) for step in steps)
    return pretrained or layers.params(recipe.overrides).curate.has_rows


def recipe_warnings(
    recipe: Recipe, folder: Path = FOLDER, preset: str | None = None, overrides: Names = ()
) -> list[str]:
    """Settings without effect and doubtful values that a person typed, each with the first step that has it."""
    steps: dict[str, str] = {}
    layers = read_layers(folder, preset, None, split_choices(overrides)[0])
    for name, step in recipe.steps.items():
        params = step_params(recipe, name, layers)
        for line in [*ignored_settings(params), *judge(params, [step.stage], recipe.overrides)[1]]:
            steps.setdefault(line, name)
    return [f"{step}: {line}" for line, step in steps.items()]


def recipe_values(recipe: Recipe, preset: str | None, overrides: Names) -> dict[str, str]:
    """The rates and lengths of each step that has some: {"rl": "rl.optimizer.lr 1e-06 (adamw), rl.max_tokens 512"}."""
    layers = read_layers(FOLDER, preset, None, split_choices(overrides)[0])
    values = {
        name: trained_values(step_params(recipe, name, layers), step.stage) for name, step in recipe.steps.items()
    }
    return {name: line for name, line in values.items() if line}


def summary_models(recipe: Recipe) -> Mapping[str, Names]:
    """The labels of the models of each evaluate step, by the step's name."""
    return {
        name: tuple(map(short, step.models)) for name, step in recipe.steps.items() if isinstance(step, EvaluateStep)
    }
