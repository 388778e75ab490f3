"""A folder with tiny splits and a tiny model, in which sweeps of the real trainer take seconds a trial."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TINY = (
    "run.processes=1", "run.device=cpu", "model.base.hidden_size=16", "model.base.intermediate_size=16",
    "model.base.layers=1", "model.base.heads=2", "model.base.alphabet=arithmetic", "model.precision=float32",
    "reward.extraction=lenient", "rl.steps=6", "rl.prompts_per_step=4", "rl.group_size=4", "rl.max_tokens=6",
    "rl.minibatches=2", "rl.dev.every=1", "rl.dev.samples=16", "rl.checkpoint_every=1",
    "evaluate.samples=2",
    "evaluate.ks=[1, 2]", "evaluate.max_tokens=6", "evaluate.extraction=lenient",
)  # fmt: skip
CURATE = (
    "curate.sources=[{type: generated, name: chain, generator: chain, counts: {sft: 16, rl: 32, dev: 16, "
    "test: 16}, options: {steps: [2], largest_number: 3, largest_result: 4, notation: bare}}]",
    "curate.decontaminate=null",
    "curate.deduplicate.exact=false",
)
SWEEP = f"""study: tiny
space:
  rl.loss.low: null  # the demo's other axes
  rl.loss.high: null
  rl.optimizer.lr: {{kind: log, low: 1.0e-3, high: 5.0e-2}}
  rl.kl.coef: {{kind: zero_or_log, low: 1.0e-3, high: 0.3}}
set: {json.dumps(TINY)}
trials: 2
workers: 1
warmup_steps: 0
start: models/model
data: [data/splits/rl.jsonl]
dev: data/splits/dev.jsonl
examples: data/splits/sft.jsonl
test: data/splits/test.jsonl
fresh_seeds: 2
"""


MATHRL = "from mathrl.cli import main; main()"


def called(module: str) -> list[str]:
    return ["-c", MATHRL] if module == "mathrl" else ["-m", module]


class Place:
    """The folder, and commands run in it."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.home, self.python = folder, folder / ".mathrl", str(python)
        dropped = ("MATHRL_", "PREFECT_", "MLFLOW_", "RANK", "WORLD_SIZE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self.started: list[subprocess.Popen[str]] = []
        self.env = kept | {"MATHRL_MIRROR": "none", "MATHRL_HOME": str(self.home), "OMP_NUM_THREADS": "1"}

    def start(self, module: str, *words: str, **env: str) -> "subprocess.Popen[str]":
        """By Python itself: its processes are below it."""
        return self.begin([sys.executable, *called(module), *words], **env)

    def begin(self, command: list[str], **env: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env | env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.started.append(child)
        return child

    def run(self, module: str, *words: str, ok: bool = True, **env: str) -> str:
        child = self.begin([self.python, *called(module), *words], **env)
        said = child.communicate(timeout=300)[0]
        assert not ok or child.returncode == 0, said
        return said

    def sweep(self, study: str, *overrides: str, ok: bool = True, **env: str) -> str:
        return self.run("mathrl.sweeps.run", f"sweep.study={study}", *overrides, ok=ok, **env)

    def record(self, name: str) -> dict[str, Any]:
        (file,) = (self.home / "records").glob(f"{name}-*/run.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found


@pytest.fixture(scope="session")
def python(warm_python: Path) -> Path:
    return warm_python / "python"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "made"
    shutil.copytree(ROOT / "params", folder / "params")
    (folder / "params" / "sweep.yaml").write_text(SWEEP)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    place = Place(folder, python)
    tiny = [word for each in (*TINY, *CURATE) for word in ("--set", each)]
    place.run("mathrl.stages.curate", "data", *tiny)
    place.run("mathrl.stages.base", "models", *tiny)
    return folder


@pytest.fixture
def place(made: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The same folder for every test; studies have names of their own, params/ is put back."""
    here = Place(made, python)
    monkeypatch.chdir(made)
    monkeypatch.setenv("MATHRL_HOME", str(here.home))
    yield here
    for child in here.started:
        if child.poll() is None:  # a test that failed
            child.terminate()
            child.communicate()
    shutil.rmtree(made / "params")
    shutil.copytree(ROOT / "params", made / "params")
    (made / "params" / "sweep.yaml").write_text(SWEEP)
