"""`mathrl plan evaluate`: the problems, responses and runs that an evaluation needs to answer its question."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.options import Choices, Overrides, Presets, join_presets, with_choices
from mathrl.cli.output import AsJson, print_document, print_lines, print_table
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.evaluation.responses import ModelRun
from mathrl.planning.evaluation_plan import (
    ANY_MODEL,
    ANY_PAIR,
    SAMPLES,
    Runs,
    Spread,
    problems_needed,
    smallest_difference,
    spread_of_model,
    spread_of_pair,
    width,
)
from mathrl.reports.find_responses import find_run


def evaluate(
    choices: Choices = None,
    difference: Annotated[
        float | None, typer.Option(min=0.0001, max=1, help="Difference of two models that must be shown.")
    ] = None,
    interval: Annotated[
        float | None, typer.Option("--width", min=0.0001, max=1, help="Or: width of the interval of one model.")
    ] = None,
    pilot: Annotated[
        list[str] | None,
        typer.Option(help="Responses or model that show the spread, as for mathrl compare; twice for a difference."),
    ] = None,
    problems: Annotated[
        int | None, typer.Option(min=2, help="Number of problems of the benchmark; default: that of the pilot.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Training runs (seeds) per recipe.")] = 1,
    run_spread: Annotated[
        float, typer.Option(min=0, max=1, help="Standard deviation of accuracy between runs of a recipe.")
    ] = 0.02,
    correlation: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Correlation of two runs with one seed and start; omit if runs are not paired."
        ),
    ] = None,
    presets: Presets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show how many problems and responses show a difference with 80% power, or give an interval of a wanted width."""
    overrides = with_choices(choices, overrides)
    if (difference is None) == (interval is None):
        raise UserError("give what the evaluation must show: --difference 0.03, or --width 0.05 for one model")
    start = Path.cwd()
    os.chdir(main_checkout())
    params = load_params(preset=join_presets(presets), overrides=overrides or ())
    confidence = params.evaluate.confidence
    pilots = [find_run(text, start, None, params) for text in pilot or ()]
    spread = _spread(pilots, pair=difference is not None)
    figure, wanted = (width, interval) if interval is not None else (smallest_difference, difference)
    assert wanted is not None
    trained = Runs(runs, run_spread, correlation)
    size = problems or (len(pilots[0].rows) if pilots else None)
    rows, plain = [], []
    for samples in SAMPLES:
        needed = problems_needed(figure, wanted, samples, spread, trained, confidence)
        reached = figure(size, samples, spread, trained, confidence) if size else None
        plain.append({"samples": samples, "problems": needed, "reached": reached})
        row = {"responses per problem": str(samples), "problems": "no number" if needed is None else f"{needed:,}"}
        row["responses per model"] = "" if needed is None else f"{needed * samples * runs:,}"
        if reached is not None:
            row[f"with {size:,} problems"] = f"{reached:.3f}"
        rows.append(row)
    if as_json:
        shown = {"difference": difference, "width": interval, "runs": runs, "problems": size}
        print_document(shown | {"confidence": confidence, "spread": spread.account, "plans": plain})
        return
    what = f"a difference of {wanted:g} with 80% power" if difference else f"an interval of width {wanted:g}"
    print_table(f"Needed for {what}, confidence {confidence:.0%}", rows)
    print_lines([f"spread: {spread.account}"])
    if runs > 1:
        pairs = "" if correlation is None else f"; runs with one seed and start correlate by {correlation:g}"
        print_lines([f"{runs} runs per recipe, whose accuracies differ by {run_spread:g} (standard deviation){pairs}"])
    else:
        print_lines(["one run each: the answer is about these models; --runs N plans for recipes"])
    _advise(spread, figure(10**6, 64, spread, trained, confidence), wanted)


def _spread(pilots: list[ModelRun], *, pair: bool) -> Spread:
    if not pilots:
        return ANY_PAIR if pair else ANY_MODEL
    if len(pilots) != 1 + pair:
        right = "two (--pilot A --pilot B)" if pair else "one (--pilot A)"
        raise UserError(f"{len(pilots)} pilots: give {right}, or none")
    return spread_of_pair(pilots[0].rows, pilots[1].rows) if pair else spread_of_model(pilots[0].rows)


def _advise(spread: Spread, least: float, wanted: float) -> None:
    if least > wanted:
        print_lines(["no number of problems is enough: the runs differ too much; train more of them (--runs)"])
    elif spread.between:
        # Where half of a problem's variance is its own, further responses help little.
        enough = max(1, round(spread.within / spread.between))
        print_lines([f"beyond about {enough} responses per problem, more problems help more than more responses"])
