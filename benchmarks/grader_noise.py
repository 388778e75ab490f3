"""How wrong may a grader be? RL on the demo's problems with a wrong verifier: `python benchmarks/grader_noise.py`.

Runs the steps of the recipe grader-noise, one seed after the other, with DVC: a finished step is not repeated
and an interrupted one resumes, so the command can be stopped and started at any time. It then draws what is finished
into docs/pictures/grader_noise.png and prints it as a table. `--draw` only draws.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from mathrl.core.figures import BLUE, GREY, picture
from mathrl.core.files import read_jsonl
from mathrl.recipes.recipe import load_recipe

ROOT = Path(__file__).parents[1]
RECIPE = Path("pipelines/recipes/grader-noise")
RATES = {0.0: "exact", 0.02: "{}_02", 0.05: "{}_05", 0.1: "{}_10", 0.2: "{}_20"}
KINDS = {"fp": "wrong responses rewarded (false positives)", "fn": "right responses refused (false negatives)"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draw", action="store_true", help="draw what is finished, run nothing")
    options = parser.parse_args()
    if not options.draw:
        steps = [name for name, step in load_recipe("grader-noise").steps.items() if step.stage == "rl"]
        programs = Path(sys.executable).parent
        environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}  # DVC starts `python`
        commands = [["mathrl", "recipe", "grader-noise", "--graph"]]
        commands += [["dvc", "repro", *(f"{RECIPE}/dvc.yaml:{s}-s{seed}" for s in steps)] for seed in options.seeds]
        for program, *words in commands:
            subprocess.run([programs / program, *words], cwd=ROOT, env=environment, check=True)
    draw(ROOT / "docs/pictures/grader_noise.png")


def finished(step: str) -> list[tuple[float, float]]:
    """Per finished seed: accuracy on dev by the exact verifier, and the reward of the last step's responses."""
    results = []
    for file in sorted((ROOT / RECIPE).glob(f"{step}-s*/report/metrics.jsonl")):
        rows = list(read_jsonl(file))
        results.append((rows[-1]["dev/accuracy"], rows[-1]["reward/overall"]))
    return results


def draw(file: Path) -> None:
    print("| verifier | seeds | accuracy on dev (range) | reward at the end |\n|---|---|---|---|")
    with picture(file) as axes:
        for (kind, label), colour in zip(KINDS.items(), (BLUE, "C1"), strict=True):
            points = []
            for rate, name in RATES.items():
                if results := finished(name.format(kind)):
                    accuracies = [accuracy for accuracy, _ in results]
                    points.append((rate, sum(accuracies) / len(accuracies), min(accuracies), max(accuracies)))
                    if rate or kind == "fp":
                        print(row(f"{label}, {rate:.0%}" if rate else "exact", results))
            rates, means, lows, highs = zip(*points, strict=True)
            axes.plot(rates, means, marker="o", color=colour, label=label)
            axes.fill_between(rates, lows, highs, color=colour, alpha=0.2, linewidth=0)
        if results := finished("last_digit"):
            print(row("last digit decides", results))
            mean = sum(accuracy for accuracy, _ in results) / len(results)
            axes.axhline(mean, linestyle="--", color=GREY, label="every answer with the right last digit rewarded")
        axes.set(xlabel="rate of wrong verdicts", ylabel="accuracy on dev, exact verifier", ylim=(0, 1.02))
        axes.legend(loc="lower left", fontsize=8)


def row(name: str, results: list[tuple[float, float]]) -> str:
    accuracies, rewards = zip(*results, strict=True)
    mean, reward = sum(accuracies) / len(results), sum(rewards) / len(results)
    return f"| {name} | {len(results)} | {mean:.3f} ({min(accuracies):.3f} to {max(accuracies):.3f}) | {reward:.3f} |"


if __name__ == "__main__":
    main()
