"""One stage by each training engine: accuracy on the held-out problems with intervals, and CPU-seconds.

    python benchmarks/training_engines.py [--stage rl] [--checkout .] [--set rl.steps=20] [--engines mathrl trl]

`--checkout` is one in which the pipeline has run up to `mix` (`mathrl run mix`), or for the stage `sft` up to `curate`:
its params and the stage's inputs are taken. Every engine gets the same parameters: AdamW, in `rl` no averaged weights
and TRL's constant in the group's standard deviation. Each runs the stage in a folder of its own, and its model answers
the test problems like those of the stage `evaluate`. CPU-seconds are those of the stage with all its processes.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mathrl.compose import load_params, write_params
from mathrl.core.environment import Variable
from mathrl.data.templates import few_shot_examples
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.evaluate_model import evaluate_model
from mathrl.evaluation.summary import summarise
from mathrl.params import Params

INPUTS = {"sft": ("data/curated",), "rl": ("models/sft", "data/curated", "data/mixture", "data/difficulty")}
SAME = {
    "sft": ("sft.optimizer.type=adamw", "sft.optimizer.lr=0.003"),
    "rl": ("rl.ema=null", "rl.optimizer.type=adamw", "rl.optimizer.lr=5e-4", "rl.advantage.eps=1e-4"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", choices=INPUTS, default="rl")
    parser.add_argument("--checkout", type=Path, default=Path(), help="where the pipeline has run up to the stage")
    parser.add_argument("--samples", type=int, default=8, help="responses per test problem")
    parser.add_argument("--engines", nargs="+", default=["mathrl", "trl"])
    parser.add_argument("--set", action="append", default=[], help="an override of params/, for all engines")
    options = parser.parse_args()
    stage, inputs = options.stage, INPUTS[options.stage]
    missing = [name for name in inputs if not (options.checkout / name).exists()]
    if missing:
        before = {"sft": "curate", "rl": "mix"}[stage]
        advice = f"run `mathrl run {before}` there, or name another checkout with --checkout"
        raise SystemExit(f"error: {options.checkout}: no {', '.join(missing)}; {advice}")
    evaluation = ("evaluate.benchmarks=[test]", f"evaluate.samples={options.samples}")
    overrides = [*SAME[stage], *evaluation, *options.set]
    print("| engine | pass@1 [95 % interval] | CPU-seconds |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if stage == "rl":
            start = accuracy(options.checkout, options.checkout / "models/sft", overrides)
            print(f"| none (the SFT model) | {start} | |", flush=True)
        for engine in options.engines:
            workspace = Path(folder) / engine
            seconds = train(stage, options.checkout.absolute(), workspace, [*overrides, f"{stage}.engine={engine}"])
            reached = accuracy(workspace, workspace / "models" / stage, overrides)
            print(f"| {engine} | {reached} | {seconds:.0f} |", flush=True)


def train(stage: str, checkout: Path, workspace: Path, overrides: list[str]) -> float:
    """Run the stage in the folder `workspace`; the CPU-seconds that it took."""
    shutil.copytree(checkout / "params", workspace / "params")
    for name in INPUTS[stage]:
        (workspace / name).parent.mkdir(exist_ok=True)
        shutil.copytree(checkout / name, workspace / name)
    write_params(parameters(workspace, []), parameters(workspace, overrides), workspace / "params")
    environment = os.environ | {Variable.HOME: str(workspace / "home"), Variable.MIRROR: "none"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", f"mathrl.stages.{stage}"], cwd=workspace, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def parameters(workspace: Path, overrides: list[str]) -> Params:
    return load_params(workspace / "params", overrides=overrides)


def accuracy(workspace: Path, model: Path, overrides: list[str]) -> str:
    """pass@1 on the test problems of the workspace, with its interval."""
    params = parameters(workspace, overrides)
    problems = benchmark_problems("test", params, workspace / "data/curated/test.jsonl")
    few_shot = few_shot_examples(params.prompt, workspace / "data/curated/sft.jsonl")
    evaluated = evaluate_model(model, "test", problems, params, label=model.name, few_shot=few_shot)
    assert evaluated is not None, "this process is rank 0"
    figures = summarise(evaluated.rows, params.evaluate).to_row()
    return "{pass_at_1:.3f} [{pass_at_1_low:.3f}, {pass_at_1_high:.3f}]".format(**figures)


if __name__ == "__main__":
    main()
