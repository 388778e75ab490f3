"""rl.engine verl on one GPU: a small model of the demo's kind, trained by verl from its SFT start through the stage rl.

What only a GPU shows: vLLM as verl's sampler beside the trainer's weights, bfloat16, the merged model. The Python that
runs this needs verl, vLLM and mathrl's platform (docs/reference/engines.md).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mathrl.compose import load_params, write_params
from mathrl.core.files import write_json
from mathrl.core.types import write_problems
from mathrl.generators import generate

ROOT = Path(__file__).parents[2]
STEPS = 20
VERL = (
    "run.processes=1", "rl.engine=verl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.optimizer.schedule=constant",
    "rl.optimizer.warmup_steps=0", "rl.optimizer.lr=1e-3", "rl.min_pass_at_8=0", f"rl.steps={STEPS}", "rl.dev.every=10",
)  # fmt: skip
COUNTS = {"sft": 2000, "rl": 400, "dev": 50}
# vLLM wants heads of at least 32.
MODEL = (
    "model.base.hidden_size=256",
    "model.base.intermediate_size=704",
    "sft.optimizer.type=adamw",
    "sft.optimizer.lr=0.003",
)
TOY = ("model.base.hidden_size=32", "model.base.intermediate_size=64", "model.base.layers=2", "model.base.heads=2",
       "sft.steps=20", "rl.prompts_per_step=4", "rl.group_size=4")  # fmt: skip
# Of the sampler's probabilities against the trainer's, per token; bfloat16 against bfloat16.
MISMATCH_LIMIT = 0.05


def main(device: torch.device, toy: bool, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Figures of the run; `failed` names what is outside its limit. `overrides` are further parameters."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_workspace(folder, [*VERL, *MODEL, *(TOY if toy else ()), *overrides])
        for stage in ("sft", "rl"):
            if status := start(stage, folder).wait():
                sys.exit(f"stage {stage} ended with status {status}")
        rows = [json.loads(line) for line in (folder / "reports/rl/metrics.jsonl").read_text().splitlines()]
        (record,) = (folder / "home/records").glob("rl-*/metrics.jsonl")
        times = [json.loads(line)["time/step"] for line in record.read_text().splitlines()]
    means = [mean([row["reward/accuracy"] for row in part]) for part in (rows[:5], rows[-5:])]
    mismatch = max(row["verl/training/rollout_probs_diff_mean"] for row in rows)
    checks = [
        {"name": "steps missing in the record", "value": STEPS - len(rows), "limit": 0},
        {"name": "sampler against trainer, mean probability gap", "value": mismatch, "limit": MISMATCH_LIMIT},
        {"name": "accuracy of the first five steps minus that of the last", "value": means[0] - means[1], "limit": 0.0},
    ]
    return {
        "checks": checks,
        "accuracy": means,
        "dev": [row["dev/accuracy"] for row in rows if "dev/accuracy" in row],
        "seconds_per_step": sorted(times)[len(times) // 2],
        "failed": [check["name"] for check in checks if check["value"] > check["limit"]],
    }


def make_workspace(folder: Path, overrides: Sequence[str], counts: Mapping[str, int] = COUNTS) -> None:
    """Parameters and problems, so many per split, as the stages sft and rl find them in a checkout."""
    before, after = load_params(ROOT / "params"), load_params(ROOT / "params", overrides=overrides)
    for file in (ROOT / "params").glob("*.yaml"):
        target = folder / "params" / file.name
        target.parent.mkdir(exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    write_params(before, after, folder / "params")
    problems = list(generate("chain", counts, {"steps": [2, 3]}, seed=0))
    for split in counts:
        chosen = [problem for problem in problems if problem.split == split]
        write_problems(folder / "data/curated" / f"{split}.jsonl", chosen)
    write_problems(folder / "data/mixture/train.jsonl", [problem for problem in problems if problem.split == "rl"])
    write_json(folder / "data/difficulty/summary.json", {"pass_at_8": 0.5})


def start(stage: str, folder: Path) -> "subprocess.Popen[bytes]":
    """The stage in the folder, as a process."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = {"MATHRL_HOME": str(folder / "home"), "MATHRL_MIRROR": "none", "PYTHONPATH": paths}
    return subprocess.Popen([sys.executable, "-m", f"mathrl.stages.{stage}"], cwd=folder, env=os.environ | environment)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
