"""A recipe → its DVC file: one stage per step and seed, with its inputs in its command.

The file is complete (each command has its start, data and overrides), so that a person can read it and run it with
`dvc repro` alone. It is pipelines/recipes/<name>/dvc.yaml; of the recipe `default`, which is the pipeline, dvc.yaml.
"""

import io
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.representer import RoundTripRepresenter

from mathrl.compose import load_params
from mathrl.core.code_values import FILE as CODE_FILE
from mathrl.core.code_values import MODEL, OWN, RESOLVE, RESOLVED
from mathrl.core.code_values import STAGE as CODE
from mathrl.core.files import write_text
from mathrl.params.load import represent_text
from mathrl.params.recipe_steps import DEFAULT, Recipe, is_path, seed_label, short, single_evaluations
from mathrl.params.run import FreshModel
from mathrl.params.schema import READS
from mathrl.recipes.recipe import load_recipe, step_overrides, summary_models

CURATED, ROOT, SUMMARY = "data/curated", "pipelines/recipes", "reports/summary.json"
Options = list[tuple[str, str]]
OWN_CODE = {"reward", "rl"}  # sections that may name a function of the project's own
LINKED = ("pages",)  # stages of recipes that read files outside the checkout: mathrl/reading/sources.py
PIPELINE_LINKED = ("curate", "evaluate")  # and of the pipeline
HEADER = "# Made from the recipe {name} by `mathrl recipe {name}`: change its file, not this one.\n"
PIPELINE_HEADER = """# The pipeline. `dvc repro` runs what is not up to date; the flows start the same command.
# Made from the recipe `default`, mathrl/recipes/library/default.yaml.
# The stage code writes a value for the code of each stage to code.yaml, and the digest of the model folder; DVC runs
# it each time, in a fraction of a second. The stage resolve composes the parameters and writes their final values to
# resolved.yaml. Any other stage depends on its inputs, on its code's value, and on the sections of resolved.yaml that
# it reads. The plots are pictures that the stages drew.
"""
# What the pipeline's stages write, as DVC has it; a stage's module names the same files (a test compares them).
PLACES: dict[str, dict[str, list[Any]]] = {
    "curate": {"outs": ["data/curated", "reports/curate"]},
    "sft": {"outs": ["models/base", "models/sft", "reports/sft"]},
    "difficulty": {"outs": ["data/difficulty", "reports/difficulty"]},
    "mix": {"outs": ["data/mixture"]},
    "rl": {"outs": ["models/rl", "reports/rl"]},
    "evaluate": {
        "metrics": [{"reports/metrics.json": {"cache": False}}],
        "outs": ["reports/evaluate", {"reports/summary.json": {"cache": False}}],
    },
    "register": {"outs": [{"reports/registered.json": {"cache": False}}]},
}
PLOTS = (
    "reports/curate/levels.png",
    "reports/sft/curve.png",
    "reports/difficulty/histogram.png",
    "reports/rl/curve.png",
    "reports/evaluate/accuracy.png",
    "reports/evaluate/pass_at_k.png",
    "reports/evaluate/levels.png",
)


def in_line(values: Iterable[str]) -> Any:
    """A list that `to_yaml` writes in one line."""
    line = CommentedSeq(values)
    line.fa.set_flow_style()
    return line


CODE_STAGE = {
    "cmd": f"python -m mathrl.stages.{CODE}",
    "always_changed": True,
    "outs": [{CODE_FILE: {"cache": False, "persist": True}}],
}
RESOLVE_STAGE = {
    "cmd": f"python -m mathrl.stages.{RESOLVE}",
    "deps": ["params"],
    "params": [{CODE_FILE: in_line([RESOLVE, MODEL])}],
    "outs": [RESOLVED],
}


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
    if name == DEFAULT:
        stages = {CODE: CODE_STAGE, RESOLVE: RESOLVE_STAGE, **stages}
        return {folder / graph_file(name): PIPELINE_HEADER + to_yaml({"stages": stages, "plots": list(PLOTS)})}
    outputs = "".join(f"/{stage}\n" for stage in stages if stage != "summary")
    return {
        folder / graph_file(name): HEADER.format(name=name) + to_yaml({"stages": stages}),
        folder / ROOT / name / ".gitignore": outputs,
    }


def graph_file(name: str) -> str:
    """The DVC file of a recipe.

    >>> graph_file("default"), graph_file("dpo")
    ('dvc.yaml', 'pipelines/recipes/dpo/dvc.yaml')
    """
    return "dvc.yaml" if name == DEFAULT else f"{ROOT}/{name}/dvc.yaml"


def graph(
    name: str, recipe: Recipe, folder: Path, preset: str | None = None, groups: Sequence[str] = ()
) -> dict[str, Any]:
    """The DVC stages by name, each after the stages that it needs."""
    once = {name for name, step in recipe.steps.items() if step.stage == "curate"}
    seeds: Sequence[int | None] = recipe.seeds or (None,)
    stages: dict[str, Any] = {}
    for step_name, step in recipe.steps.items():
        if name == DEFAULT and step.stage == "base":  # the pipeline's sft makes it
            continue
        for seed in (None,) if step_name in once else seeds:
            paths = _Paths(name, recipe, seed, once)
            for single_name, single, more in single_evaluations(step_name, step):
                overrides = [*step_overrides(recipe, step_name), *more]
                options = _options(single, paths)
                if step.stage == "base" and _trains_tokenizer([*groups, *overrides], folder, preset):
                    options.append(("data", f"{paths.curated_folder(step)}/sft.jsonl"))
                overrides += [f"run.seed={seed}"] if seed is not None else []
                label, out = paths.label(single_name), paths.folder(single_name)
                if _is_pipelines(name, single_name, step.stage):
                    stages[label] = _pipeline_stage(step.stage, options, overrides)
                else:
                    top = "." if name == DEFAULT else "../../.."
                    stages[label] = _stage(step.stage, out, options, overrides) | {"wdir": top}
    given = [step for step in (recipe.claim.evaluations if recipe.claim else ()) if is_path(step)]
    options = [
        ("evaluated", f"{short(step)}={_Paths(name, recipe, seed, once).report(single)}")
        for step in (*given, *summary_models(recipe))
        for seed in seeds
        for single, _, _ in single_evaluations(step, recipe.steps.get(step))
    ]
    if options and name != DEFAULT:
        file = f"{ROOT}/{name}/summary.json"
        overrides = [item for item in (*recipe.set, *recipe.overrides) if item.split(".")[0] in READS["summary"]]
        stages["summary"] = _stage("summary", file, options, overrides, _claim_words(recipe))
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
    names += [("of", short(step)) for step in fields["evaluations"]] + [("apart", m) for m in fields["apart"]]
    return [("claim", f"{field}={name}") for field, name in names]


class _Paths:
    """The files and folders of a recipe's steps, for one seed."""

    def __init__(self, name: str, recipe: Recipe, seed: int | None, once: set[str]) -> None:
        self.name, self.recipe, self.once = name, recipe, once
        self.seed = seed

    def label(self, step: str) -> str:
        return step if step in self.once else seed_label(step, self.recipe.seeds, self.seed)

    def folder(self, step: str) -> str:
        if _is_pipelines(self.name, step, step):
            return {"mix": "data/mixture"}.get(step, f"data/{step}")
        return step if is_path(step) else f"{ROOT}/{self.name}/{self.label(step)}"

    def model(self, step: str) -> str:
        if self.name == DEFAULT and step in ("base", *PLACES):
            return f"models/{step}"
        return step if is_path(step) else f"{self.folder(step)}/model"

    def report(self, step: str) -> str:
        return step if is_path(step) else f"{self.folder(step)}/report"

    def curated_folder(self, step: Any) -> str:
        curate_step = getattr(step, "curated", None) or self.recipe.curated
        if self.name == DEFAULT and curate_step == "curate":
            return CURATED
        if curate_step and is_path(curate_step):
            return str(curate_step)
        return f"{self.folder(curate_step)}/splits" if curate_step else CURATED

    def data(self, step: Any) -> list[str]:
        """The files that a step's `data` names."""
        names = (step.data,) if isinstance(step.data, str) else step.data
        return [self._file(name, step) for name in names]

    def _file(self, name: str, step: Any) -> str:
        if is_path(name):
            return name
        if name in ("sft", "rl") and hasattr(step, "curated"):
            return f"{self.curated_folder(step)}/{name}.jsonl"
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
        options.append(({"sft": "examples"}.get(split, split), f"{paths.curated_folder(step)}/{split}.jsonl"))
    if step.stage == "mix":
        options.append(("rates", f"{paths.folder(step.difficulty)}/pass_rates.jsonl"))
    if step.stage == "rl":
        if step.difficulty:
            options.append(("difficulty", f"{paths.folder(step.difficulty)}/summary.json"))
        for field in ("reward_model", "process_reward_model", "critic", "reference", "teacher"):
            if getattr(step, field):
                options.append((field.replace("_", "-"), paths.model(getattr(step, field))))
    if step.stage == "evaluate":
        options += [("model", f"{short(model)}={paths.model(model)}") for model in step.models]
    if step.stage == "register":
        options += [("model", paths.model(step.model)), ("summary", SUMMARY)]
    if hasattr(step, "replay"):
        options += [("replay", file) for file in paths.replay(step)]
    return options


def _inputs(stage: str, options: Options) -> dict[str, None]:
    """The files and folders that the options name; some have a label before them, and a path may have "=" too.

    >>> [*_inputs("evaluate", [("model", "sft=models/lr=1e-5"), ("test", "data/a=b/test.jsonl")])]
    ['models/lr=1e-5', 'data/a=b/test.jsonl']
    """
    labelled = ("model", "evaluated") if stage == "evaluate" else ("evaluated",)
    return dict.fromkeys(value.partition("=")[2] if option in labelled else value for option, value in options)


def _values_read(stage: str) -> list[dict[str, list[str]]]:
    """The parameters and the code that decide a stage's results, as DVC's `params`.

    >>> _values_read("mix")
    [{'resolved.yaml': ['run', 'mix']}, {'code.yaml': ['mix']}]
    """
    own = [OWN] if OWN_CODE & {*READS[stage]} else []
    return [{RESOLVED: in_line(READS[stage])}, {CODE_FILE: in_line([stage, *own])}]


def _is_pipelines(recipe: str, step: str, stage: str) -> bool:
    """Whether a step is a stage of the pipeline, with places of its own."""
    return recipe == DEFAULT and step == stage and stage in PLACES


def _pipeline_stage(stage: str, options: Options, overrides: Iterable[str]) -> dict[str, Any]:
    """A stage of the pipeline: it finds its files itself, so its command needs no options."""
    made = [next(iter(out)) if isinstance(out, dict) else out for outs in PLACES[stage].values() for out in outs]
    inputs = _inputs(stage, options)
    inputs |= {f"data/inputs/{stage}": None} if stage in PIPELINE_LINKED else {}
    command = ["python", "-m", f"mathrl.stages.{stage}", *(word for each in overrides for word in ("--set", each))]
    return {
        "cmd": shlex.join(command).replace("${", r"\${"),
        "deps": [*(path for path in inputs if path not in made)],
        "params": _values_read(stage),
        **PLACES[stage],
    }


def _stage(
    stage: str, out: str, options: Options, overrides: Iterable[str], words: Options | None = None
) -> dict[str, Any]:
    """A stage of the graph: the values of `options` are its inputs, those of `words` are not."""
    command = ["python", "-m", f"mathrl.stages.{stage}", out]
    for option, value in [*options, *(words or ()), *(("set", override) for override in overrides)]:
        command += [f"--{option}", value]
    inputs = _inputs(stage, options)
    inputs |= {f"data/inputs/{stage}": None} if stage in LINKED else {}
    outputs = {"metrics": [{out: {"cache": False}}]} if stage == "summary" else {"outs": [out]}
    return {
        "wdir": "../../..",
        "cmd": shlex.join(command).replace("${", r"\${"),  # DVC must not read a value as a template
        "deps": list(inputs),
        "params": _values_read(stage),
        **outputs,
    }


class _Representer(RoundTripRepresenter):
    pass


_Representer.add_representer(str, represent_text)


def to_yaml(content: Any) -> str:
    """The text of a DVC file, as people write it."""
    yaml, stream = YAML(), io.StringIO()
    yaml.Representer = _Representer
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(content, stream)
    return stream.getvalue()
