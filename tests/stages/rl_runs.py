"""Runs of the stage rl in this process, as steps of a recipe, and all that they write.

`python -m tests.stages.rl_runs --write` writes rl_runs.json, after a change that is meant to change a figure;
test_rl.py compares with it.
"""

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mathrl.core.files import write_json
from mathrl.core.metrics import without_timings
from mathrl.core.types import Problem, write_problems
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.load import export_model
from mathrl.models.scores import make_scorer
from mathrl.params.run import FreshModel
from mathrl.stages import rl
from mathrl.stages.command import main

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("rl_runs.json")
BASE = FreshModel(hidden_size=32, intermediate_size=48, layers=1, heads=2, kv_heads=1, alphabet="arithmetic")
SETTINGS = (
    "run.processes=1", "run.device=cpu", "run.seed=5", "prompt.template=plain", "model.precision=float32",
    "rl.steps=2", "rl.prompts_per_step=4", "rl.group_size=4", "rl.max_tokens=8", 
    "rl.optimizer={type: adamw, lr: 0.005, warmup_steps: 0, schedule: linear}",
    "rl.dev.every=1", "rl.dev.samples=2", "rl.ema=null",
    # A reward that random models differ in: the shorter the better.
    "reward.parts=[{type: overlong, options: {max_length: 8, buffer: 8}}]", "reward.extraction=lenient",
)  # fmt: skip
# By name the settings of a run, and the folders beside the start that it is given.
CASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "alone": (["rl.dev.temperature=0.5"], ["difficulty"]),
    "few-shot examples, kept rollouts": (
        ["prompt.few_shot=1", "rl.keep_rollouts={which: all}", "rl.checkpoint_every=1", "prompt.max_tokens=80"], [],
    ),
    "a reference": (["rl.kl={type: loss, coef: 0.1}"], ["reference"]),
    "a teacher": (["rl.advantage=distillation"], ["teacher"]),
    "tokens of a teacher": (["rl.advantage=distillation", "rl.loss={type: jsd, top_k: 8}"], ["teacher"]),
    "a critic": (["rl.advantage={type: gae, critic: {optimizer: {type: adamw, lr: 0.01}}}"], ["critic"]),
    "a critic without its folder": (["rl.advantage={type: gae, critic: {optimizer: {type: adamw, lr: 0.01}}}"], []),
    "a reward model": (["reward.judge.rule_weight=0.5"], ["reward_model"]),
    "a process reward model": (["rl.advantage=process", "reward.steps=line"], ["process_reward_model"]),
    "continuations of steps": (
        ["rl.advantage=process", "reward.steps=line", "reward.judge.continuations=2", "rl.temperature=0.8"], [],
    ),
    "samples ahead": (
        ["rl.asynchronous={staleness: 0}", "rl.importance={type: truncated, when: always}",
         "rl.keep_rollouts={which: all}"], [],
    ),
    "no evaluation": (["rl.dev.every=0"], ["difficulty"]),
}  # fmt: skip


def prepare(folder: Path) -> None:
    """params/, models with the names that `others` has, and files of problems."""
    (folder / "params").mkdir()
    for file in (ROOT / "params").glob("*.yaml"):
        (folder / "params" / file.name).write_text(file.read_text())
    tokenizer = character_tokenizer(BASE)
    for seed, name in enumerate(("start", "reference", "teacher"), start=3):
        export_model(fresh_network(BASE, tokenizer, seed=seed).eval(), tokenizer, folder / name, "")
    for seed, name in enumerate(("critic", "reward_model", "process_reward_model"), start=7):
        scorer = make_scorer(fresh_network(BASE, tokenizer, seed=seed).eval())
        head, generator = scorer.score.weight, torch.Generator().manual_seed(seed)
        head.data.copy_(torch.randn(head.shape, generator=generator))
        scorer.config.reward_mean, scorer.config.reward_std = 0.1, 0.5
        export_model(scorer, tokenizer, folder / name, "")
    digits = tuple("0123456789")  # so that random models are right now and then
    rows = [Problem(f"p{n}", f"{n}+{n}=", digits, "own", "rl", level=n, solution=f"{n}+{n}=5") for n in range(1, 11)]
    write_problems(folder / "first.jsonl", rows[:4])
    write_problems(folder / "second.jsonl", rows[4:7])
    write_problems(folder / "dev.jsonl", rows[7:])
    write_problems(folder / "sft.jsonl", [row.with_(solution=None) for row in rows[:1]] + rows[1:])
    write_json(folder / "difficulty", {"pass_at_8": 0.5})


def run(name: str, settings: Sequence[str] = (), others: Sequence[str] | None = None) -> Path:
    """Run the stage in the present folder; returns the folder of the step."""
    own, given = CASES[name]
    step = Path("pipelines/recipes/r") / "".join(letter for letter in name if letter.isalpha())
    words = [str(step), "--start", "start", "--data", "first.jsonl", "--data", "second.jsonl"]
    words += ["--dev", "dev.jsonl", "--examples", "sft.jsonl"]
    words += [word for each in (given if others is None else others) for word in (f"--{each.replace('_', '-')}", each)]
    words += [word for setting in (*SETTINGS, *own, *settings) for word in ("--set", setting)]
    main("rl", rl.work, words=words)
    return step


def record_of(step: Path) -> dict[str, Any]:
    """The run.json of the step's last run."""
    file = max(Path(os.environ["MATHRL_HOME"], "records").glob(f"r-{step.name}-*/run.json"))
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def written(step: Path) -> dict[str, Any]:
    """What the run has left: figures, facts of its record, names of files, the model's card."""
    record, report = record_of(step), step / "report"
    rows = without_timings(report / "metrics.jsonl")
    health = json.loads((report / "health.json").read_text(encoding="utf-8"))
    return {
        "metrics": {key: [row.get(key) for row in rows] for key in sorted({key for row in rows for key in row})},
        "summary": record["summary"],
        "resolved": record["resolved"],
        "datasets": {key: value["path"] for key, value in record["datasets"].items()},
        "files": sorted(file.name for file in report.iterdir()),
        "health": health | {"same as the record": health == record["health"]},
        "card": (step / "model" / "README.md").read_text(encoding="utf-8"),
        "state": sorted(path.name for path in Path(os.environ["MATHRL_HOME"], "state").iterdir()),
        "status": record["status"],
    }


def differences(found: Any, expected: Any, place: str = "") -> list[str]:
    """Where two answers differ by more than another processor's order of sums explains."""
    if isinstance(expected, dict) and isinstance(found, dict):
        changed = [f"{place}/{key}: in one of the two alone" for key in sorted(found.keys() ^ expected.keys())]
        both = [key for key in expected if key in found]
        return changed + [line for key in both for line in differences(found[key], expected[key], f"{place}/{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [line for number, pair in pairs for line in differences(*pair, f"{place} {number}")]
    if isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(found, expected, rel_tol=3e-4, abs_tol=3e-6)
    else:
        same = found == expected
    return [] if same else [f"{place}: {found} instead of {expected}"]


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def as_text(runs: dict[str, Any]) -> str:
    """JSON with a line per row of numbers, of seven digits."""
    text = json.dumps(rounded(runs), indent=1) + "\n"
    return re.sub(r"\[([^][{}]*)\]", lambda row: f"[{' '.join(row[1].split())}]", text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        os.environ |= {"MATHRL_HOME": str(Path(place) / "home"), "MATHRL_MIRROR": "none"}
        prepare(Path(place))
        text = as_text({name: written(run(name)) for name in CASES})
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
