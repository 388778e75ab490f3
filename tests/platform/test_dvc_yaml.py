"""dvc.yaml says what the code says: stages, parameters, inputs, outputs, and the code that is run."""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mathrl.params.schema import READS, STAGES

ROOT = Path(__file__).parents[2]
# What every stage imports, and what a change to would rerun everything: watched by nobody, kept stable.
UNWATCHED = (
    "mathrl/__init__.py",
    "mathrl/core/",
    "mathrl/params/",
    "mathrl/tracking/",
    "mathrl/stages/stage_run.py",
    "mathrl/stages/__init__.py",
)
# Imported by what a dry run calls, or reached through it, and not by the stage's work.
NOT_RUN = {
    "curate": ("mathrl/evaluation/", "mathrl/models/", "mathrl/rollout/"),
    # What writes the report, which is no output of DVC's.
    "register": (
        "mathrl/algorithms/",
        "mathrl/data/",
        "mathrl/evaluation/",
        "mathrl/models/",
        "mathrl/rewards/",
        "mathrl/rollout/",
        "mathrl/trainers/",
        "mathrl/reports/find_run.py",
        "mathrl/reports/html",
    ),
}
StageFiles = Callable[[str], tuple[list[str], list[str]]]
BESIDE = ("controls", "pages")


def stages() -> dict[str, Any]:
    """Every stage of the DVC files, with paths from the checkout's top."""
    found: dict[str, Any] = dict(YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"])
    for name in BESIDE:
        found |= YAML(typ="safe").load(ROOT / name / "dvc.yaml")["stages"]
    return found


def paths(entries: list[Any]) -> set[str]:
    return {next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries}


NAMES = list(stages())


def test_the_stages_are_those_of_the_schema() -> None:
    assert set(NAMES) - set(BESIDE) == set(STAGES)


@pytest.mark.parametrize("stage", NAMES)
def test_a_stage_watches_whole_files_of_the_sections_that_it_may_read(stage: str) -> None:
    assert stages()[stage]["params"] == [{f"params/{section}.yaml": None} for section in READS[stage]]


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
    passed_over = (*UNWATCHED, *NOT_RUN.get(stage, ()))
    imported = {file for file in reached(f"mathrl.stages.{stage}") if not file.startswith(passed_over)}
    deps = {dep for dep in paths(stages()[stage]["deps"]) if dep.startswith("mathrl/")}
    missed = {file for file in imported if not any(file == d or file.startswith(d + "/") for d in deps)}
    assert missed == set(), "imported, but a change to it would not rerun the stage"
    idle = {dep for dep in deps if not any(f == dep or f.startswith(dep + "/") for f in imported)}
    assert idle == set(), "watched, but not imported"


def reached(module: str) -> set[str]:
    """The project's files that importing `module` reaches, imports within functions too."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for file, imports in imports_of(waiting.pop()).items():
            if file not in found:
                found.add(file)
                waiting += imports
    return found


@cache
def imports_of(module: str) -> dict[str, tuple[str, ...]]:
    """The module's file with what it imports of mathrl, names of modules or of things in them."""
    path = ROOT / Path(*module.split("."))
    file = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.exists()), None)
    if file is None:
        return {}
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mathrl"):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith("mathrl")]
    return {str(file.relative_to(ROOT)): tuple(names)}
