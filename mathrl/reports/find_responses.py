"""The responses and models that A and B name in `mathrl compare`, `mathrl plan evaluate` and `mathrl.compare`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.hashing import digest_model
from mathrl.core.paths import RECIPES
from mathrl.core.records import records_folder
from mathrl.core.results import short_name
from mathrl.core.types import Problem
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.compare import compare_sides, holm
from mathrl.evaluation.responses import ModelRun, common_problems, read_run, read_runs
from mathrl.params import Params
from mathrl.params.messages import near_path
from mathrl.reading.registry import GENERAL
from mathrl.reports.evaluation import evaluate_once, evaluation_key
from mathrl.reports.find_run import near_run

RESPONSES = "responses.jsonl"
PIPELINE = Path("reports/evaluate") / RESPONSES
ACCEPTED = (
    "a responses.jsonl, a folder with one (reports/evaluate, or a recipe's evaluate step), a model folder, a "
    "recipe's step such as pipelines/recipes/NAME/STEP, or a model of reports/evaluate by its name; :MODEL chooses one "
    "of several, commas join the runs of several seeds"
)


def compare_named(
    texts: tuple[str, str],
    start: Path,
    params: Params,
    *,
    benchmark: str | None = None,
    metric: str = "pass_at_1",
    common: bool = False,
) -> dict[str, Any]:
    """Compare what the two texts name, as `mathrl compare` does; the current folder is the checkout.

    Args:
        start: Folder that relative paths start from, before the checkout.
        common: Whether only problems count that every run answered; else others are an error.

    Raises:
        UserError: a text names nothing, or its responses cannot be compared.
    """
    sides = [_runs(text, start, benchmark, params) for text in texts]
    first = len(sides[0])
    runs = common_problems([*sides[0], *sides[1]], allow_missing=common)
    before, after = runs[:first], runs[first:]
    # Responses in one file come from one evaluation of a recipe with one seed.
    by_seed = [run.where for run in before] == [run.where for run in after]
    return compare_sides(before, after, _names(sides, texts), metric, params.evaluate, by_seed=by_seed)


def compare_forgetting(
    texts: tuple[str, str], start: Path, params: Params, benchmarks: Sequence[str], metric: str = "pass_at_1"
) -> list[dict[str, Any]]:
    """The comparison of each benchmark, with its p-value corrected for all of them (Holm) and what became of the skill.

    Args:
        benchmarks: Empty: those that the responses of both sides have, or the general sets for model folders.

    Raises:
        UserError: as `compare_named`.
    """
    covered = [_benchmarks_in(text, start) for text in texts]
    both = [name for name in covered[0] if name in covered[1]]
    if not benchmarks and not both and all(covered):
        raise UserError(f"{' and '.join(texts)} have no benchmark in common")
    found = [
        compare_named(texts, start, params, benchmark=name, metric=metric) for name in benchmarks or both or GENERAL
    ]
    corrected = holm([comparison["comparison"]["p_value"] for comparison in found])
    for comparison, p in zip(found, corrected, strict=True):
        test = comparison["comparison"]
        shown = p < 1 - params.evaluate.confidence
        outcome = "no loss shown" if not shown else "lost" if test["difference"] < 0 else "gained"
        comparison |= {"corrected_p": p, "outcome": outcome}
    return found


def _benchmarks_in(text: str, start: Path) -> list[str]:
    """The benchmarks of the responses that a text names, in their order, of several runs those that all have; none for
    a model folder."""
    first, *others = [_benchmarks_of_run(part.strip(), start) for part in text.split(",") if part.strip()] or [[]]
    return [name for name in first if all(name in other for other in others)]


def _benchmarks_of_run(text: str, start: Path) -> list[str]:
    path = _place(text, start) or _place(text.rpartition(":")[0], start)
    path = PIPELINE if path is None and re.fullmatch(r"[\w-]+", text) else path
    files = [path, path / RESPONSES, path / "report" / RESPONSES] if path is not None else []
    return list(dict.fromkeys(run.benchmark for file in files if file.is_file() for run in read_runs(file)))


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
        folder = Path("models") / name
        made = f" ({folder} has not been evaluated here: give that path, or start mathrl run evaluate)"
        hint = made if folder.is_dir() else near_run(name) or near_path(start / name)
        raise UserError(f"{name}: no such file or folder{hint}; give {ACCEPTED}")
    if path.is_file():
        return read_run(path, model, benchmark)
    for folder in (path, path / "report"):  # a recipe's evaluate step has it in report/
        if (folder / RESPONSES).is_file():
            return read_run(folder / RESPONSES, model, benchmark)
    if (model_in_it := _model_in(path)) is not None:
        return _evaluate_folder(model_in_it, name_of(model_in_it), benchmark, params)
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
    for path in (start / text, Path(text), RECIPES / text, records_folder() / text):
        if text and path.exists():
            inside = path.absolute().is_relative_to(Path.cwd())
            return path.absolute().relative_to(Path.cwd()) if inside else path
    return None


def _evaluate_folder(folder: Path, label: str, benchmark: str | None, params: Params) -> ModelRun:
    """A model folder, evaluated now unless the same bytes were evaluated on the same files with the same parameters."""
    benchmark = benchmark or params.evaluate.benchmarks[0]
    output = output_of(folder, label, benchmark, params)
    if not (output / RESPONSES).is_file():
        evaluate_once(folder, benchmark, params, output)
    return replace(read_run(output / RESPONSES, None, benchmark), label=label)


def output_of(
    folder: Path, label: str, benchmark: str, params: Params, problems: Sequence[Problem] | None = None
) -> Path:
    """Where an evaluation of a model folder is kept: by its bytes and everything that its responses depend on.

    `problems` are the benchmark's, which is read if they are not known.
    """
    problems = benchmark_problems(benchmark, params) if problems is None else problems
    key = evaluation_key(digest_model(folder), benchmark, problems, params)
    return Path("reports/evaluations") / f"{label}-{short_name(benchmark)}-{key[:10]}"


def name_of(folder: Path) -> str:
    """The model's name: its folder's, or that of the recipe's step."""
    return folder.parent.name if folder.name == "model" else folder.name


def _names(sides: Sequence[Sequence[ModelRun]], texts: tuple[str, str]) -> tuple[str, str]:
    """Names of the two sides: those of their models without a seed if they differ, else the arguments."""
    labels = [{re.sub(r"[-_]s\d+$", "", run.label) for run in side} for side in sides]
    if all(len(names) == 1 for names in labels) and labels[0] != labels[1]:
        return next(iter(labels[0])), next(iter(labels[1]))
    return texts if texts[0] != texts[1] else (texts[0], f"{texts[1]} (again)")
