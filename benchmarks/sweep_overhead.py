"""What a trial of a sweep costs beside its training: `python benchmarks/sweep_overhead.py [--trials 6] [--steps 5]`.

A sweep with one worker of the demo's model (random weights) on the demo's problems, in an empty project. A trial's
seconds are those from the worker's claim to the trial's outcome; its training is the sum of its steps and of its
evaluations on dev. The rest is overhead: the process, its imports, the model, a checkpoint, the report. The
first trial, which starts the process that the others are forked from, is printed apart.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "project"
        sweep(folder, args.trials, args.steps)
        records = sorted((folder / ".mathrl" / "records").glob("overhead-t????-*/run.json"))
        rows = [trial(file.parent) for file in records if json.loads(file.read_text())["stage"] == "trial"]
    for name, some in (("first trial", rows[:1]), (f"median of the other {len(rows) - 1}", rows[1:])):
        whole, training = (statistics.median(row[place] for row in some) for place in (0, 1))
        print(f"{name}: {whole:.2f} s, training {training:.2f} s, overhead {whole - training:.2f} s")


def sweep(folder: Path, trials: int, steps: int) -> None:
    """Make the project, its problems and its model, and run the sweep."""
    environment = os.environ | {
        "MATHRL_MIRROR": "none",
        "MATHRL_HOME": str(folder / ".mathrl"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }

    def run(*words: str) -> None:
        subprocess.run([sys.executable, "-m", *words], cwd=folder, env=environment, check=True, stdout=sys.stderr)

    shutil.copytree(ROOT / "params", folder / "params")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    run("mathrl.stages.curate", "data")
    run("mathrl.stages.base", "models")
    files = {"start": "models/model", "data": "[data/splits/rl.jsonl]", "dev": "data/splits/dev.jsonl",
             "examples": "data/splits/sft.jsonl", "test": "data/splits/test.jsonl"}  # fmt: skip
    section = {"study": "overhead", "trials": trials, "workers": 1, "startup_trials": trials, **files}
    rl = {"steps": steps, "dev.every": steps, "prompts_per_step": 8, "dev.samples": 1}
    words = [f"{name}.{key}={value}" for name, some in (("sweep", section), ("rl", rl)) for key, value in some.items()]
    run("mathrl.sweeps.run", "run.processes=1", *words)


def trial(record: Path) -> tuple[float, float]:
    """The trial's seconds and those of its training."""
    run = json.loads((record / "run.json").read_text())
    (seed,) = record.parent.glob(f"{'-'.join(record.name.split('-')[:2])}-s*")
    rows = [json.loads(line) for line in (seed / "metrics.jsonl").read_text().splitlines()]
    return run["ended"] - run["started"], sum(row["time/step"] + row.get("time/eval", 0.0) for row in rows)


if __name__ == "__main__":
    main()
