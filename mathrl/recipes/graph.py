"""A recipe → pipelines/recipes/<name>/dvc.yaml: one DVC stage per step and seed, with its inputs in its command.

The file is complete (each command has its start, data and overrides), so that a person can read it and run it with
`dvc repro` alone.
"""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.compose.resolved import RESOLVED
from mathrl.core.files import write_text
from mathrl.params.load import dump_yaml
from mathrl.params.recipe_steps import Recipe
from mathrl.params.run import FreshModel
from mathrl.params.schema import READS
from mathrl.params.watched_code import watched_code
from mathrl.recipes.recipe import load_recipe, step_overrides, summary_models

CURATED, ROOT = "data/curated", "pipelines/recipes"
Options = list[tuple[str, str]]
HEADER = "# Made from params/recipes/{name}.yaml by `mathrl recipe {name}`: change that file, not this one.\n"


def write_recipe_graph(name: str, folder: Path) -> Recipe:
    """Write pipelines/recipes/<name>/dvc.yaml of the checkout `folder`, and a .gitignore of its outputs, if the recipe
    has changed.

    Raises:
        UserError: the recipe is invalid.
    """
    recipe = load_recipe(name, folder / "params")
    for file, text in graph_files(name, recipe, folder).items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_text(file, text)
    return recipe


def graph_files(name: str, recipe: Recipe, folder: Path) -> dict[Path, str]:
    """The text of each file that a recipe generates."""
    stages = graph(name, recipe, folder)
    outputs = "".join(f"/{stage}\n" for stage in stages if stage != "summary")
    return {
        folder / ROOT / name / "dvc.yaml": HEADER.format(name=name) + dump_yaml({"stages": stages}),
        folder / ROOT / name / ".gitignore": outputs,
    }


def graph(
    name: str, recipe: Recipe, folder: Path, preset: str | None = None, groups: Sequence[str] = ()
) -> dict[str, Any]:
    """The DVC stages by name, each after the stages that it needs."""
    once = {name for name, step in recipe.steps.items() if step.stage == "curate"}
    seeds: Sequence[int | None] = recipe.seeds or (None,)
    stages: dict[str, Any] = {}
    for step_name, step in recipe.steps.items():
        for seed in (None,) if step_name in once else seeds:
            paths = _Paths(name, recipe, seed, once)
            overrides = step_overrides(recipe, step_name)
            options = _options(step, paths)
            if step.stage == "base" and _trains_tokenizer([*groups, *overrides], folder, preset):
                options.append(("data", f"{paths.curated(step)}/sft.jsonl"))
            overrides += [f"run.seed={seed}"] if seed is not None else []
            stages[paths.label(step_name)] = _stage(step.stage, paths.folder(step_name), options, overrides, folder)
    tests = [(step, seed) for step in summary_models(recipe) for seed in seeds]
    if tests:
        options = [("evaluated", f"{step}={_Paths(name, recipe, seed, once).folder(step)}") for step, seed in tests]
        file = f"{ROOT}/{name}/summary.json"
        overrides = [item for item in (*recipe.set, *recipe.overrides) if item.split(".")[0] in READS["summary"]]
        stages["summary"] = _stage("summary", file, options, overrides, folder, _claim_words(recipe))
    return stages


def _trains_tokenizer(overrides: Sequence[str], checkout: Path, preset: str | None) -> bool:
    base = load_params(checkout / "params", preset=preset, overrides=overrides).model.base
    return isinstance(base, FreshModel) and base.tokenizer is not None


def _claim_words(recipe: Recipe) -> Options:
    """The claim as options of the summary's command."""
    if recipe.claim is None:
        return []
    fields = recipe.claim.model_dump()
    names = [("start", fields["start"]), ("model", fields["model"])]
    return [("claim", f"{field}={name}") for field, name in [*names, *(("of", e) for e in fields["evaluations"])]]


class _Paths:
    """The files and folders of a recipe's steps, for one seed."""

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
        curate_step = getattr(step, "curated", None) or self.recipe.curated
        return f"{self.folder(curate_step)}/splits" if curate_step else CURATED

    def data(self, step: Any) -> list[str]:
        """The files that a step's `data` names."""
        names = (step.data,) if isinstance(step.data, str) else step.data
        return [self._file(name, step) for name in names]

    def _file(self, name: str, step: Any) -> str:
        if name in ("sft", "rl") and hasattr(step, "curated"):
            return f"{self.curated(step)}/{name}.jsonl"
        output = {
            "sft": "train",
            "rl": "train",
            "sample": "train",
            "dpo": "pairs",
            "reward_model": "pairs",
            "process_reward_model": "steps",
        }[step.stage]
        return f"{self.folder(name)}/{output}.jsonl"

    def replay(self, step: Any) -> list[str]:
        return [self._file(name, step) for name in step.replay]


def _options(step: Any, paths: _Paths) -> Options:
    """The options of the step's command; their values are its inputs."""
    options: Options = []
    if hasattr(step, "start"):
        options.append(("start", paths.model(step.start)))
    if hasattr(step, "data"):
        options += [("data", file) for file in paths.data(step)]
    for split in {
        "sft": ("dev",),
        "rl": ("dev", "sft"),
        "difficulty": ("sft",),
        "sample": ("sft",),
        "evaluate": ("test", "sft"),
    }.get(step.stage, ()):
        options.append(({"sft": "examples"}.get(split, split), f"{paths.curated(step)}/{split}.jsonl"))
    if step.stage == "mix":
        options.append(("rates", f"{paths.folder(step.difficulty)}/pass_rates.jsonl"))
    if step.stage == "rl":
        if step.difficulty:
            options.append(("difficulty", f"{paths.folder(step.difficulty)}/summary.json"))
        for field in ("reward_model", "process_reward_model", "critic", "reference", "teacher"):
            if getattr(step, field):
                options.append((field.replace("_", "-"), paths.model(getattr(step, field))))
    if step.stage == "evaluate":
        options += [("model", f"{model}={paths.model(model)}") for model in step.models]
    if hasattr(step, "replay"):
        options += [("replay", file) for file in paths.replay(step)]
    return options


def _stage(
    stage: str, out: str, options: Options, overrides: Iterable[str], checkout: Path, words: Options | None = None
) -> dict[str, Any]:
    """A stage of the graph: the values of `options` are its inputs, those of `words` are not."""
    command = ["python", "-m", "mathrl.stages.recipe_step", stage, out]
    for option, value in [*options, *(words or ()), *(("set", override) for override in overrides)]:
        command += [f"--{option}", value]
    inputs = dict.fromkeys(value.split("=")[-1] for _, value in options)
    outputs = {"metrics": [{out: {"cache": False}}]} if stage == "summary" else {"outs": [out]}
    return {
        "wdir": "../../..",
        "cmd": shlex.join(command).replace("${", r"\${"),  # DVC must not read a value as a template
        "deps": [*inputs, *watched_code(stage, checkout)],
        "params": [{RESOLVED: list(READS[stage])}],
        **outputs,
    }
