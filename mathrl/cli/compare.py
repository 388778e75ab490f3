"""`mathrl compare A B`: whether one model is better, and which differences the test can detect."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mathrl.cli.compare_in_looks import compare_in_looks
from mathrl.cli.options import Overrides, Presets, grouped, joined
from mathrl.cli.output import AsJson, print_document
from mathrl.cli.tables import print_lines, print_table
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.evaluation.compare import MOST_LOOKS
from mathrl.reports.find_responses import compare_named, model_folder


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
        if as_json:
            print_document(test.to_row())
        else:
            print(test.verdict())
        return
    if parts.difference is not None:
        raise UserError("--difference belongs to --looks N; mathrl plan evaluate --difference plans an evaluation")
    comparison = compare_named(
        (before, after), start, params, benchmark=compared.benchmark, metric=compared.metric, common=compared.common
    )
    if as_json:
        print_document(comparison)
    else:
        _print(comparison, params.evaluate.confidence)


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
