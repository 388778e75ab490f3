"""`mathrl audit RUN`: a person labels a sample of verdicts; the grader's error rates with intervals."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.evaluation.audit import Label
from mathrl.reports.audit import Audit, add_cases, find_responses, open_audit, shown
from mathrl.rewards.disagreement import MathVerifyJudge

KEYS: dict[str, Label] = {"y": "y", "n": "n", "u": "unsure"}
SHOWN = 2000  # characters at the end of a response


def audit(
    run: Annotated[
        str, typer.Argument(help="Graded responses: evaluate, rl (kept rollouts), a recipe's step, a folder or file.")
    ],
    size: Annotated[int, typer.Option(min=2, help="Number of responses to label, about.")] = 200,
    model: Annotated[str | None, typer.Option(help="Model whose responses are audited; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample; another one is another audit.")] = 0,
    math_verify: Annotated[
        bool, typer.Option("--math-verify", help="Ask Math-Verify first; its disagreement makes strata.")
    ] = False,
    labels: Annotated[Path | None, typer.Option(help="Labels that the audit's page saved, instead of asking.")] = None,
    cases: Annotated[Path | None, typer.Option(help="File of cases to which wrong verdicts are added.")] = None,
    annotator_error: Annotated[
        float, typer.Option(min=0, max=0.49, help="Share of wrong labels, if known; rates are corrected for it.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Label a sample of verdicts (y, n, unsure) and estimate how often the grader is wrong; resumes."""
    start = Path.cwd()
    run = str(start / run) if (start / run).exists() else run
    files = [path and path.absolute() for path in (labels, cases)]
    os.chdir(main_checkout())
    started = open_audit(find_responses(run), model, size, seed, _disagrees() if math_verify else None)
    started.write(annotator_error)
    print(f"page: {started.folder / 'audit.html'}")
    if files[0] is not None:
        print(f"{started.take(files[0])} labels read")
    else:
        _ask(started)
    rates = started.write(annotator_error)
    added = add_cases(files[1], started.cases()) if files[1] is not None else 0
    if as_json:
        folder = started.folder.absolute()
        print_document(asdict(rates) | {"open": len(started.open), "folder": str(folder), "cases": added})
        return
    for line in rates.lines():
        print(line)
    if files[1] is not None:
        print(f"{added} new cases in {files[1]}")


def _ask(started: Audit) -> None:
    """Ask in the terminal until all are labelled, q, or the end of the input."""
    open_items = started.open
    for number, item in enumerate(open_items, len(started.sample) - len(open_items) + 1):
        text = shown(item.row)
        response = text["response"]
        print(f"\n--- {number} of {len(started.sample)}\n{text['question']}")
        print(("… " if len(response) > SHOWN else "") + response[-SHOWN:])
        print(f"accepted: {text['truth']}    extracted: {text['extracted']}")
        while (answer := _read()) not in (*KEYS, "q"):
            print("y: the final answer is right; n: it is wrong; u: unsure; q: go on another time")
        if answer == "q":
            return
        started.add(item.key, KEYS[answer])


def _read() -> str:
    try:
        return input("right? [y/n/u/q] ").strip().lower()[:1]
    except EOFError:
        return "q"


def _disagrees() -> Any:
    judge = MathVerifyJudge()
    if not judge.engine.warm_up():
        raise UserError("Math-Verify does not start: `mathrl doctor` says what is missing")

    def disagrees(row: Mapping[str, Any]) -> bool:
        verdict = judge.judge(str(row.get("question", "")), str(row["response"]), row["truths"])
        return verdict is not None and verdict != row["correct"]

    return disagrees
