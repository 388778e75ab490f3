"""The run that RUN names: a folder, a stage, a recipe's step, an MLflow run; its metrics, and its kept rollouts.

The files of a stage (reports/rl, pipelines/recipes/NAME/STEP/report) have the metrics; its record, found by the
digest of its output, has the parameters, the commit and the inputs.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import read_json, read_jsonl
from mathrl.core.hashing import digest_path
from mathrl.core.metrics import complete_rows
from mathrl.core.paths import PRESET, RECIPES, WORKTREE_NOTE
from mathrl.core.records import METRICS, ROLLOUTS, RunRecord, maker_of, read_record, records_folder
from mathrl.health.watch import blind_rules, examine, judging_rules
from mathrl.params import Params
from mathrl.params.load import FOLDER, S, validate_section, without_removed
from mathrl.params.messages import did_you_mean
from mathrl.params.schema import READS, TARGETS
from mathrl.params.train import Rl
from mathrl.params.training import Health
from mathrl.rollout.rollout_files import WHOLE, rollout_files
from mathrl.tracking.client import connect
from mathrl.tracking.lineage import find_run

ACCEPTED = (
    "a folder with metrics.jsonl (reports/rl, a record), a stage (rl, sft), a recipe's step (NAME/STEP), a "
    "run under runs/, or the name or id of an MLflow run"
)


@dataclass(frozen=True)
class TrainingMetrics:
    """The metrics of one training stage, with its record if that is on this machine."""

    name: str
    folder: Path
    rows: list[dict[str, Any]]
    record: RunRecord | None

    @property
    def blind(self) -> tuple[str, ...]:
        """The rules that cannot judge, where another trainer's run has no accuracy."""
        return blind_rules(self.rows) if self.record is not None and self.record.imported_from else ()

    def settings(self) -> tuple[Health, Rl | None]:
        """Its own parameters, or those of params/ if it has no record here; Rl is None for fine-tuning.

        Without a record it is RL that logs a reward or a KL.
        """
        if self.record is None or not self.record.params:
            params, names = project_params(), {name for row in self.rows for name in row}
            is_rl = "kl" in names or any(name.startswith("reward/") for name in names)
            return params.health, params.rl if is_rl else None
        return self._section("health", Health) or project_params().health, self._section("rl", Rl)

    def health(self) -> tuple[dict[str, Any], int]:
        """The document of `mathrl runs health`, and how many rules apply.

        The colour is unknown where no rule has its metrics.
        """
        settings = self.settings()
        judging, applying = judging_rules(self.rows, *settings, self.blind)
        report = {"run": self.name, **examine(self.rows, *settings, self.blind).report()}
        report |= {"not_judged": sorted({*applying} - {*judging})} | ({} if judging else {"colour": "unknown"})
        return report, len(applying)

    def _section(self, name: str, kind: type[S]) -> S | None:
        """A section of its record; None if the record has no such section."""
        assert self.record is not None
        if name not in self.record.params:
            return None
        where = self.record.folder.name
        return validate_section(kind, without_removed(name, self.record.params[name], where), f"{where}: {name}")


def project_params() -> Params:
    """The project's parameters; mathrl's own, with any data, in a folder without a project."""
    return load_params() if FOLDER.is_dir() else load_params(overrides=["data=gsm8k"])


def find_training_run(text: str) -> TrainingMetrics:
    """The training run that `text` names.

    Raises:
        UserError: no run of that name has metrics.
    """
    for folder in folders(text):
        if (folder / METRICS).is_file():
            return read_training_run(folder)
    record = mlflow_record(text)
    if record is None:
        raise UserError(f"{text}: no metrics there{near_run(text)}; give {ACCEPTED}")
    return read_training_run(record.folder)


def near_run(text: str) -> str:
    """As `did_you_mean`: the stage, recipe's step or run under runs/ whose name is nearest; of a stage its command."""
    if text in READS:
        return f" (it has not run here: mathrl run {text})" if text in TARGETS else " (it has not run here)"
    steps = (f"{step.parent.name}/{step.name}" for step in RECIPES.glob("*/*/") if step.is_dir())
    names = [folder.name for parent in ("reports", "runs") for folder in Path(parent).glob("*/")]
    return did_you_mean(text, [*READS, *names, *steps])


def folders(text: str) -> list[Path]:
    """The folders that may hold the metrics of `text`, the most literal one first."""
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


def read_training_run(folder: Path) -> TrainingMetrics:
    """The run whose metrics are in the folder.

    Raises:
        UserError: it has no metrics.
    """
    record = read_record((folder / METRICS).resolve().parent)  # a run of a sweep has a link to its record's file
    if record is not None and record.metrics_file.is_file():  # a full disk or a kill may have cut its last row
        return TrainingMetrics(record.name, folder, complete_rows(record.metrics_file), record)
    rows = list(read_jsonl(folder / METRICS))
    # DVC's output: reports/rl, or a recipe's step, of which report/ is a part.
    output = (folder.parent if folder.name == "report" else folder).absolute()
    root = next((parent for parent in output.parents if (parent / "params").is_dir()), Path.cwd())
    path = str(output.relative_to(root)) if output.is_relative_to(root) else str(output)
    record = maker_of(path, digest_path(output))
    return TrainingMetrics(record.name if record else path.removeprefix("reports/"), folder, rows, record)


def mlflow_record(text: str) -> RunRecord | None:
    """The record of the MLflow run of this name or id, the newest of a name; None if MLflow has no such run.

    Raises:
        UserError: MLflow has the run, but its record is on another machine.
    """
    run = find_run(connect(), text)
    if run is None:
        return None
    name = str(run.data.tags.get("mathrl.record", ""))
    if not name:
        raise UserError(f"{text}: a run that groups other runs; give one of its stages")
    record = read_record(records_folder() / name)
    if record is None or not record.metrics_file.is_file():
        raise UserError(f"{text}: MLflow has it, but its record {name} is not on this machine")
    return record


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
