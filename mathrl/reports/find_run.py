"""What RUN means in `mathrl health` and `mathrl report`: a folder, a stage, a step, an MLflow run.

The files of a stage (reports/rl, pipelines/recipes/NAME/STEP/report) have the numbers; its record, found by the
digest of what it made, has the parameters, the commit and the inputs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, read_jsonl
from mathrl.core.hashing import digest_path
from mathrl.core.paths import RECIPES, home
from mathrl.params import load_params
from mathrl.params.health import Health
from mathrl.params.train import Rl

METRICS = "metrics.jsonl"
ACCEPTED = (
    "a folder with metrics.jsonl (reports/rl, a record), a stage (rl, sft), a recipe's step (NAME/STEP), a "
    "run under runs/, or the name or id of an MLflow run"
)
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Trained:
    """The metrics of one training stage and what is known of it; `facts` are its record's, if it is here."""

    name: str
    folder: Path
    rows: list[dict[str, Any]]
    facts: Facts

    def settings(self) -> tuple[Health, Rl | None]:
        """Its own parameters, or those of params/ where it has no record here; Rl is None for fine-tuning."""
        own = self.facts.get("params", {})
        health = Health.model_validate(own["health"]) if "health" in own else None
        if not own:
            every = load_params()
            rl = every.rl if any("reward/overall" in row for row in self.rows) else None
            return every.health, rl
        return health or load_params().health, Rl.model_validate(own["rl"]) if "rl" in own else None


def records() -> Iterator[tuple[Path, Facts]]:
    """Every stage's record of this machine, oldest first."""
    files = sorted((home() / "records").glob("*/run.json"), key=lambda file: file.stat().st_mtime_ns)
    for file in files:
        yield file.parent, read_json(file)


def maker_of(path: str, digest: str) -> Facts:
    """The facts of the stage that made `path` with these bytes, the latest one; empty if it ran elsewhere."""
    found: Facts = {}
    for _, facts in records():
        if facts.get("outputs", {}).get(path) == digest:
            found = facts
    return found


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
    return of_folder(record)


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
        home() / "records" / text,
    ]


def of_folder(folder: Path) -> Trained:
    """Raises UserError: no metrics in it."""
    rows = list(read_jsonl(folder / METRICS))
    record = folder / "run.json"
    if record.is_file():
        facts = read_json(record)
        return Trained(str(facts.get("name", folder.name)), folder, rows, facts)
    # The output that DVC knows: reports/rl, or a recipe's step, of which report/ is a part.
    made = folder.parent if folder.name == "report" else folder
    inside = made.absolute()
    root = next((each for each in inside.parents if (each / "params" / "run.yaml").is_file()), Path.cwd())
    path = str(inside.relative_to(root)) if inside.is_relative_to(root) else str(made)
    facts = maker_of(path, digest_path(made))
    return Trained(str(facts.get("name", path.removeprefix("reports/"))), folder, rows, facts)


def mlflow_record(text: str) -> Path | None:
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
    if not (home() / "records" / name / METRICS).is_file():
        raise UserError(f"{text}: MLflow has it, but its record {name} is not on this machine")
    return home() / "records" / name
