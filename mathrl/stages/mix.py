"""mix: the RL training set from the rl split and its pass rates. `python -m mathrl.stages.mix`.

Writes data/mixture/train.jsonl and manifest.json.
"""

from pathlib import Path

from mathrl.core.files import read_jsonl, write_json, written_aside
from mathrl.core.hashing import digest_path
from mathrl.core.problems import read_problems, write_problems
from mathrl.data.mixture import mix
from mathrl.stages.entry import StageRun, run_stage

PROBLEMS, RATES, MIXTURE = (
    Path("data/curated/rl.jsonl"),
    Path("data/difficulty/pass_rates.jsonl"),
    Path("data/mixture"),
)


def work(run: StageRun) -> None:
    problems = read_problems(PROBLEMS)
    run.dataset("rl", PROBLEMS)
    rates = {str(row["id"]): float(row["pass_rate"]) for row in read_jsonl(RATES)}
    mixture, manifest = mix(problems, rates, run.params.mix, run.params.run.seed)
    manifest["inputs"] = {"rl.jsonl": digest_path(PROBLEMS), "pass_rates.jsonl": digest_path(RATES)}
    with written_aside(MIXTURE) as folder:
        folder.mkdir()
        write_problems(folder / "train.jsonl", mixture)
        write_json(folder / "manifest.json", manifest)
    run.dataset("mixture", MIXTURE / "train.jsonl")
    measured = [problem.pass_rate for problem in mixture if problem.pass_rate is not None]
    mean = sum(measured) / len(measured) if measured else 0.0
    run.summary({"problems": float(len(mixture)), "mean_pass_rate": mean})


if __name__ == "__main__":
    run_stage("mix", work, inputs=[PROBLEMS, RATES], outputs=[MIXTURE])
