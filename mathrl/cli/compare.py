"""`mathrl compare A B`: whether one model is better, and which differences the test can detect."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mathrl.cli.compare_in_looks import RESPONSES, compare_in_looks, name_of, output_of
from mathrl.cli.options import AsJson, Overrides, Presets, grouped, joined
from mathrl.cli.tables import print_lines, print_table
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.paths import RECIPES, main_checkout
from mathrl.evaluation.compare import compare_sides
from mathrl.evaluation.responses import ModelRun, common_problems, read_run
from mathrl.evaluation.sequential import MOST_LOOKS
from mathrl.params import Params
from mathrl.params.messages import near_path
from mathrl.reports.evaluation import evaluate_once
from mathrl.reports.find_run import near_run

PIPELINE = Path("reports/evaluate") / RESPONSES
ACCEPTED = (
    "a responses.jsonl, a folder with one (reports/evaluate, or a recipe's evaluate step), a model folder, a "
    "recipe's step such as pipelines/recipes/NAME/STEP, or a model of reports/evaluate by its name; :MODEL chooses one "
    "of several, commas join the runs of several seeds"
)


@dataclass(frozen=True)
class Compared:
    """What the runs are compared by."""

    benchmark: Annotated[str | None, typer.Option(help="Benchmark to compare on, if the runs cover several.")] = None
    metric: Annotated[str, typer.Option(help="Metric to compare: pass_at_1, pass_at_K or maj_at_K.")] = "pass_at_1"
    common: Annotated[bool, typer.Option("--common", help="Compare only on problems that every run answered.")] = False


@dataclass(frozen=True)
class Looks:
    """When an evaluation in parts stops."""

    looks: Annotated[
        int, typer.Option(min=1, max=MOST_LOOKS, help="Parts in which model folders are evaluated, until it is clear.")
    ] = 1
    difference: Annotated[
        float | None, typer.Option(min=0.0001, max=1, help="With --looks: stop once this difference is excluded.")
    ] = None


@grouped
def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="Responses, a model, or a recipe's step.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The same; commas join the runs of several seeds.")],
    compared: Compared,
    parts: Looks,
    presets: Presets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Test whether B is better than A, and by how much; report the smallest difference that can be detected.

    A and B are responses.jsonl files or folders with one (:MODEL chooses a model in it), model folders, which are
    evaluated first, recipe steps (NAME/STEP), or names of models in reports/evaluate.
    """
    start = Path.cwd()
    os.chdir(main_checkout())
    params = load_params(preset=joined(presets), overrides=overrides or ())
    if parts.looks > 1:
        folders = [model_folder(text, start) for text in (before, after)]
        benchmark = compared.benchmark or params.evaluate.benchmarks[0]
        test = compare_in_looks((folders[0], folders[1]), benchmark, params, parts.looks, parts.difference)
        print(json.dumps(test.to_row(), indent=2) if as_json else test.verdict())
        return
    if parts.difference is not None:
        raise UserError("--difference belongs to --looks N; mathrl plan evaluate --difference plans an evaluation")
    sides = [_runs(text, start, compared.benchmark, params) for text in (before, after)]
    first = len(sides[0])
    runs = common_problems([*sides[0], *sides[1]], allow_missing=compared.common)
    names = _names(sides, (before, after))
    comparison = compare_sides(runs[:first], runs[first:], names, compared.metric, params.evaluate)
    if as_json:
        print(json.dumps(comparison, indent=2, ensure_ascii=False))
    else:
        _print(comparison, params.evaluate.confidence)


def _runs(text: str, start: Path, benchmark: str | None, params: Params) -> list[ModelRun]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"{text!r}: nothing to compare; give {ACCEPTED}")
    return [find_run(part, start, benchmark, params) for part in parts]


def find_run(text: str, start: Path, benchmark: str | None, params: Params) -> ModelRun:
    """The responses that `text` names: those of a file, folder, recipe's step or model of reports/evaluate, or those of
    a model folder, which is evaluated now.

    Raises:
        UserError: it names none, or several.
    """
    path, name, model = _place(text, start), text, None
    if path is None and ":" in text:
        name, _, model = text.rpartition(":")
        path = _place(name, start)
    if path is None and PIPELINE.is_file() and re.fullmatch(r"[\w-]+", text):
        return read_run(PIPELINE, text, benchmark)
    if path is None:
        raise UserError(f"{name}: no such file or folder{near_run(name) or near_path(start / name)}; give {ACCEPTED}")
    if path.is_file():
        return read_run(path, model, benchmark)
    for folder in (path, path / "report"):  # a recipe's evaluate step has it in report/
        if (folder / RESPONSES).is_file():
            return read_run(folder / RESPONSES, model, benchmark)
    if (model_in_it := _model_in(path)) is not None:
        return _evaluated(model_in_it, name_of(model_in_it), benchmark, params)
    raise UserError(f"{text}: it contains neither responses nor a model; give {ACCEPTED}")


def model_folder(text: str, start: Path) -> Path:
    """The model folder that `text` names: a folder, or a recipe's step.

    Raises:
        UserError: it names none.
    """
    path = _place(text, start)
    folder = _model_in(path) if path is not None else None
    if folder is None:
        raise UserError(f"{text}: --looks evaluates models part by part; give a model folder or a recipe's step")
    return folder


def _model_in(path: Path) -> Path | None:
    folders = (path, path / "model")
    return next((f for f in folders if (f / "config.json").is_file() or (f / "reference.json").is_file()), None)


def _place(text: str, start: Path) -> Path | None:
    """The path relative to the folder of the call, to the checkout, or to its recipes; None if there is none."""
    for path in (start / text, Path(text), RECIPES / text):
        if text and path.exists():
            inside = path.absolute().is_relative_to(Path.cwd())
            return path.absolute().relative_to(Path.cwd()) if inside else path
    return None


def _evaluated(folder: Path, label: str, benchmark: str | None, params: Params) -> ModelRun:
    """A model folder, evaluated now unless the same bytes were evaluated with the same parameters."""
    benchmark = benchmark or params.evaluate.benchmarks[0]
    output = output_of(folder, label, benchmark, params)
    if not (output / RESPONSES).is_file():
        evaluate_once(folder, benchmark, params, output)
    return replace(read_run(output / RESPONSES, None, benchmark), label=label)


def _names(sides: Sequence[Sequence[ModelRun]], texts: tuple[str, str]) -> tuple[str, str]:
    """Names of the two sides: those of their models without a seed if they differ, else the arguments."""
    labels = [{re.sub(r"[-_]s\d+$", "", run.label) for run in side} for side in sides]
    if all(len(names) == 1 for names in labels) and labels[0] != labels[1]:
        return next(iter(labels[0])), next(iter(labels[1]))
    return texts if texts[0] != texts[1] else (texts[0], f"{texts[1]} (again)")


def _print(comparison: dict[str, Any], confidence: float) -> None:
    models, test, metric = comparison["models"], comparison["comparison"], _spoken(comparison["metric"])
    others = [name for name in next(iter(models.values())) if name.startswith(("pass_at_", "maj_at_"))]
    others = [k for k in others if k != comparison["metric"] and all(k in figures for figures in models.values())]
    rows = [
        {"model": name, "runs": str(len(figures["runs"])), metric: f"{figures['mean']:.3f}"}
        | {f"{confidence:.0%} interval": f"{figures['low']:.3f} to {figures['high']:.3f}"}
        | {_spoken(other): f"{figures[other]:.3f}" for other in others}
        | {"mean length": f"{figures['response_length']:.1f}", "truncated": f"{figures['truncated_share']:.1%}"}
        for name, figures in models.items()
    ]
    print_table(f"{comparison['benchmark']}: {comparison['problems']} problems", rows)
    print_lines(
        f"{name}, by run: {', '.join(f'{value:.3f}' for value in figures['runs'])}"
        for name, figures in models.items()
        if len(figures["runs"]) > 1
    )
    for by in ("level", "subject"):
        groups = comparison[f"by_{by}"].items()
        print_table(f"{metric} by {by}", [_group(by, name, row, list(models)) for name, row in groups], left=(by,))
    print_lines([test["verdict"]])
    if test["shown"]:
        print_lines([f"with 80 % power, this set detects differences of at least {test['detectable']:.3f}"])


def _group(by: str, group: str, row: Mapping[str, Any], models: Sequence[str]) -> dict[str, str]:
    interval = f"{row['low']:+.3f} to {row['high']:+.3f}" if "low" in row else ""
    rates = dict(zip(models, (f"{row['before']:.3f}", f"{row['after']:.3f}"), strict=True))
    differences = {"difference": f"{row['difference']:+.3f}", "interval": interval}
    return {by: group, "problems": str(row["problems"]), **rates, **differences}


def _spoken(metric: str) -> str:
    return metric.replace("_at_", "@")
