"""`mathrl import` and `mathrl watch`: a run of another trainer as a record, which health, rollouts, report, audit and
compare read; and its health while it goes on. Its files are only read.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.compose import load_params
from mathrl.core.errors import EXIT_NO, EXIT_USER_ERROR, UserError
from mathrl.health.watch import Finding, Watch, blind_rules, examine, judging_rules, sentence
from mathrl.imports.foreign_run import ForeignRun, read_run
from mathrl.imports.second_opinion import Memo, read_answers
from mathrl.imports.write_record import Imported, gather, import_folder
from mathrl.params.load import validate_section
from mathrl.params.other_trainers import parameter_names
from mathrl.params.train import Rl
from mathrl.params.training import Health

System = Literal[
    "verl", "trl", "prime-rl", "tinker", "openrlhf", "nemo-rl", "rlinf", "wandb", "tensorboard", "csv", "mlflow"
]
From = Annotated[System | None, typer.Option("--from", help="The trainer or the form; default: found out.")]
Answers = Annotated[
    Path | None, typer.Option(help="File of problems with their answers, where the rollouts have none.")
]


def import_run(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the run, or one file of it; with --from mlflow its name or id.")
    ],
    system: From = None,
    name: Annotated[str | None, typer.Option(help="Name of the record, imported-NAME; default: the folder's.")] = None,
    answers: Answers = None,
    as_json: AsJson = False,
) -> None:
    """Import a run of verl, TRL, prime-rl and others as a record: metrics, rollouts, configuration, checkpoints."""
    run = read_run(folder, system)
    imported = import_folder(run, name, read_answers(answers) if answers else None)
    record = imported.record.folder.name
    if as_json:
        print_document(document(imported, run.missing_lines()))
        return
    print(f"{folder}: a run of {run.system or 'an unknown trainer'}")
    for line in run.found_lines():
        print(f"  {line}")
    for line in run.missing_lines():
        print(f"  missing: {line}")
    for line in (*not_taken_over(run.system, imported.gathered.unused), *imported.gathered.notes):
        print(f"  {line}")
    if imported.gathered.opinion.rollouts:
        for line in imported.gathered.opinion.lines():
            print(f"  {line}")
    print(f"record {record}; next: mathrl runs health {record}" + _more(imported, record))


def document(imported: Imported, missing: list[str]) -> dict[str, Any]:
    opinion, record = imported.gathered.opinion, imported.record
    return {
        "record": record.folder.name,
        "folder": str(record.folder),
        "trainer": record.resolved["trainer"],
        "steps": len(imported.gathered.rows),
        "metrics": sorted({name for row in imported.gathered.rows for name in row} - {"step"}),
        "rollouts": opinion.rollouts,
        "graded": opinion.graded,
        "disagreement": opinion.disagreement if opinion.graded else None,
        "reward_for_wrong": opinion.wrong_share if opinion.graded else None,
        "missing": missing,
        "not_taken_over": sorted(imported.gathered.unused),
    }


def not_taken_over(system: str, unused: Mapping[str, Any]) -> list[str]:
    """A line about the parameters that the section rl does not have, with those that mathrl has the like of by name."""
    if not unused:
        return []
    table = {row.name: row.ours for row in parameter_names() if row.trainer == system and row.ours.startswith("rl")}
    alike = [f"{name} ({table[name]})" for name, value in unused.items() if name in table and value is not None]
    named = f", among them {', '.join(alike)}" if alike else ""
    return [f"not taken over: {len(unused)} of their parameters, which run.json lists{named}"]


def _more(imported: Imported, record: str) -> str:
    return f", mathrl runs rollouts {record}, mathrl grade {record}" if imported.gathered.opinion.rollouts else ""


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of the run, or one file of metrics or rollouts.")],
    system: From = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 30.0,
    idle: Annotated[
        float, typer.Option(min=0, help="End after this many minutes without a new step; 0: one look.")
    ] = 30.0,
    stop_on_red: Annotated[bool, typer.Option("--stop-on-red", help="End at the first red finding.")] = False,
    webhook: Annotated[str | None, typer.Option(help="Address that gets each new finding as JSON.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Also keep the record imported-NAME up to date, for its pages.")
    ] = None,
    answers: Answers = None,
) -> None:
    """Report the health of a run of another trainer while it goes on; exit status 1 if red, 2 if unknown."""
    known, memo = read_answers(answers) if answers else None, Memo()

    def look(run: ForeignRun) -> tuple[list[dict[str, Any]], Rl]:
        gathered = import_folder(run, name, known, memo).gathered if name else gather(run, known, memo=memo)
        return gathered.rows, validate_section(Rl, gathered.rl, str(folder))

    reported: dict[str, int] = {}
    steps, changed, state, waiting = -1, time.monotonic(), None, ""
    while True:
        run, problem = _read(folder, system, wait=idle > 0)
        if run is not None:
            rows, rl = look(run)
            health = _health()
            blind = blind_rules(rows)
            state = examine(rows, health, rl, blind)
            if len(rows) != steps:
                judging, applying = judging_rules(rows, health, rl, blind)
                steps, changed = len(rows), time.monotonic()
                last = rows[-1]["step"] if rows else 0
                colour = state.colour if judging else "unknown"
                print(f"step {last}: {colour}; {len(judging)} of {len(applying)} rules had their metrics", flush=True)
            _report(state, reported, lambda finding: _tell(finding, folder, webhook))
            if stop_on_red and state.colour == "red":
                raise SystemExit(EXIT_NO)
        elif problem != waiting:
            waiting = problem
            print(f"waiting: {problem}", flush=True)
        if time.monotonic() - changed >= idle * 60:
            break
        time.sleep(every)
    if state is None and problem:
        raise UserError(problem)
    if state is None or not judging_rules(state.rows, state.health, state.rl, blind_rules(state.rows))[0]:
        raise SystemExit(EXIT_USER_ERROR)
    if state.colour == "red":
        raise SystemExit(EXIT_NO)


def _read(folder: Path, system: str | None, *, wait: bool) -> tuple[ForeignRun | None, str]:
    """The run as it is now; None while a file is about to be written, or nothing is there yet."""
    try:
        return read_run(folder, system), ""
    except (UserError, FileNotFoundError) as error:
        if not wait:
            raise
        return None, str(error)


def _health() -> Health:
    """The section of the project around, or the defaults: a run may be watched without a project."""
    try:
        return load_params().health
    except UserError:
        return Health()


def _report(state: Watch, reported: dict[str, int], tell: Callable[[Finding], None]) -> None:
    """Tell the findings that are new, or that come back after more than a window."""
    for finding in state.sorted_findings:
        before = reported.get(finding.rule)
        if before is None or finding.last > before + state.health.window:
            tell(finding)
        reported[finding.rule] = finding.last


def _tell(finding: Finding, folder: Path, webhook: str | None) -> None:
    print(f"- {sentence(asdict(finding))}", flush=True)
    if webhook is None:
        return
    try:
        httpx.post(webhook, json={"run": str(folder), **asdict(finding)}, timeout=10).raise_for_status()
    except httpx.HTTPError as error:
        print(f"warning: the webhook did not take it: {error}", flush=True)
