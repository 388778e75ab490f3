"""`mathrl runs`: the worktrees under runs/, listed, removed, or one of them taken over into the checkout."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.paths import main_checkout
from mathrl.params import load_params
from mathrl.params.load import read_yaml
from tasks.workspace import prune as remove
from tasks.workspace import runs, uncommitted


def list_runs(prune: Sequence[str], promote: str | None) -> None:
    """Print every run with what it was started with; or remove some; or write one's parameters into params/.

    Raises:
        UserError: no run of a name; or one to be removed goes on; or params/ cannot take the parameters over.
    """
    root = main_checkout()
    known = {folder.name: (folder, note) for folder, note in runs(root)}
    for name in [*(known if "all" in prune else prune), *([promote] if promote else [])]:
        if name not in known:
            raise UserError(f"no run {name!r} under runs/; there are: {', '.join(known) or 'none'}")
    if promote:
        folder, note = known[promote]
        _promote(root, folder, note)
    busy = []
    for name in known if "all" in prune else prune:
        if remove(root, known[name][0]):
            print(f"removed {name}")
        else:
            busy.append(name)
    if busy:
        one = len(busy) == 1
        said = f"{', '.join(busy)} {'is' if one else 'are'} running: cancel {'it' if one else 'them'} first"
        raise UserError(said)
    if not prune and not promote:
        for name, (_, note) in known.items():
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(note["made"]))))
            print(f"{made}  {name}  {', '.join(map(str, note['overrides']))}")


def _promote(root: Path, folder: Path, note: Mapping[str, Any]) -> None:
    """Write what a run changed into the checkout's params/ and say how to commit it.

    Raises:
        UserError: params/ has changed since the run was started, so that its results would not be those.
    """
    from mathrl.sweeps.promote import edited, promote  # ruamel.yaml's round trip

    os.chdir(root)
    started = str(note["commit"])
    later = ["git", "diff", "--name-only", started, "HEAD", "--", "params"]
    since = subprocess.run(later, capture_output=True, text=True, check=True).stdout.split()
    since += [name for name in uncommitted(root) if name.startswith("params/")]
    if since:
        raise UserError(
            f"{folder.name} was started before {', '.join(since)} changed, so its results are not those of "
            f"params/ with its overrides: start it again with {' '.join(map(str, note['overrides']))}"
        )
    before, after = (load_params(each / "params").model_dump(mode="json", by_alias=True) for each in (root, folder))
    diff = promote(differences(before, after))
    recipe = Path("params") / "recipes" / f"{note['run']}.yaml"
    verb = "recipe" if recipe.exists() else "run"
    if recipe.exists() and (given := read_yaml(folder / recipe).get("overrides")):
        write_text(recipe, edited(recipe.read_text(encoding="utf-8"), {"overrides": given}, str(recipe)))
        diff += f"{recipe}: overrides {', '.join(given)}\n"
    print(diff.rstrip())
    print(f"its results come from DVC's cache: mathrl {verb} {note['run']}")
    print(f'to keep it: git add params dvc.lock && git commit -m "As in {folder.name}"')


def differences(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """What is other in `after`, by dotted key; a mapping with other keys as a whole.

    >>> differences({"rl": {"lr": 1, "steps": 2}}, {"rl": {"lr": 3, "steps": 2}})
    {'rl.lr': 3}
    """
    found: dict[str, Any] = {}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and old.keys() == value.keys():
            found |= differences(old, value, f"{above}{key}.")
        elif old != value:
            found[f"{above}{key}"] = value
    return found
