"""The workspaces of tests/trainers, with a model to start from, whose stages can be killed at a moment."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mathrl.models.base import make_base
from mathrl.params import load_params

SCRIPT = Path(__file__).with_name("killed_stage.py")


@dataclass
class Breakable:
    """A workspace; `run` ends with the stage's status and what it wrote on stderr."""

    workspace: Any

    def start(self, stage: str, fault: str = "", **environment: str) -> "subprocess.Popen[str]":
        own = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        own |= {
            "MATHRL_HOME": str(self.workspace.folder / "home"),
            "MATHRL_MIRROR": "none",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "FAULT": fault,
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), stage],
            cwd=self.workspace.folder,
            env={key: value for key, value in own.items() if value},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, stage: str, fault: str = "", **environment: str) -> tuple[int, str]:
        process = self.start(stage, fault, **environment)
        _, errors = process.communicate(timeout=900)
        return process.returncode, errors

    def output(self, stage: str) -> Any:
        return self.workspace.output(stage)


def of_trainers(name: str, file: str) -> Any:
    """A module of tests/trainers."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "trainers" / file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def small() -> Any:
    return of_trainers("small", "small.py")


@pytest.fixture(scope="session")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Breakable]]:
    module = of_trainers("trainer_workspaces", "conftest.py")
    make = next(module.make_workspace.__wrapped__(tmp_path_factory))

    def made(*overrides: str) -> Breakable:
        workspace = make(*overrides)
        params = load_params(workspace.folder / "params")
        make_base(params.model, workspace.folder / "models" / "sft", 0)
        return Breakable(workspace)

    yield made
