"""A workspace with tiny data and parameters, whose stages run as processes; a scorer."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params, write_params
from mathrl.core.files import write_json, write_text
from mathrl.core.types import write_problems
from mathrl.generators import generate

ROOT = Path(__file__).parents[2]
OVERRIDES = (
    "model.base.hidden_size=32", "model.base.intermediate_size=64", "model.base.layers=2",
    "model.base.heads=2", "model.base.alphabet=arithmetic",
    "sft.steps=12", "sft.tokens_per_step=256", "sft.checkpoint_every=5",
    "sft.eval_every=4", "rl.steps=9", "rl.prompts_per_step=4", "rl.group_size=4", "rl.max_tokens=12",
    "rl.dev.every=4", "rl.dev.samples=1", "rl.checkpoint_every=3", "rl.min_pass_at_8=0",
    # A reward that random models differ in: the shorter the better.
    "reward.parts=[{type: overlong, options: {max_length: 12, buffer: 12}}]",
)  # fmt: skip


@dataclass
class Workspace:
    """Where `python -m mathrl.stages.<stage>` finds its inputs; states and records stay inside."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def variables(self) -> dict[str, str]:
        """The environment of a process in the workspace."""
        return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {
            "MATHRL_HOME": str(self.folder / "home"),
            "MATHRL_MIRROR": "none",
            "PYTHONPATH": str(ROOT),
            **self.environment,
        }

    def run(self, stage: str) -> None:
        command = [self.python, "-m", f"mathrl.stages.{stage}"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables(), capture_output=True, text=True, check=False, timeout=800
        )
        assert done.returncode == 0, done.stderr

    def steps_logged(self, stage: str) -> int:
        files = sorted((self.folder / "home" / "records").glob(f"{stage}-*/metrics.jsonl"))
        return len(files[-1].read_text().splitlines()) if files else 0

    def record(self, stage: str) -> dict[str, Any]:
        """The run.json of the stage's only record."""
        (file,) = (self.folder / "home" / "records").glob(f"{stage}-*/run.json")
        record: dict[str, Any] = json.loads(file.read_text())
        return record

    def output(self, stage: str) -> tuple[bytes, list[dict[str, Any]]]:
        rows = (self.folder / "reports" / stage / "metrics.jsonl").read_text().splitlines()
        weights = (self.folder / "models" / stage / "model.safetensors").read_bytes()
        return weights, [json.loads(row) for row in rows]


@pytest.fixture
def scorer(small: Any) -> Any:
    """A head of random weights, and a trunk sharp enough that each place has a score of its own."""
    import torch  # here: stages that run as processes are all that most of these tests need

    from mathrl.models.scores import make_scorer

    policy, _ = small.policy()
    for weight in policy.parameters():
        if weight.dim() > 1:
            weight.data.mul_(6)
    made = make_scorer(policy)
    made.score.weight.data.copy_(torch.randn(made.score.weight.shape, generator=torch.Generator().manual_seed(4)))
    return made


@pytest.fixture(scope="session")
def make_workspace(
    tmp_path_factory: pytest.TempPathFactory, warm_python: Path, code_digests: Path
) -> Iterator[Callable[..., Workspace]]:
    def make(*overrides: str) -> Workspace:
        folder = tmp_path_factory.mktemp("workspace")
        (folder / "home").mkdir()
        shutil.copy(code_digests, folder / "home")
        before = load_params(ROOT / "params")
        after = load_params(ROOT / "params", overrides=[*OVERRIDES, *overrides])
        for file in (ROOT / "params").glob("*.yaml"):
            write_text(folder / "params" / file.name, file.read_text())
        write_params(before, after, folder / "params")
        counts = {"sft": 60, "rl": 16, "dev": 6}
        problems = list(generate("chain", counts, {"steps": [2], "notation": "bare"}, seed=0))
        for split in counts:
            chosen = [problem for problem in problems if problem.split == split]
            write_problems(folder / "data" / "curated" / f"{split}.jsonl", chosen)
        write_problems(folder / "data/mixture/train.jsonl", [p for p in problems if p.split == "rl"])
        write_json(folder / "data/difficulty/summary.json", {"pass_at_8": 0.5})
        return Workspace(folder, python=str(warm_python / "python"))

    yield make
