"""`mathrl runs`: list or remove the worktrees under runs/, or adopt the parameters of one in the checkout."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.paths import main_checkout
from mathrl.params import load_params
from mathrl.params.load import read_yaml
from tasks import workspace


def runs(
    prune: Annotated[list[str] | None, typer.Option(help="Run to remove, by name; all removes every run.")] = None,
    promote: Annotated[str | None, typer.Option(help="Run whose parameters are written into params/, by name.")] = None,
) -> None:
    """List the worktrees under runs/, remove some, or write the parameters of one into params/ for a commit."""
    root = main_checkout()
    notes = {folder.name: (folder, note) for folder, note in workspace.runs(root)}
    removed = list(notes) if prune and "all" in prune else prune or []
    for name in [*removed, *([promote] if promote else [])]:
        if name not in notes:
            raise UserError(f"no run {name!r} under runs/; runs: {', '.join(notes) or 'none'}")
    if promote:
        _promote(root, *notes[promote])
    busy = []
    for name in removed:
        if workspace.prune(root, notes[name][0]):
            print(f"removed {name}")
        else:
            busy.append(name)
    if busy:
        verb, pronoun = ("is", "it") if len(busy) == 1 else ("are", "them")
        raise UserError(f"{', '.join(busy)} {verb} running: cancel {pronoun} first")
    if not prune and not promote:
        for name, (_, note) in notes.items():
            created = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(note["made"]))))
            print(f"{created}  {name}  {', '.join(map(str, note['overrides']))}")


def _promote(root: Path, folder: Path, note: Mapping[str, Any]) -> None:
    """Write the parameters that a run changed into the checkout's params/, and print how to commit them.

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
    verb = "recipe" if recipe.exists() else "run"
    if recipe.exists() and (overrides := read_yaml(folder / recipe).get("overrides")):
        write_text(recipe, edited(recipe.read_text(encoding="utf-8"), {"overrides": overrides}, str(recipe)))
        diff += f"{recipe}: overrides {', '.join(overrides)}\n"
    print(diff.rstrip())
    print(f"to restore its results from DVC's cache: mathrl {verb} {note['run']}")
    print(f'to keep it: git add params dvc.lock && git commit -m "As in {folder.name}"')


def differences(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values of `after` that differ from `before`, by dotted key; a mapping whose keys changed is one value.

    >>> differences({"rl": {"lr": 1, "steps": 2}}, {"rl": {"lr": 3, "steps": 2}})
    {'rl.lr': 3}
    """
    changed: dict[str, Any] = {}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and old.keys() == value.keys():
            changed |= differences(old, value, f"{above}{key}.")
        elif old != value:
            changed[f"{above}{key}"] = value
    return changed
