"""A recipe → pipelines/recipes/<name>/dvc.yaml: one DVC stage a step and seed, each naming what it starts from.

The file is written out in full (start, data, overrides stand in each command), so that it can be read, and
run with `dvc repro` alone.
"""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.files import write_text
from mathrl.params.load import dump_yaml
from mathrl.params.recipe import Recipe, load_recipe, step_overrides, summary_models
from mathrl.params.schema import READS
from mathrl.params.watched_code import watched_code

CURATED, ROOT = "data/curated", "pipelines/recipes"
HEADER = "# Made from params/recipes/{name}.yaml by `mathrl recipe {name}`: change that file, not this one.\n"


def bring_up_to_date(name: str, folder: Path) -> Recipe:
    """Write pipelines/recipes/<name>/dvc.yaml of the checkout `folder` where it is not what the recipe says, and a
    .gitignore of what its steps make.

    Raises:
        UserError: the recipe is wrong.
    """
    recipe = load_recipe(name, folder / "params")
    for file, text in graph_files(name, recipe, folder).items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_text(file, text)
    return recipe


def graph_files(name: str, recipe: Recipe, folder: Path) -> dict[Path, str]:
    """What is written of a recipe, by file."""
    stages = graph(name, recipe, folder)
    made = "".join(f"/{stage}\n" for stage in stages if stage != "summary")
    return {
        folder / ROOT / name / "dvc.yaml": HEADER.format(name=name) + dump_yaml({"stages": stages}),
        folder / ROOT / name / ".gitignore": made,
    }


def graph(name: str, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The DVC stages by name, in an order in which each comes after what it needs."""
    once = {step for step, each in recipe.steps.items() if each.stage == "curate"}
    seeds: Sequence[int | None] = recipe.seeds or (None,)
    stages: dict[str, Any] = {}
    for step, each in recipe.steps.items():
        for seed in (None,) if step in once else seeds:
            own = _Places(name, recipe, seed, once)
            options = _options(step, each, own)
            overrides = step_overrides(recipe, step)
            overrides += [f"run.seed={seed}"] if seed is not None else []
            stages[own.label(step)] = _stage(each.stage, own.folder(step), options, overrides, folder)
    tests = [(step, seed) for step in summary_models(recipe) for seed in seeds]
    if tests:
        options = [("evaluated", f"{step}={_Places(name, recipe, seed, once).folder(step)}") for step, seed in tests]
        file = f"{ROOT}/{name}/summary.json"
        overrides = [each for each in (*recipe.set, *recipe.overrides) if each.split(".")[0] in READS["summary"]]
        stages["summary"] = _stage("summary", file, options, overrides, folder)
    return stages


class _Places:
    """Where the steps of a recipe are, for one seed."""

    def __init__(self, name: str, recipe: Recipe, seed: int | None, once: set[str]) -> None:
        self.name, self.recipe, self.once = name, recipe, once
        self.suffix = "" if seed is None or len(recipe.seeds) < 2 else f"-s{seed}"

    def label(self, step: str) -> str:
        return step + ("" if step in self.once else self.suffix)

    def folder(self, step: str) -> str:
        return f"{ROOT}/{self.name}/{self.label(step)}"

    def model(self, step: str) -> str:
        return f"{self.folder(step)}/model"

    def curated(self, step: Any) -> str:
        given = getattr(step, "curated", None) or self.recipe.curated
        return f"{self.folder(given)}/splits" if given else CURATED

    def data(self, step: Any) -> list[str]:
        """The files that a step's `data` names."""
        given = (step.data,) if isinstance(step.data, str) else step.data
        return [self._file(name, step) for name in given]

    def _file(self, name: str, step: Any) -> str:
        if name in ("sft", "rl") and hasattr(step, "curated"):
            return f"{self.curated(step)}/{name}.jsonl"
        made = {
            "sft": "train",
            "rl": "train",
            "sample": "train",
            "dpo": "pairs",
            "reward_model": "pairs",
            "process_reward_model": "steps",
        }[step.stage]
        return f"{self.folder(name)}/{made}.jsonl"

    def replay(self, step: Any) -> list[str]:
        return [self._file(name, step) for name in step.replay]


Options = list[tuple[str, str]]


def _options(name: str, step: Any, at: _Places) -> Options:
    """The command's options; what they name are the step's inputs."""
    found: Options = []
    if hasattr(step, "start"):
        found.append(("start", at.model(step.start)))
    if hasattr(step, "data"):
        found += [("data", file) for file in at.data(step)]
    for split in {
        "sft": ("dev",),
        "rl": ("dev", "sft"),
        "difficulty": ("sft",),
        "sample": ("sft",),
        "evaluate": ("test", "sft"),
    }.get(step.stage, ()):
        found.append(({"sft": "examples"}.get(split, split), f"{at.curated(step)}/{split}.jsonl"))
    if step.stage == "mix":
        found.append(("rates", f"{at.folder(step.difficulty)}/pass_rates.jsonl"))
    if step.stage == "rl":
        if step.difficulty:
            found.append(("difficulty", f"{at.folder(step.difficulty)}/summary.json"))
        for field in ("reward_model", "process_reward_model", "critic", "reference", "teacher"):
            if getattr(step, field):
                found.append((field.replace("_", "-"), at.model(getattr(step, field))))
    if step.stage == "evaluate":
        found += [("model", f"{model}={at.model(model)}") for model in step.models]
    if hasattr(step, "replay"):
        found += [("replay", file) for file in at.replay(step)]
    return found


def _stage(stage: str, out: str, options: Options, overrides: Iterable[str], checkout: Path) -> dict[str, Any]:
    words = ["python", "-m", "mathrl.stages.recipe_step", stage, out]
    for option, value in [*options, *(("set", each) for each in overrides)]:
        words += [f"--{option}", value]
    inputs = dict.fromkeys(value.split("=")[-1] for _, value in options)
    made = {"metrics": [{out: {"cache": False}}]} if stage == "summary" else {"outs": [out]}
    return {
        "wdir": "../../..",
        "cmd": shlex.join(words).replace("${", r"\${"),  # in a value it is no template of DVC's
        "deps": [*inputs, *watched_code(stage, checkout)],
        "params": [{f"params/{section}.yaml": None} for section in READS[stage]],
        **made,
    }
