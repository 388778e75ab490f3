"""Is the winner better than the present parameters? A recipe trains both on fresh seeds and evaluates them on test.

`python -m mathrl.sweeps.compare recipe [override …]` writes the recipe, `… verdict RECIPE WINNER [override …]` the
result of its runs.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError, exit_on_user_error
from mathrl.core.files import write_json
from mathrl.core.paths import RECIPES
from mathrl.evaluation.compare import compare_sides
from mathrl.evaluation.responses import common_problems, read_run
from mathrl.params.recipe_steps import EvaluateStep, Recipe, RlStep, is_path
from mathrl.params.sweep import Sweep
from mathrl.recipes.recipe import write_recipe
from mathrl.sweeps.space import override, trial_params
from mathrl.sweeps.study import OpenStudy, best, open_study
from mathrl.sweeps.worker import sweep_section

FRESH = 1000  # distance of the first fresh seed from run.seed: no trial has used it
SIDES = {"present": "present parameters", "winner": "winner"}
HEADER = "# Made by `mathrl sweep compare`, which writes it anew: to change it, copy it under another name.\n"


def write_comparison_recipe(opened: OpenStudy, checkout: Path = Path()) -> tuple[str, int]:
    """Write the recipe that trains both into params/recipes; returns its name and the number of the best trial.

    Where that is trial 0, which has the present parameters, there is no recipe (""), and comparison.json says so.

    Raises:
        UserError: no complete trial, or files that no recipe can take up.
    """
    winner = best(opened.study.get_trials(deepcopy=False))
    if winner is None:
        raise UserError(f"study {opened.sweep.study} has no complete trial yet: mathrl sweep run")
    if winner.number == 0:
        _write(opened, {"winner": 0, "verdict": "no trial was better on dev than the present parameters"})
        return "", 0
    name = f"sweep-{opened.sweep.study}"
    recipe = comparison_recipe(opened, winner.number, winner.user_attrs["values"])
    write_recipe(recipe, checkout / "params" / "recipes" / f"{name}.yaml", HEADER)
    return name, winner.number


def comparison_recipe(opened: OpenStudy, number: int, values: dict[str, Any]) -> Recipe:
    """Steps of RL with the present values and with those of trial `number`, and an evaluation of each, which has the
    values of its side too: a space may vary what is sampled with."""
    sweep = opened.sweep
    first = trial_params(sweep, opened.present).run.seed + FRESH
    data, curated = tuple(map(_path, sweep.data)), _splits(sweep)
    steps: dict[str, Any] = {}
    for side, own in (("present", opened.present), ("winner", values)):
        settings = tuple(override(key, value) for key, value in own.items())
        steps[side] = RlStep(stage="rl", start=_path(sweep.start), data=data, curated=curated, set=settings)
        measured = (*settings, "evaluate.benchmarks=[test]")
        steps[f"test_{side}"] = EvaluateStep(stage="evaluate", models=(side,), curated=curated, set=measured)
    return Recipe(
        description=f"Trial {number} of study {sweep.study} and the present parameters, on fresh seeds",
        seeds=tuple(range(first, first + sweep.fresh_seeds)),
        set=sweep.set,
        steps=steps,
    )


def write_verdict(opened: OpenStudy, recipe: str, winner: int, checkout: Path = Path()) -> dict[str, Any]:
    """The paired test of the two sides from what the recipe left, into comparison.json of the study's folder."""
    sides = [sorted((checkout / RECIPES / recipe).glob(f"test_{side}*/report/responses.jsonl")) for side in SIDES]
    runs = common_problems([read_run(file, None, "test") for files in sides for file in files], allow_missing=False)
    half, settings = len(sides[0]), trial_params(opened.sweep, opened.present).evaluate
    comparison = compare_sides(runs[:half], runs[half:], (SIDES["present"], SIDES["winner"]), "pass_at_1", settings)
    test = comparison["comparison"]
    verdict = test["verdict"] if test["shown"] else f"a tie: {test['verdict']}"
    return _write(opened, {"winner": winner, "recipe": recipe, "verdict": verdict, **comparison})


def _write(opened: OpenStudy, out: dict[str, Any]) -> dict[str, Any]:
    write_json(opened.folder / "comparison.json", out)
    return out


def _path(name: str) -> str:
    """As a recipe takes what is no step."""
    return name if is_path(name) else f"./{name}"


def _splits(sweep: Sweep) -> str:
    """The folder of the splits.

    Raises:
        UserError: dev, examples and test are not the splits of one folder.
    """
    folder = Path(sweep.test).parent
    for field, name in (("dev", "dev"), ("examples", "sft"), ("test", "test")):
        if Path(getattr(sweep, field)) != folder / f"{name}.jsonl":
            raise UserError(
                f"sweep.{field} is {getattr(sweep, field)}: the comparison takes the splits of one folder, "
                f"{folder}/dev.jsonl, sft.jsonl and test.jsonl; put it there and set "
                f"sweep.{field}={folder}/{name}.jsonl"
            )
    return _path(str(folder))


def main(words: Sequence[str]) -> None:
    """Print {"recipe": name, "winner": number}, or write the verdict."""
    if words[0] == "recipe":
        recipe, winner = write_comparison_recipe(open_study(sweep_section(words[1:])))
        print(json.dumps({"recipe": recipe, "winner": winner}))
    else:
        write_verdict(open_study(sweep_section(words[3:])), words[1], int(words[2]))


if __name__ == "__main__":
    exit_on_user_error(lambda: main(sys.argv[1:]))
