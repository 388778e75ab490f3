"""`mathrl runs`: a table of all runs as MLflow lists them; remove a worktree under runs/, or adopt its parameters."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.cli.tables import print_lines, print_table
from mathrl.cli.ui import answering
from mathrl.compose import load_params
from mathrl.compose.changes import differences
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.paths import main_checkout
from mathrl.params.load import read_yaml
from mathrl.params.messages import did_you_mean
from mathrl.recipes.recipe import recipe_files
from mathrl.tasks import workspace
from mathrl.tracking.client import connect
from mathrl.tracking.run_list import RunRow, list_runs

SORTS = {"rl": "rl/pass_at_1", "dev": "dev/best"}


def runs(
    prune: Annotated[list[str] | None, typer.Option(help="Run to remove, by name; all removes every run.")] = None,
    promote: Annotated[str | None, typer.Option(help="Run whose parameters are written into params/, by name.")] = None,
    sort: Annotated[
        Literal["started", "rl", "dev"], typer.Option(help="started: newest first; rl, dev: highest accuracy first.")
    ] = "started",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 30,
    as_json: AsJson = False,
) -> None:
    """List all runs with their figures; remove worktrees, or write the parameters of one into params/ for a commit."""
    root = main_checkout()
    notes = {folder.name: (folder, note) for folder, note in workspace.runs(root)}
    removed = list(notes) if prune and "all" in prune else prune or []
    for name in [*removed, *([promote] if promote else [])]:
        if name not in notes:
            hint = did_you_mean(name, notes)
            raise UserError(f"no run {name!r} under runs/{hint}; runs: {', '.join(notes) or 'none'}")
    diff = _promote(root, *notes[promote]) if promote else ""
    busy = []
    for name in removed:
        if workspace.prune(root, notes[name][0]):
            print(f"removed {name}", file=sys.stderr if as_json else sys.stdout)
        else:
            busy.append(name)
    if busy:
        verb, pronoun = ("is", "it") if len(busy) == 1 else ("are", "them")
        raise UserError(f"{', '.join(busy)} {verb} running: cancel {pronoun} first")
    if as_json:
        rows = [] if prune or promote else [row.to_row() for row in _sorted_runs(sort)]
        here = [] if prune or promote else [{"folder": name, **note} for name, (_, note) in notes.items()]
        print_document({"runs": rows[:limit], "worktrees": here, "removed": removed, "diff": diff})
    elif not prune and not promote:
        _print_runs(notes, sort, limit)


def _print_runs(notes: Mapping[str, tuple[Path, Mapping[str, Any]]], sort: str, limit: int) -> None:
    """The runs that MLflow has, then the worktrees of which it has none."""
    rows = _sorted_runs(sort)
    title = (
        f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}; dev and test (sft, rl) are pass@1, sampled counts tokens"
    )
    print_table(title, [row.cells() for row in rows[:limit]], left=("run, what is different, folder", "health"))
    if len(rows) > limit:
        print_lines([f"and {len(rows) - limit} more: --limit {len(rows)}"])
    for name in notes.keys() - {row.folder for row in rows}:
        _, note = notes[name]
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(note["made"]))))
        print_lines([f"also under runs/: {name} of {created}, {', '.join(map(str, note['overrides']))}"])


def _sorted_runs(sort: str) -> list[RunRow]:
    for variable, url in answering().items():
        os.environ.setdefault(variable, url)
    rows = list(list_runs(connect()))
    if sort in SORTS:
        rows.sort(key=lambda row: row.figures.get(SORTS[sort], -1.0), reverse=True)
    return rows


def _promote(root: Path, folder: Path, note: Mapping[str, Any]) -> str:
    """Write the parameters that a run changed into the checkout's params/, and print how to commit them.

    Returns what was changed.

    Raises:
        UserError: params/ has changed since the run started, so that other results would follow.
    """
    from mathrl.sweeps.promote import edited, promote  # optuna

    os.chdir(root)
    diff_command = ["git", "diff", "--name-only", str(note["commit"]), "HEAD", "--", "params"]
    changed = subprocess.run(diff_command, capture_output=True, text=True, check=True).stdout.split()
    changed += [name for name in workspace.uncommitted(root) if name.startswith("params/")]
    if changed:
        raise UserError(
            f"{', '.join(changed)} changed after {folder.name} started, so params/ with its overrides would give other "
            f"results: start it again with {' '.join(map(str, note['overrides']))}"
        )
    before, after = (load_params(at / "params").model_dump(mode="json", by_alias=True) for at in (root, folder))
    diff = promote(differences(before, after))
    recipe = Path("params") / "recipes" / f"{note['run']}.yaml"
    verb = "recipe" if note["run"] in (files := recipe_files()) else "run"
    if (folder / recipe).exists() and (overrides := read_yaml(folder / recipe).get("overrides")):
        text = files[note["run"]].read_text(encoding="utf-8")
        write_text(recipe, edited(text, {"overrides": overrides}, str(recipe)))
        diff += f"{recipe}: overrides {', '.join(overrides)}\n"
    print(diff.rstrip())
    print(f"to restore its results from DVC's cache: mathrl {verb} {note['run']}")
    print(f'to keep it: git add params dvc.lock && git commit -m "As in {folder.name}"')
    return diff
