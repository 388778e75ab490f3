"""dvc.yaml says what the code says: stages, parameters, inputs, outputs, and the code that is run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mathrl.params.recipe_steps import DEFAULT
from mathrl.params.schema import READS, STAGES
from mathrl.recipes.graph import graph_files
from mathrl.recipes.recipe import load_recipe

ROOT = Path(__file__).parents[2]
StageFiles = Callable[[str], tuple[list[str], list[str]]]


def stages() -> dict[str, Any]:
    """The stages of dvc.yaml but those that write the code's values and the parameters."""
    found: dict[str, Any] = dict(YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"])
    del found["code"], found["resolve"]
    return found


def paths(entries: list[Any]) -> set[str]:
    return {next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries}


NAMES = list(stages())


def test_it_is_made_from_the_recipe_of_the_pipeline() -> None:
    ((file, text),) = graph_files(DEFAULT, load_recipe(DEFAULT, ROOT / "params"), ROOT).items()
    assert file == ROOT / "dvc.yaml" and file.read_text() == text, "run: make generate"


def test_only_the_stage_that_resolves_them_depends_on_params() -> None:
    assert tuple(NAMES) == STAGES
    resolve = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]["resolve"]
    assert resolve == {
        "cmd": "python -m mathrl.stages.resolve",
        "deps": ["params"],
        "params": [{"code.yaml": ["resolve", "model"]}],
        "outs": ["resolved.yaml"],
    }


@pytest.mark.parametrize("stage", NAMES)
def test_a_stage_watches_its_inputs_outputs_sections_and_code_alone(stage: str, stage_files: StageFiles) -> None:
    sections, code = stages()[stage]["params"]
    assert sections == {"resolved.yaml": list(READS[stage])}
    own = ["own"] if {"reward", "rl"} & set(READS[stage]) else []  # the project's own functions
    assert code == {"code.yaml": [stage, *own]}

    inputs, outputs = stage_files(stage)
    deps = paths(stages()[stage]["deps"])
    for path in inputs:
        assert any(path == dep or path.startswith(dep + "/") for dep in deps), path
    for dep in deps:
        assert any(path == dep or path.startswith(dep + "/") for path in inputs), f"{dep} is no input"
    declared = paths(stages()[stage].get("outs", [])) | paths(stages()[stage].get("metrics", []))
    assert declared == set(outputs)
