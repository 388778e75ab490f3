"""dvc.yaml says what the code says: stages, parameters, inputs, outputs, and the code that is run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mathrl.params.recipe_steps import DEFAULT
from mathrl.params.schema import READS, STAGES
from mathrl.params.watched_code import imported_files, watched_code
from mathrl.recipes.graph import graph_files
from mathrl.recipes.recipe import load_recipe

ROOT = Path(__file__).parents[2]
StageFiles = Callable[[str], tuple[list[str], list[str]]]


def stages() -> dict[str, Any]:
    """The stages of dvc.yaml but the one that resolves the parameters."""
    found: dict[str, Any] = dict(YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"])
    del found["resolve"]
    return found


def paths(entries: list[Any]) -> set[str]:
    return {next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries}


NAMES = list(stages())


def test_it_is_made_from_the_recipe_of_the_pipeline() -> None:
    ((file, text),) = graph_files(DEFAULT, load_recipe(DEFAULT, ROOT / "params"), ROOT).items()
    assert file == ROOT / "dvc.yaml" and file.read_text() == text, "run: make generate"


def test_the_stages_are_those_of_the_schema() -> None:
    assert tuple(NAMES) == STAGES


def test_only_the_stage_that_resolves_them_depends_on_params() -> None:
    resolve = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]["resolve"]
    assert resolve == {
        "cmd": "python -m mathrl.stages.resolve",
        "deps": ["params", *watched_code("resolve", ROOT)],
        "outs": ["resolved.yaml"],
    }
    assert not [dep for stage in stages().values() for dep in paths(stage["deps"]) if dep.startswith("params")]


@pytest.mark.parametrize("stage", NAMES)
def test_a_stage_watches_the_sections_that_it_may_read(stage: str) -> None:
    assert stages()[stage]["params"] == [{"resolved.yaml": list(READS[stage])}]


@pytest.mark.parametrize("stage", NAMES)
def test_a_stages_inputs_and_outputs_are_watched(stage: str, stage_files: StageFiles) -> None:
    inputs, outputs = stage_files(stage)
    deps = paths(stages()[stage]["deps"])
    for path in inputs:
        assert any(path == dep or path.startswith(dep + "/") for dep in deps), path
    data = {dep for dep in deps if not dep.startswith("mathrl/")}
    for dep in data:
        assert any(path == dep or path.startswith(dep + "/") for path in inputs), f"{dep} is no input"
    declared = paths(stages()[stage].get("outs", [])) | paths(stages()[stage].get("metrics", []))
    assert declared == set(outputs)


@pytest.mark.parametrize("stage", NAMES)
def test_the_code_that_a_stage_imports_is_watched_and_no_other(stage: str) -> None:
    deps = {dep for dep in paths(stages()[stage]["deps"]) if dep.startswith("mathrl/")}
    assert sorted(deps) == watched_code(stage, ROOT), "run: python -m mathrl.params.watched_code"
    imported = imported_files(f"mathrl.stages.{stage}", ROOT)
    for folder in (dep for dep in deps if not dep.endswith(".py")):
        files = {f"{folder}/{file.name}" for file in (ROOT / folder).glob("*.py")} - {f"{folder}/__init__.py"}
        idle = files - imported
        assert len(idle) <= max(3, len(files) / 4), f"{stage} watches {folder}, but does not import {sorted(idle)}"


@pytest.mark.parametrize(
    ("stage", "others"),
    [
        ("sft", ("trainers/rl.py", "trainers/policy_update.py", "planning/memory.py", "reports/pictures.py")),
        ("difficulty", ("evaluation/paired.py", "evaluation/summary.py", "reports/pictures.py", "trainers/rl.py")),
        ("rl", ("planning/simulate.py", "reports/training_curves.py", "evaluation/summary.py", "data/curation.py")),
        ("evaluate", ("data/curation.py", "data/mixture.py", "learners/optimizer.py", "reports/pictures.py")),
    ],
)
def test_an_edit_elsewhere_does_not_rerun_a_stage(stage: str, others: tuple[str, ...]) -> None:
    for other in others:
        assert (ROOT / "mathrl" / other).exists()
        for dep in paths(stages()[stage]["deps"]):
            assert not f"mathrl/{other}".startswith(dep), f"{dep} makes {stage} rerun for mathrl/{other}"
