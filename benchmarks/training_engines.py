"""RL from one SFT model by each training engine: accuracy on the held-out problems with intervals, and CPU-seconds.

    python benchmarks/training_engines.py [--checkout .] [--steps 50] [--set rl.lr=5e-4] [--engines mathrl trl]

`--checkout` is one in which the pipeline has run up to `mix` (`mathrl run mix`): its params, models/sft, data/curated,
data/mixture and data/difficulty are taken. Every engine gets the same parameters: AdamW, no averaged weights, TRL's
constant in the group's standard deviation. Each runs the stage `rl` in a folder of its own, and its model answers the
test problems like those of the stage `evaluate`. CPU-seconds are those of the stage with all its processes.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mathrl.core.environment import Variable
from mathrl.data.sft_sets import few_shot_examples
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.evaluate_model import evaluate_model
from mathrl.evaluation.summary import summarise
from mathrl.params import Params, load_params, write_params

INPUTS = ("models/sft", "data/curated", "data/mixture", "data/difficulty")
SAME = ("rl.ema=null", "rl.optimizer.type=adamw", "rl.lr=5e-4", "rl.std_eps=1e-4", "evaluate.benchmarks=[test]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, default=Path(), help="where the pipeline has run up to mix")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--samples", type=int, default=8, help="responses per test problem")
    parser.add_argument("--engines", nargs="+", default=["mathrl", "trl"])
    parser.add_argument("--set", action="append", default=[], help="an override of params/, for all engines")
    options = parser.parse_args()
    missing = [name for name in INPUTS if not (options.checkout / name).exists()]
    if missing:
        raise SystemExit(f"error: {options.checkout}: no {', '.join(missing)}; run `mathrl run mix` there, or name "
                         "another checkout with --checkout")  # fmt: skip
    sizes = [f"rl.steps={options.steps}", f"evaluate.samples={options.samples}"]
    overrides = [*SAME, *sizes, *options.set]
    print("| engine | pass@1 [95 % interval] | CPU-seconds |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        start = accuracy(options.checkout, options.checkout / "models/sft", overrides)
        print(f"| none (the SFT model) | {start} | |", flush=True)
        for engine in options.engines:
            workspace = Path(folder) / engine
            seconds = train(options.checkout.absolute(), workspace, [*overrides, f"rl.engine={engine}"])
            print(
                f"| {engine} | {accuracy(workspace, workspace / 'models/rl', overrides)} | {seconds:.0f} |", flush=True
            )


def train(checkout: Path, workspace: Path, overrides: list[str]) -> float:
    """Run the stage rl in the folder `workspace`; the CPU-seconds that it took."""
    shutil.copytree(checkout / "params", workspace / "params")
    for name in INPUTS:
        (workspace / name).parent.mkdir(exist_ok=True)
        shutil.copytree(checkout / name, workspace / name)
    write_params(parameters(workspace, []), parameters(workspace, overrides), workspace / "params")
    environment = os.environ | {Variable.HOME: str(workspace / "home"), Variable.MIRROR: "none"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "mathrl.stages.rl"], cwd=workspace, env=environment, check=True)
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
