"""`mathrl import`: a run of another trainer as a record, which health, rollouts, report, audit and compare read."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.imports.foreign_run import read_run
from mathrl.imports.second_opinion import read_answers
from mathrl.imports.write_record import Imported, import_folder

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
    for line in imported.gathered.notes:
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
    }


def _more(imported: Imported, record: str) -> str:
    return f", mathrl runs rollouts {record}, mathrl grade {record}" if imported.gathered.opinion.rollouts else ""
