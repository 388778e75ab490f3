"""`mathrl health RUN`: apply the health rules to the metrics of a run, during or after it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.core.errors import UserError
from mathrl.core.exit_status import EXIT_NO
from mathrl.core.forecast import forecast_of
from mathrl.core.paths import main_checkout
from mathrl.health.watch import examine, judging_rules, sentence
from mathrl.reports.find_run import find_training_run


def health(
    run: Annotated[str, typer.Argument(help="Stage, recipe's step, folder with metrics, or MLflow run.")],
    as_json: AsJson = False,
) -> None:
    """Report the health of a run from its metrics: evidence, cause and remedy; exit status 1 if red, 2 if unknown."""
    folder = Path(run).absolute()
    os.chdir(main_checkout())
    training = find_training_run(str(folder) if folder.exists() else run)
    settings = training.settings()
    judging, applying = judging_rules(training.rows, *settings)
    if not judging:
        raise UserError(
            f"{training.name}: nothing could be judged: none of the {len(applying)} rules has its metrics, such as "
            f"reward/accuracy, kl, entropy (docs/health.md); found {', '.join(_names(training.rows)) or 'no rows'}"
        )
    report = examine(training.rows, *settings).report()
    if as_json:
        print_document({"run": training.name, **report})
    else:
        rules = f"{len(judging)} of {len(applying)} rules had their metrics"
        print(f"{training.name}: {report['colour']} after {report['steps']} steps; {rules}")
        for finding in report["findings"]:
            print(f"- to step {finding['last']}, {sentence(finding)}")
        forecast = forecast_of(training.record, training.rows) if training.record else None
        if forecast is not None:
            print(f"forecast from the dev curve up to step {forecast.step}: {forecast.sentence()}")
    if report["colour"] == "red":
        raise SystemExit(EXIT_NO)


def _names(rows: Sequence[Mapping[str, float]], most: int = 5) -> list[str]:
    """Some metrics of the last row."""
    names = [name for name in rows[-1] if name != "step"] if rows else []
    return names[:most] + ["…"] * (len(names) > most)
