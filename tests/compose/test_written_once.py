"""No value is written twice: what a group, a preset or a file of params/ says differs from what is beneath it."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose.experiment import Composition, read_composition, split_choices
from mathrl.compose.load import Layers, read_layers
from mathrl.compose.names import KINDS, PRESETS, file_names
from mathrl.core.errors import UserError
from mathrl.params.load import read_yaml
from mathrl.params.recipe_steps import Recipe
from mathrl.params.schema import READS, SECTIONS, Params
from mathrl.recipes.recipe import load_recipe, recipe_names, step_params

PARAMS = Path(__file__).parents[2] / "params"
NONE = Path("no/params")
FILES = [
    *((kind, name, file) for kind in (*KINDS, PRESETS) for name, file in file_names(NONE, kind).items()),
    *(("project", file.stem, file) for file in sorted(PARAMS.glob("*.yaml"))),
]
MADE = ("controls-", "sweep-")  # recipes that commands write here
# What makes the rest valid: any data, and for what is for random weights alone the toy.
# Defaults that a file states because it is about them: the page of a published run shows them beside the document's,
# and the demo's problems are what its figures are of, whatever the generator's defaults become.
CHAIN = [f"curate.sources.0.options.{option}" for option in ("steps", "largest_number", "largest_result", "notation")]
SHOWN = {
    "chain": [*CHAIN, *(f"fresh.{key}" for key in CHAIN[:3])],
    "dapo-32b": ["reward.parts.1.options.factor"],
    "countdown-grpo-zero-24gb": ["reward.parts.0.options.format"],
    "countdown-grpo-zero-48gb": ["reward.parts.0.options.format"],
}
BESIDE = {"data": "gsm8k", "model": "Qwen/Qwen2.5-0.5B"}


def leaves(values: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of single values, and of those of the mappings in a list."""
    listed = isinstance(values, list)
    for key, value in enumerate(values) if listed else values.items():
        if isinstance(value, Mapping | list) and any(isinstance(part, Mapping) for part in parts(value)):
            yield from leaves(value, (*above, key))
        elif not listed:
            yield (*above, key)


def parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value] if value else []


def without(values: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """The values without one; a mapping that has nothing else goes with it, but an item of a list stays."""
    shorter = copy.deepcopy(values)
    above: list[Any] = [shorter]
    for key in path[:-1]:
        above.append(above[-1][key])
    for here, key in zip(reversed(above), reversed(path), strict=True):
        if isinstance(here, list):
            break
        del here[key]
        if here:
            break
    return shorter


def bare(values: Any) -> Any:
    """What a file chooses, and the types and lists without which its values are of nothing."""
    if isinstance(values, Mapping):
        inner = {key: bare(value) for key, value in values.items() if key not in ("type", "path", "help")}
        chosen = {key: value for key, value in values.items() if key in ("type", "path", "help") or key in KINDS}
        return {key: value for key, value in inner.items() if value} | chosen
    return values if isinstance(values, list) and any(isinstance(part, Mapping) for part in values) else None


def value_of(params: Params, path: tuple[Any, ...]) -> Any:
    value: Any = params.model_dump(by_alias=True)
    for key in path[path[0] == "fresh" :]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def layers_of(folder: Path, kind: str, name: str, values: dict[str, Any], fresh: bool) -> Layers:
    """The layers of a project whose file of this kind and name has these values."""
    file = folder / f"{name}.yaml" if kind == "project" else folder / kind / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(values))  # which is YAML, and a third of the time
    if kind == "project":
        try:
            return read_layers(folder)
        finally:
            file.unlink()
    beside = {**BESIDE, **({"model": "toy"} if fresh else {})}
    if kind == PRESETS:
        groups = {other: value for other, value in beside.items() if not isinstance(values.get(other), str)}
        return read_layers(folder, name, None, Composition(groups))
    return read_layers(folder, None, None, Composition({**beside, kind: name}))


@pytest.mark.parametrize(("kind", "name", "file"), FILES, ids=[f"{kind}-{name}" for kind, name, _ in FILES])
def test_no_value_repeats_what_is_beneath_it(kind: str, name: str, file: Path, tmp_path: Path) -> None:
    values = read_yaml(file)
    if kind == "project":
        if name == "experiment":
            assert read_composition(PARAMS).values() == values
            return
        values = {name: values}
        (tmp_path / "experiment.yaml").write_text((PARAMS / "experiment.yaml").read_text())
    whole = cache(lambda fresh: layers_of(tmp_path, kind, name, values[name] if kind == "project" else values, fresh))
    stated = cache(lambda fresh: whole(fresh).stated_params())
    beneath = cache(lambda fresh: layers_of(tmp_path, kind, name, bare(values), fresh).stated_params())
    twice = []
    for path in leaves(values):
        if path[0] == "help" or (len(path) == 1 and path[0] in KINDS) or path == ("model", "base", "type"):
            continue  # the type of the toy is also what a params/model.yaml with another model is told
        fresh = path[0] == "fresh" or name in ("toy", "demo")
        shorter = without(values, path)
        stated(fresh)  # which is right
        try:
            if kind == PRESETS and value_of(stated(fresh), path) != value_of(beneath(fresh), path):
                continue  # it says something
        except UserError:
            pass
        try:
            after = layers_of(tmp_path, kind, name, shorter[name] if kind == "project" else shorter, fresh)
            same = after.stated_params() == stated(fresh)
            if same and kind == PRESETS:  # also the derived ones, which a written value stops
                same = after.params() == whole(fresh).params()
        except UserError:
            if kind == "project":
                raise
            continue  # without it the rest says nothing: a type, a path
        if same:
            twice.append(".".join(map(str, path)))
    assert twice == SHOWN.get(name, []), f"{file} repeats what holds without it: {twice}"


def of_step(recipe: Recipe, step: str, layers: Layers) -> Params | None:
    """The parameters of a step; None where they are wrong."""
    try:
        return step_params(recipe, step, layers)
    except UserError:
        return None


def repeated(recipe: Recipe, level: Any, steps: Sequence[str], layers: Layers) -> set[str]:
    """The overrides of a level (the recipe or a step) without which none of the steps has another value."""
    twice, whole = set(), cache(lambda step: of_step(recipe, step, layers))
    for number, override in enumerate(level.set):
        shorter = {"set": (*level.set[:number], *level.set[number + 1 :])}
        if level is recipe:
            other = recipe.model_copy(update=shorter)
        else:
            other = recipe.model_copy(update={"steps": {**recipe.steps, steps[0]: level.model_copy(update=shorter)}})
        read = [each for each in steps if override.split(".")[0] in READS[recipe.steps[each].stage]]
        if all(whole(each) == of_step(other, each, layers) for each in read):
            twice.add(override)
    return twice


@pytest.mark.parametrize("name", [name for name in recipe_names(PARAMS) if not name.startswith(MADE)])
def test_no_override_of_a_recipe_repeats_what_holds_without_it(name: str) -> None:
    """Neither on the demo's model nor on a pretrained one; what only one of them has already says something."""
    found: list[set[str]] = []
    for words in ((), tuple(f"{kind}={value}" for kind, value in {**BESIDE, "hardware": "8x80GB"}.items())):
        layers = read_layers(PARAMS, None, None, split_choices(words)[0])
        try:
            recipe = load_recipe(name, PARAMS, (*words, "curate.sft_share=0.25"))
        except UserError:  # it is for random weights alone
            continue
        recipe = recipe.model_copy(update={"overrides": ()})
        levels: list[tuple[Any, list[str]]] = [(recipe, list(recipe.steps))]
        levels += [(step, [label]) for label, step in recipe.steps.items()]
        found.append(
            {
                f"{'+'.join(steps) if level is not recipe else name}: {override}"
                for level, steps in levels
                for override in repeated(recipe, level, steps, layers)
            }
        )
    assert set.intersection(*found) == set()


def test_every_section_of_the_schema_may_stay_unwritten(tmp_path: Path) -> None:
    """But for the problems and the mixture, which only data can say."""
    params = read_layers(tmp_path, None, None, Composition({"data": "gsm8k"})).params()
    assert set(params.model_dump(by_alias=True)) == set(SECTIONS)
