"""What RUN means in `mathrl health` and `mathrl report`: a folder, a stage, a step, an MLflow run.

The files of a stage (reports/rl, pipelines/recipes/NAME/STEP/report) have the numbers; its record, found by the
digest of what it made, has the parameters, the commit and the inputs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl
from mathrl.core.hashing import digest_path
from mathrl.core.paths import RECIPES
from mathrl.core.records import METRICS, RunRecord, maker_of, read_record, records_folder
from mathrl.params import load_params
from mathrl.params.health import Health
from mathrl.params.train import Rl

ACCEPTED = (
    "a folder with metrics.jsonl (reports/rl, a record), a stage (rl, sft), a recipe's step (NAME/STEP), a "
    "run under runs/, or the name or id of an MLflow run"
)


@dataclass(frozen=True)
class Trained:
    """The metrics of one training stage, with its record if that is on this machine."""

    name: str
    folder: Path
    rows: list[dict[str, Any]]
    record: RunRecord | None

    def settings(self) -> tuple[Health, Rl | None]:
        """Its own parameters, or those of params/ where it has no record here; Rl is None for fine-tuning."""
        sections = self.record.params if self.record else {}
        if not sections:
            params = load_params()
            return params.health, params.rl if any("reward/overall" in row for row in self.rows) else None
        health = Health.model_validate(sections["health"]) if "health" in sections else load_params().health
        return health, Rl.model_validate(sections["rl"]) if "rl" in sections else None


def trained(text: str) -> Trained:
    """The training run that `text` names.

    Raises:
        UserError: nothing of that name has metrics.
    """
    for folder in folders(text):
        if (folder / METRICS).is_file():
            return of_folder(folder)
    record = mlflow_record(text)
    if record is None:
        raise UserError(f"{text}: no metrics there; give {ACCEPTED}")
    return of_folder(record.folder)


def folders(text: str) -> list[Path]:
    """Where the metrics of `text` may be, the most literal place first."""
    here = Path(text)
    if here.is_file():
        return [here.parent]
    return [
        here,
        here / "report",
        here / "reports" / "rl",
        Path("reports") / text,
        RECIPES / text / "report",
        Path("runs") / text / "reports" / "rl",
        records_folder() / text,
    ]


def of_folder(folder: Path) -> Trained:
    """Raises UserError: no metrics in it."""
    rows = list(read_jsonl(folder / METRICS))
    record = read_record((folder / METRICS).resolve().parent)  # a sweep's runs link to those of their records
    if record is not None:
        return Trained(record.name, folder, rows, record)
    # The output that DVC knows: reports/rl, or a recipe's step, of which report/ is a part.
    made = folder.parent if folder.name == "report" else folder
    inside = made.absolute()
    root = next((each for each in inside.parents if (each / "params" / "run.yaml").is_file()), Path.cwd())
    path = str(inside.relative_to(root)) if inside.is_relative_to(root) else str(made)
    record = maker_of(path, digest_path(made))
    return Trained(record.name if record else path.removeprefix("reports/"), folder, rows, record)


def mlflow_record(text: str) -> RunRecord | None:
    """The record of the MLflow run of this name or id, where it is on this machine; the newest of a name.

    Raises:
        UserError: MLflow has such a run, but it was made on another machine.
    """
    from mathrl.tracking.client import connect  # MLflow: 1.4 s
    from mathrl.tracking.lineage import find_run

    run = find_run(connect(), text)
    if run is None:
        return None
    name = str(run.data.tags.get("mathrl.record", ""))
    if not name:
        raise UserError(f"{text}: a run that holds others; give one of its stages")
    record = read_record(records_folder() / name)
    if record is None or not record.metrics_file.is_file():
        raise UserError(f"{text}: MLflow has it, but its record {name} is not on this machine")
    return record
