"""A small run of every stage in this process, and what it results in: the guard of the numbers in stages/results.toml.

`python -m tests.stages.stage_results --write` writes stage_results.json after a change that is meant to change a
result. It refuses to where the stage's number has not been raised, since a project that upgrades would keep the old
result.
"""

import hashlib
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from mathrl.core import code_values
from mathrl.core.metrics import without_timings
from mathrl.stages.command import main
from tests.stages.rl_runs import SETTINGS, as_text, differences, prepare

FILE = Path(__file__).with_name("stage_results.json")
MODELS = ["--model", "start=start", "--model", "reference=reference"]
DATA = ["--data", "first.jsonl", "--data", "second.jsonl"]
SOURCE = """{type: generated, name: chain, generator: chain, counts: {sft: 30, rl: 12, dev: 6, test: 8},
    options: {steps: [2, 3], largest_number: 9, largest_result: 40, notation: bare}}"""
SMALL = {
    "curate": [f"curate.sources=[{SOURCE}]"],
    "base": [
        "model.base={hidden_size: 32, intermediate_size: 48, layers: 1, heads: 2, kv_heads: 1, alphabet: arithmetic}"
    ],
    "sft": ["sft.steps=3", "sft.tokens_per_step=120", "sft.optimizer={type: adamw, lr: 0.01, warmup_steps: 0}"],
    "difficulty": ["difficulty.samples=8", "difficulty.max_tokens=8"],
    "mix": ["mix.components=[{source: own, weight: 1.0, band: [0.0, 1.0]}]"],
    "rl": [],
    "evaluate": ["evaluate.samples=4", "evaluate.ks=[1, 4]", "evaluate.max_tokens=8", "evaluate.benchmarks=[test]"],
    "sample": [
        "sample.samples=6", "sample.per_problem=2", "sample.max_tokens=8",
        "sample.continuations=2", "reward.steps=line",
    ],
    "dpo": ["dpo.steps=2", "dpo.pairs_per_step=2", "dpo.optimizer={type: adamw, lr: 0.01, warmup_steps: 0}"],
    "reward_model": ["reward_model.steps=2", "reward_model.batch=2"],
    "process_reward_model": ["reward.steps=line", "reward_model.steps=2", "reward_model.batch=2"],
}  # fmt: skip
# By stage the options of its command; what an earlier stage here has made is in the folder of its name.
OPTIONS: dict[str, list[str]] = {
    "curate": [],
    "base": [],
    "sft": ["--start", "start", "--data", "sft.jsonl", "--dev", "dev.jsonl"],
    "difficulty": ["--start", "start", "--data", "first.jsonl", "--examples", "sft.jsonl"],
    "mix": ["--data", "first.jsonl", "--rates", "made/difficulty/pass_rates.jsonl"],
    "rl": ["--start", "start", *DATA, "--dev", "dev.jsonl", "--examples", "sft.jsonl"],
    "evaluate": ["--test", "dev.jsonl", "--examples", "sft.jsonl", *MODELS],
    "sample": ["--start", "start", *DATA, "--examples", "sft.jsonl"],
    "dpo": ["--start", "start", "--data", "made/sample/pairs.jsonl"],
    "reward_model": ["--start", "start", "--data", "made/sample/pairs.jsonl"],
    "process_reward_model": ["--start", "start", "--data", "made/sample/steps.jsonl"],
    "summary": ["--evaluated", "test=made/evaluate/report"],
}


def run_stage(stage: str) -> dict[str, Any]:
    """Run the stage in the present folder, where `prepare` has been; returns its results."""
    module = import_module(f"mathrl.stages.{stage}")
    out = Path("made", stage)
    settings = [*SETTINGS, *SMALL.get(stage, [])]
    words = [str(out), *OPTIONS[stage], *(word for setting in settings for word in ("--set", setting))]
    main(stage, module.work, words=words)
    return results_of(out)


def results_of(out: Path) -> dict[str, Any]:
    """The figures, rows and weights that a stage has written."""
    if out.is_file():
        return {out.name: json.loads(out.read_text(encoding="utf-8"))}
    found: dict[str, Any] = {}
    for file in sorted(out.rglob("*")):
        name = file.relative_to(out).as_posix()
        if file.name == "metrics.jsonl":
            rows = without_timings(file)
            found[name] = {key: [row.get(key) for row in rows] for key in sorted({key for row in rows for key in row})}
        elif file.suffix == ".jsonl":
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            found[name] = {"rows": len(rows), "texts": digest_of([without_floats(row) for row in rows])}
        elif file.suffix == ".safetensors":
            found[name] = {key: float(tensor.double().abs().sum()) for key, tensor in sorted(load_file(file).items())}
    return found


def without_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_floats(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_floats(each) for each in value]
    return "a number" if isinstance(value, float) else value


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def numbers() -> dict[str, int]:
    file = code_values.PACKAGE / "stages" / "results.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def changed(found: Mapping[str, Any], golden: Mapping[str, Any]) -> dict[str, list[str]]:
    """By stage how its results differ from the file's."""
    lines = {stage: differences(found[stage], golden.get(stage, {}).get("results")) for stage in found}
    return {stage: each for stage, each in lines.items() if each}


def write(found: Mapping[str, Any]) -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    now = numbers()
    for stage in changed(found, golden):
        if golden.get(stage, {}).get("number") == now[stage]:
            sys.exit(f"{stage} has other results: raise its number in mathrl/stages/results.toml ({now[stage]})")
    text = as_text({stage: {"number": now[stage], "results": results} for stage, results in found.items()})
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        os.environ |= {"MATHRL_HOME": str(Path(place) / "home"), "MATHRL_MIRROR": "none"}
        prepare(Path(place))
        found = {stage: run_stage(stage) for stage in OPTIONS}
    write(found) if sys.argv[1:] == ["--write"] else print(as_text(found))
