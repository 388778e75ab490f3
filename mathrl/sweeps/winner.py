"""The winner of a study: compared with the present parameters, and written into params/.

A recipe trains both on fresh seeds and evaluates them on test. `python -m mathrl.sweeps.winner recipe [override …]`
writes the recipe, `… verdict RECIPE WINNER [override …]` the result of its runs.
"""

import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.compose.changes import edit_yaml
from mathrl.compose.names import PRESETS
from mathrl.core.errors import UserError, exit_on_user_error
from mathrl.core.files import write_json, write_text
from mathrl.core.paths import RECIPES
from mathrl.evaluation.compare import compare_sides
from mathrl.evaluation.responses import common_problems, read_run
from mathrl.params.load import FOLDER
from mathrl.params.recipe_steps import EvaluateStep, Recipe, RlStep, seed_label
from mathrl.recipes.recipe import load_recipe, write_recipe
from mathrl.sweeps.run import sweep_section
from mathrl.sweeps.space import override, trial_params
from mathrl.sweeps.study import OpenStudy, best, open_study


def promote(values: Mapping[str, Any], folder: Path = FOLDER, preset: str | None = None) -> str:
    """Write dotted values into the section files, or into the study's preset where that is the project's own, and
    return the diff; empty if nothing differs.

    The files are written only after all values were checked against the schema.

    Raises:
        UserError: the values do not fit the present values of other parameters.
    """
    load_params(folder, preset=preset, overrides=[override(key, value) for key, value in values.items()])
    by_file: dict[Path, dict[str, Any]] = {}
    own = folder / PRESETS / f"{preset.split('+')[-1]}.yaml" if preset else None
    if own is not None and own.is_file():
        by_file[own] = dict(values)
    else:  # a preset of the package is the same for everybody
        for key, value in values.items():
            section, _, rest = key.partition(".")
            by_file.setdefault(folder / f"{section}.yaml", {})[rest] = value
    diff = ""
    for file, changes in by_file.items():
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
        after = edit_yaml(before, changes, str(file))
        if after != before:
            write_text(file, after)
            lines = difflib.unified_diff(
                before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{file}", f"b/{file}"
            )
            diff += "".join(lines)
    return diff


FRESH = 1000  # distance of the first fresh seed from run.seed: no trial has used it
SIDES = ("present", "winner")
HEADER = "# Made by `mathrl sweep compare`, which writes it anew: to change it, copy it under another name.\n"


def write_comparison_recipe(opened: OpenStudy) -> tuple[str, int]:
    """Write the recipe that trains both into params/recipes; returns its name and the number of the best trial.

    Where that is trial 0, which has the present parameters, there is no recipe (""), and comparison.json says so.

    Raises:
        UserError: no complete trial, or files that are not the splits of one folder.
    """
    winner = best(opened.study.get_trials(deepcopy=False))
    if winner is None:
        raise UserError(f"study {opened.sweep.study} has no complete trial yet: mathrl sweep run")
    if winner.number == 0:
        out = {"winner": 0, "verdict": "no trial was better on dev than the present parameters"}
        write_json(opened.folder / "comparison.json", out)
        return "", 0
    name = f"sweep-{opened.sweep.study}"
    recipe = comparison_recipe(opened, winner.number, winner.user_attrs["values"])
    write_recipe(recipe, FOLDER / "recipes" / f"{name}.yaml", HEADER)
    return name, winner.number


def comparison_recipe(opened: OpenStudy, number: int, values: dict[str, Any]) -> Recipe:
    """Steps of RL with the present values and with those of trial `number`, and an evaluation of each, which has the
    values of its side too: a space may vary what is sampled with."""
    sweep = opened.sweep
    curated = Path(sweep.test).parent
    splits = [str(curated / f"{split}.jsonl") for split in ("dev", "sft", "test")]
    if [sweep.dev, sweep.examples, sweep.test] != splits:
        raise UserError(f"sweep.dev, examples and test must be splits of one folder to compare on: {', '.join(splits)}")
    steps: dict[str, Any] = {}
    for side, own in zip(SIDES, (opened.present, values), strict=True):
        settings = tuple(override(key, value) for key, value in own.items())
        shared = {"curated": str(curated), "set": settings}
        steps[side] = RlStep(stage="rl", start=sweep.start, data=sweep.data, **shared)
        steps[f"test_{side}"] = EvaluateStep(
            stage="evaluate", models=(side,), **shared | {"set": (*settings, "evaluate.benchmarks=[test]")}
        )
    first = trial_params(sweep, opened.present).run.seed + FRESH
    return Recipe(
        description=f"Trial {number} of study {sweep.study} and the present parameters, on fresh seeds",
        seeds=tuple(range(first, first + sweep.fresh_seeds)),
        set=sweep.set,
        steps=steps,
    )


def write_verdict(opened: OpenStudy, name: str, winner: int) -> dict[str, Any]:
    """The paired test of the two sides from what the recipe left, into comparison.json of the study's folder."""
    seeds = load_recipe(name).seeds
    places = [seed_label(f"test_{side}", seeds, seed) for side in SIDES for seed in seeds]
    files = [RECIPES / name / place / "report" / "responses.jsonl" for place in places]
    runs = common_problems([read_run(file, None, "test") for file in files], allow_missing=False)
    sides, settings = ("present parameters", "winner"), trial_params(opened.sweep, opened.present).evaluate
    first, second = runs[: len(seeds)], runs[len(seeds) :]  # by seed, from the sweep's start
    comparison = compare_sides(first, second, sides, "pass_at_1", settings, by_seed=True)
    test = comparison["comparison"]
    verdict = test["verdict"] if test["shown"] else f"a tie: {test['verdict']}"
    out = {"winner": winner, "recipe": name, "seeds": list(seeds), "verdict": verdict, **comparison}
    write_json(opened.folder / "comparison.json", out)
    return out


def main(words: Sequence[str]) -> None:
    """Print {"recipe": name, "winner": number}, or write the verdict."""
    if words[0] == "recipe":
        recipe, winner = write_comparison_recipe(open_study(sweep_section(words[1:])))
        print(json.dumps({"recipe": recipe, "winner": winner}))
    else:
        write_verdict(open_study(sweep_section(words[3:])), words[1], int(words[2]))


if __name__ == "__main__":
    exit_on_user_error(lambda: main(sys.argv[1:]))
