"""`mathrl compare A B`: whether one model is better, and which differences the test can detect."""

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mathrl.cli.options import Overrides, Presets, join_presets
from mathrl.cli.output import AsJson, print_document, print_lines, print_result, print_table
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.paths import checkout_or_here
from mathrl.core.results import Comparison
from mathrl.core.types import EvalRow, Problem
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.compare import MOST_LOOKS, look_levels
from mathrl.evaluation.paired import compare as paired
from mathrl.evaluation.responses import read_run
from mathrl.evaluation.summary import accuracies, responses_behind
from mathrl.params import Params
from mathrl.params.load import FOLDER
from mathrl.reports.evaluation import evaluate_once
from mathrl.reports.find_responses import RESPONSES, compare_forgetting, compare_named, model_folder, name_of, output_of


def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="Responses, a model, or a recipe's step.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The same; commas join the runs of several seeds.")],
    benchmark: Annotated[
        list[str] | None, typer.Option(help="Benchmark, if the runs cover several; with --forgetting repeatable.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Metric to compare: pass_at_1, pass_at_K or maj_at_K.")] = "pass_at_1",
    common: Annotated[bool, typer.Option("--common", help="Compare only on problems that every run answered.")] = False,
    looks: Annotated[
        int, typer.Option(min=1, max=MOST_LOOKS, help="Parts in which model folders are evaluated, until it is clear.")
    ] = 1,
    difference: Annotated[
        float | None, typer.Option(min=0.0001, max=1, help="With --looks: stop once this difference is excluded.")
    ] = None,
    forgetting: Annotated[
        bool, typer.Option("--forgetting", help="Compare on every benchmark, or general sets: what was lost?")
    ] = False,
    presets: Presets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Test whether B is better than A, and by how much; report the smallest difference that can be detected.

    A and B are responses.jsonl files or folders with one (:MODEL chooses a model in it), model folders, which are
    evaluated first, recipe steps (NAME/STEP), or names of models in reports/evaluate.
    """
    start = Path.cwd()
    os.chdir(checkout_or_here())
    # Imported runs are compared outside a project too; its parameters have to name some data.
    nothing_written = [] if FOLDER.is_dir() else ["data=gsm8k"]
    params = load_params(preset=join_presets(presets), overrides=[*nothing_written, *(overrides or ())])
    if forgetting:
        if looks > 1 or common or difference is not None:
            raise UserError("--forgetting goes with neither --looks, --difference nor --common")
        found = compare_forgetting((before, after), start, params, benchmark or (), metric)
        if as_json:
            print_document({"benchmarks": found})
        else:
            _print_forgetting(found)
        return
    if len(benchmark or ()) > 1:
        raise UserError("several benchmarks are compared with --forgetting; else name one")
    chosen = benchmark[0] if benchmark else None
    if looks > 1:
        if common or metric != "pass_at_1":
            raise UserError(
                "--looks compares pass_at_1 on the problems that it samples: leave --metric and --common out"
            )
        folders = [model_folder(text, start) for text in (before, after)]
        name = chosen or params.evaluate.benchmarks[0]
        test = compare_in_looks((folders[0], folders[1]), name, params, looks, difference)
        print_result(as_json, test.to_row(), test.verdict())
        return
    if difference is not None:
        raise UserError("--difference belongs to --looks N; mathrl plan evaluate --difference plans an evaluation")
    comparison = compare_named((before, after), start, params, benchmark=chosen, metric=metric, common=common)
    if as_json:
        print_document(comparison)
    else:
        _print(comparison, params.evaluate.confidence)


def _print_forgetting(found: Sequence[Mapping[str, Any]]) -> None:
    """A row per benchmark, and what was lost in a sentence."""
    rows = []
    for comparison in found:
        test, (before, after) = comparison["comparison"], comparison["models"].values()
        rows.append(
            {
                "benchmark": comparison["benchmark"],
                "problems": str(comparison["problems"]),
                "before": f"{before['mean']:.3f}",
                "after": f"{after['mean']:.3f}",
                "difference": f"{test['difference']:+.3f} [{test['low']:+.3f}, {test['high']:+.3f}]",
                "p, corrected": f"{comparison['corrected_p']:.4f}",
                "verdict": comparison["outcome"],
            }
        )
    print_table("before and after training", rows, left=("benchmark", "verdict"))
    lost = [comparison for comparison in found if comparison["outcome"] == "lost"]
    losses = ", ".join(f"{each['benchmark']} {each['comparison']['difference']:+.3f}" for each in lost)
    kept = [each for each in found if each["outcome"] != "lost"]
    lines = [f"lost: {losses}" if lost else f"no loss is shown on {len(found)} benchmarks"]
    if kept:
        worst = max(kept, key=lambda each: -each["comparison"]["low"])
        least = max(0.0, -worst["comparison"]["low"])
        lines.append(
            f"the interval of {worst['benchmark']} leaves room for a loss of {least:.3f}, the most of the others"
        )
    print_lines(lines)


def _print(comparison: dict[str, Any], confidence: float) -> None:
    models, test, metric = comparison["models"], comparison["comparison"], _metric_words(comparison["metric"])
    others = [name for name in next(iter(models.values())) if name.startswith(("pass_at_", "maj_at_"))]
    others = [k for k in others if k != comparison["metric"] and all(k in figures for figures in models.values())]
    rows = [
        {"model": name, "runs": str(len(figures["runs"])), metric: f"{figures['mean']:.3f}"}
        | {f"{confidence:.0%} interval": f"{figures['low']:.3f} to {figures['high']:.3f}"}
        | {_metric_words(other): f"{figures[other]:.3f}" for other in others}
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


def _metric_words(metric: str) -> str:
    return metric.replace("_at_", "@")


def compare_in_looks(
    folders: tuple[Path, Path], benchmark: str, params: Params, looks: int, difference: float | None
) -> Comparison:
    """Evaluate two models on a part of the problems after the other; test after each at `look_levels`.

    It ends once a difference is shown, or one of `difference` is excluded. A part that was evaluated before is read.

    Raises:
        UserError: fewer than two problems per part.
    """
    problems = benchmark_problems(benchmark, params)
    random.Random(derive_seed(0, "looks", benchmark)).shuffle(problems)
    if len(problems) < 2 * looks:
        raise UserError(f"--looks {looks}: {benchmark} has {len(problems)} problems, each look needs two or more")
    names = (name_of(folders[0]), name_of(folders[1]))
    names = names if names[0] != names[1] else (str(folders[0]), str(folders[1]))
    rows: tuple[list[EvalRow], list[EvalRow]] = ([], [])
    test: Comparison | None = None
    for look, level in enumerate(look_levels(looks, 1 - params.evaluate.confidence), start=1):
        part = problems[look - 1 :: looks]
        for folder, seen in zip(folders, rows, strict=True):
            seen += _responses(folder, benchmark, params, part, f"{look}of{looks}")
        test = paired(*names, *map(accuracies, rows), responses=responses_behind(rows), confidence=1 - level)
        bounds = f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"
        print(f"look {look} of {looks}: {test.problems} problems, {bounds}, p = {test.p_value:.4f}, level {level:.4f}")
        excluded = difference is not None and -difference < test.low and test.high < difference
        if excluded:
            print(f"a difference of {difference:g} or more is excluded")
        if (test.shown or excluded) and look < looks:
            print(f"stopped after {test.problems} of {len(problems)} problems")
        if test.shown or excluded:
            break
    assert test is not None
    return test


def _responses(folder: Path, benchmark: str, params: Params, part: Sequence[Problem], number: str) -> Sequence[EvalRow]:
    whole = output_of(folder, name_of(folder), benchmark, params, part)
    output = whole.with_name(f"{whole.name}-{number}")
    if not (output / RESPONSES).is_file():
        evaluate_once(folder, benchmark, params, output, problems=part)
    return read_run(output / RESPONSES, None, benchmark).rows
