"""No value is written twice: what a group, a preset or a file of params/ says differs from what is beneath it."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose.experiment import Composition, read_composition
from mathrl.compose.groups import KINDS, PRESETS, file_names
from mathrl.compose.load import read_layers
from mathrl.core.errors import UserError
from mathrl.params.load import dump_yaml, read_yaml
from mathrl.params.schema import SECTIONS

PARAMS = Path(__file__).parents[2] / "params"
NONE = Path("no/params")
FILES = [
    *((kind, name, file) for kind in (*KINDS, PRESETS) for name, file in file_names(NONE, kind).items()),
    *(("project", file.stem, file) for file in sorted(PARAMS.glob("*.yaml"))),
]
# What makes the rest valid: any data, and for what is for random weights alone the toy.
BESIDE = {"data": "gsm8k", "model": "Qwen/Qwen2.5-0.5B"}


def leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key)


def without(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The values without one; a mapping that has nothing else goes with it."""
    shorter = copy.deepcopy(values)
    parents = [shorter]
    for key in path[:-1]:
        parents.append(parents[-1][key])
    for here, key in zip(reversed(parents), reversed(path), strict=True):
        del here[key]
        if here:
            break
    return shorter


def resolved(folder: Path, kind: str, name: str, values: dict[str, Any], fresh: bool) -> Any:
    """The parameters of a project whose file of this kind and name has these values; of a preset also with the derived
    ones, which a written value stops."""
    if kind == "project":
        file = folder / f"{name}.yaml"
        file.write_text(dump_yaml(values))
        try:
            return read_layers(folder).stated().model_dump()
        finally:
            file.unlink()
    file = folder / kind / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(dump_yaml(values))
    beside = {**BESIDE, **({"model": "toy"} if fresh else {})}
    if kind == PRESETS:
        groups = {other: value for other, value in beside.items() if not isinstance(values.get(other), str)}
        layers = read_layers(folder, name, None, Composition(groups))
        return layers.stated().model_dump(), layers.params().model_dump()
    return read_layers(folder, None, None, Composition({**beside, kind: name})).stated().model_dump()


@pytest.mark.parametrize(("kind", "name", "file"), FILES, ids=[f"{kind}-{name}" for kind, name, _ in FILES])
def test_no_value_repeats_what_is_beneath_it(kind: str, name: str, file: Path, tmp_path: Path) -> None:
    values = read_yaml(file)
    if kind == "project":
        if name == "experiment":
            assert read_composition(PARAMS).values() == values
            return
        values = {name: values}
        (tmp_path / "experiment.yaml").write_text((PARAMS / "experiment.yaml").read_text())
    twice = []
    for path in leaves(values):
        if path[0] == "help" or (len(path) == 1 and path[0] in KINDS) or path == ("model", "base", "type"):
            continue  # the type of the toy is also what a params/model.yaml with another model is told
        fresh = path[0] == "fresh" or name in ("toy", "demo")
        shorter = without(values, path)
        if kind == "project":
            before, after = (resolved(tmp_path, kind, name, each[name], fresh) for each in (values, shorter))
        else:
            try:
                before, after = (resolved(tmp_path, kind, name, each, fresh) for each in (values, shorter))
            except UserError:
                continue  # without it the rest says nothing: a type, a path
        if before == after:
            twice.append(".".join(path))
    assert twice == [], f"{file} repeats what holds without it"


def test_every_section_of_the_schema_may_stay_unwritten(tmp_path: Path) -> None:
    """But for the problems and the mixture, which only data can say."""
    params = read_layers(tmp_path, None, None, Composition({"data": "gsm8k"})).params()
    assert set(params.model_dump(by_alias=True)) == set(SECTIONS)
