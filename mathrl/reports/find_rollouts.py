"""The kept rollouts that RUN names in `mathrl runs rollouts` and `mathrl runs audit`."""

import re
import shlex
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.paths import PRESET, WORKTREE_NOTE
from mathrl.core.records import ROLLOUTS, records_folder
from mathrl.reports.find_run import folders, mlflow_record, near_run
from mathrl.rollout.rollout_files import WHOLE, rollout_files


def kept_files(text: str) -> list[Path]:
    """The parquet files of kept rollouts in what `text` names without MLflow; empty if there are none.

    A run that trains, or was stopped, has a file per step in its record.
    """
    if Path(text).suffix == ".parquet" and Path(text).is_file():
        return [Path(text)]
    for folder in folders(text):
        for place in (folder, folder / ROLLOUTS):
            if files := rollout_files(place):
                return files
    return []


def find_rollouts(text: str) -> tuple[str, dict[str, Path]]:
    """The name in the page's address, and where its rollouts are if that is not a record.

    Raises:
        UserError: the run kept no rollouts.
    """
    files, here = kept_files(text), any(folder.is_dir() for folder in folders(text))
    if not files and not here:  # what is here has the name before a run of MLflow
        record = mlflow_record(text)
        files = rollout_files(record.rollouts) if record else []
    if not files:
        if here:
            raise UserError(
                f"{text}: the run kept no rollouts; run it again with some kept: "
                f"mathrl run rl{_settings(text)} --set rl.keep_rollouts.which=all; then mathrl runs rollouts"
            )
        raise UserError(
            f"{text}: no such run{near_run(text)}; give rl, a recipe's step (NAME/STEP), a record, a parquet file or "
            "an MLflow run"
        )
    folder = files[0].parent
    if folder.name == ROLLOUTS and folder.parent.parent == records_folder():
        return folder.parent.name, {}
    name = re.sub(r"[^\w.-]+", "-", folder.parent.name if folder.name == "report" else folder.name)
    return name, {name: files[0] if files[0].name != WHOLE and len(files) == 1 else folder}


def _settings(text: str) -> str:
    """The options of the run `text` under runs/, as a person types them."""
    note = Path("runs") / text / WORKTREE_NOTE
    asked: list[str] = read_json(note)["overrides"] if note.is_file() else []
    options = [("--preset", each[len(PRESET) :]) if each.startswith(PRESET) else ("--set", each) for each in asked]
    return "".join(f" {option} {shlex.quote(value)}" for option, value in options)
