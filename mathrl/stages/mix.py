"""mix: the RL training set from the rl split and its pass rates. `python -m mathrl.stages.mix`.

Writes data/mixture/train.jsonl and manifest.json.
"""

from pathlib import Path

from mathrl.core.files import read_jsonl, write_json, written_aside
from mathrl.core.hashing import sha256_jsonl
from mathrl.core.problems import read_problems, write_problems
from mathrl.data.mixture import mix
from mathrl.stages.stage_run import StageRun, run_stage

PROBLEMS, RATES, MIXTURE = (
    Path("data/curated/rl.jsonl"),
    Path("data/difficulty/pass_rates.jsonl"),
    Path("data/mixture"),
)


def work(run: StageRun) -> None:
    choose(run, data=PROBLEMS, rates=RATES, out=MIXTURE)


def choose(run: StageRun, *, data: Path, rates: Path, out: Path) -> None:
    """The training set from the problems of `data` and their pass rates, to the folder `out`."""
    problems = read_problems(data)
    run.dataset("rl", data)
    measured_rates = {str(row["id"]): float(row["pass_rate"]) for row in read_jsonl(rates)}
    mixture, manifest = mix(problems, measured_rates, run.params.mix, run.params.run.seed)
    manifest["inputs"] = {"rl.jsonl": sha256_jsonl(data), "pass_rates.jsonl": sha256_jsonl(rates)}
    with written_aside(out) as folder:
        folder.mkdir()
        write_problems(folder / "train.jsonl", mixture)
        manifest["outputs"] = {"train.jsonl": sha256_jsonl(folder / "train.jsonl")}
        write_json(folder / "manifest.json", manifest)
    run.dataset("mixture", out / "train.jsonl")
    measured = [problem.pass_rate for problem in mixture if problem.pass_rate is not None]
    mean = sum(measured) / len(measured) if measured else 0.0
    different = float(manifest["problems"])
    run.summary({"rows": float(len(mixture)), "problems": different, "mean_pass_rate": mean})


if __name__ == "__main__":
    run_stage("mix", work, inputs=[PROBLEMS, RATES], outputs=[MIXTURE])
