"""mix: the RL training set from the rl split and its pass rates. `python -m mathrl.stages.mix`.

Writes data/mixture/train.jsonl and manifest.json.
"""

from pathlib import Path

from mathrl.core.files import read_jsonl, write_json, written_aside
from mathrl.core.hashing import sha256_jsonl
from mathrl.core.types import read_problems, write_problems
from mathrl.data.mixture import mix
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun

PROBLEMS, RATES, MIXTURE = (
    Path("data/curated/rl.jsonl"),
    Path("data/difficulty/pass_rates.jsonl"),
    Path("data/mixture"),
)


def work(run: StageRun, *, split: Path = PROBLEMS, rates: Path = RATES, out: Path = MIXTURE) -> None:
    """Write the training set, from the problems of the file `split` and their pass rates, to the folder `out`."""
    problems = read_problems(split)
    run.dataset("rl", split)
    pass_rates = {str(row["id"]): float(row["pass_rate"]) for row in read_jsonl(rates)}
    mixture, manifest = mix(problems, pass_rates, run.params.mix, run.params.run.seed)
    manifest["inputs"] = {"rl.jsonl": sha256_jsonl(split), "pass_rates.jsonl": sha256_jsonl(rates)}
    with written_aside(out) as folder:
        folder.mkdir()
        write_problems(folder / "train.jsonl", mixture)
        manifest["outputs"] = {"train.jsonl": sha256_jsonl(folder / "train.jsonl")}
        write_json(folder / "manifest.json", manifest)
    run.dataset("mixture", out / "train.jsonl")
    measured = [problem.pass_rate for problem in mixture if problem.pass_rate is not None]
    mean = sum(measured) / len(measured) if measured else 0.0
    run.summary({"rows": float(len(mixture)), "problems": float(manifest["problems"]), "mean_pass_rate": mean})


if __name__ == "__main__":
    main("mix", work, inputs=[PROBLEMS, RATES], outputs=[MIXTURE])
