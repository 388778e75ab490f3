"""The records of runs, written, read and found here alone.

A stage leaves one folder per run, from which MLflow is filled and reports and lineage are made:

    home()/records/rl-77aa…-1/run.json        the fields of `RunRecord`
                              metrics.jsonl   a row per step (core.metrics)
                              artifacts/      pictures and texts
                              rollouts/       kept rollouts (rollout.rollout_files)
                              events.jsonl    of an asynchronous RL run (trainers.event_log)
                              mirror.json     the fields of `MirrorState`
                              wandb.json      the fields of `TrackerState`; also tensorboard.json

How a run is called in a list: after what it runs and what is different about it.
"""

import glob
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any, Literal, Self, TypedDict

from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.core.paths import home, present_folder

RUN, METRICS, MIRROR, ROLLOUTS, EVENTS = "run.json", "metrics.jsonl", "mirror.json", "rollouts", "events.jsonl"
IMPORTED = "imported-"  # begins the name of a record of another trainer's run
MOST_RUNS = 10_000  # of the same parameters and inputs
Status = Literal["running", "finished", "failed", "stopped"]


class Dataset(TypedDict):
    """A named input of a run: {"path": "data/curated/test.jsonl", "digest": "7e57…"}."""

    path: str
    digest: str


class Evaluated(TypedDict):
    """Whose figures a summary holds as LABEL/…: {"models": {"rl": "models/rl"}, "dataset": "test"}."""

    models: dict[str, str]
    dataset: str


@dataclass
class RunRecord:
    """One run of a stage.

    Example:
        RunRecord(folder=Path(".mathrl/records/rl-77aa…-1"), stage="rl", name="rl", key="77aa…",
                  status="finished", started=1.78e9, ended=1.79e9, params={"rl": {"steps": 60, …}, …},
                  inputs={"models/sft": "9be1…"}, outputs={"models/rl": "40d2…"}, …)

    `name` is the stage's, of a recipe's step recipe/step; `key` is the digest of the stage, its parameters and
    inputs; `pipeline` that of `pipeline_params`, which a stage's MLflow run has in common with those beside it;
    `pid_start` tells the process from a later one with its number (core.guard.process_start), None in older records;
    `changed` has the pipeline's parameters that differ from those of the commit with the preset, {"rl.steps": 200};
    `composition` has the groups and presets that its parameters are made of, {"data": "gsm8k", "presets": ["long"]};
    `code` is what decided the results beside parameters and inputs, {"mathrl": "0.1.0", "value": "3", "own": ""}
    (core.code_values);
    `preset` and `groups` were chosen for this run, ["data=gsm8k"];
    `resolved` has what the stage chose where a parameter leaves it open, such as {"rollout.engine": "vllm"};
    `inputs` and `outputs` map paths to content digests; `started` and `ended` are Unix seconds; `trial` is the
    name of the trial's record, `sweep` the study; `health` is the report of `mathrl.health.watch`, None before
    there is one; `outcome` says in words how a trial ended.
    """

    folder: Path
    stage: str = ""
    name: str = ""
    key: str = ""
    status: Status = "running"
    started: float = 0.0
    ended: float | None = None
    pid: int = 0
    pid_start: int | None = None
    host: str = ""
    workspace: str = ""
    git: dict[str, Any] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    pipeline: str = ""
    pipeline_params: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    preset: str = ""
    groups: list[str] = field(default_factory=list)
    composition: dict[str, Any] = field(default_factory=dict)
    prefect_flow_run: str = ""
    sweep: str = ""
    trial: str = ""
    summary: dict[str, float] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    measured: Evaluated | None = None
    health: Mapping[str, Any] | None = None
    outcome: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or self.stage

    @property
    def metrics_file(self) -> Path:
        return self.folder / METRICS

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def events(self) -> Path:
        return self.folder / EVENTS

    @property
    def rollouts(self) -> Path:
        return self.folder / ROLLOUTS

    @property
    def keeps_rollouts(self) -> bool:
        """Whether the run's parameters ask for kept rollouts."""
        return bool(self.params.get("rl", {}).get("keep_rollouts", {}).get("which", "none") != "none")

    @property
    def imported_from(self) -> str:
        """The folder or MLflow run of another trainer that was imported; "" of an own run."""
        return str(self.resolved.get("imported from", ""))

    @property
    def step(self) -> str:
        """The stage's name, or a recipe's step without the recipe."""
        return self.name.rpartition("/")[2]

    @property
    def commit(self) -> str:
        return str(self.git.get("commit", ""))

    @property
    def dirty(self) -> bool:
        """Whether the commit's files were changed."""
        return bool(self.git.get("dirty", False))

    @property
    def is_here(self) -> bool:
        """Whether the run is this machine's, whose processes can be seen."""
        return self.host in ("", socket.gethostname())

    def update(self, **changes: Any) -> None:
        """Set fields and write the record."""
        for name, value in changes.items():
            assert name in self.__dataclass_fields__, name
            setattr(self, name, value)
        self.name = self.name or self.stage
        _write(self, RUN)

    def mirror_state(self) -> "MirrorState":
        """What MLflow has of the run."""
        return MirrorState.read(self.folder)

    def last_change(self) -> float:
        """When the run or its mirror last wrote something, in Unix seconds; 0 if the record is gone."""
        return max((_modified_at(self.folder / name) or 0 for name in (RUN, METRICS, MIRROR)), default=0) / 1e9


@dataclass
class MirrorState:
    """What MLflow has of a run, so that nothing is sent twice.

    `parent` is the MLflow run that holds this one, `step` the last step whose metrics were sent; `complete` is
    the `started` of the run of which all was sent, with the `status` that it was sent with.
    """

    folder: Path
    run_id: str = ""
    parent: str = ""
    experiment: str = ""
    step: int | None = None
    health: Mapping[str, Any] | None = None
    complete: float | None = None
    status: str = ""

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(folder, **_known_fields(cls, _read(folder / MIRROR) or {}))

    def write(self) -> None:
        _write(self, MIRROR)


@dataclass
class TrackerState:
    """What a tracker beside MLflow has of a run: {"tracker": "wandb", "run": "5b1ce0a1f3d2", "step": 12, …}.

    `run` names the run there, `address` is its page or its folder in home(), `links` what it was told of other pages;
    `step` and `at` are those of the last row of metrics that was sent,
    `size` the bytes of its file with all that was sent; `complete` and `status` as those of `MirrorState`.
    """

    folder: Path
    tracker: str
    run: str = ""
    address: str = ""
    links: dict[str, str] = field(default_factory=dict)
    step: int | None = None
    at: float = 0.0
    size: int = 0
    complete: float | None = None
    status: str = ""

    @classmethod
    def read(cls, folder: Path, tracker: str) -> Self:
        return cls(folder, **{"tracker": tracker, **_known_fields(cls, _read(folder / f"{tracker}.json") or {})})

    def write(self) -> None:
        _write(self, f"{self.tracker}.json")


def records_folder() -> Path:
    return home() / "records"


def read_record(folder: Path) -> RunRecord | None:
    """The record in a folder, whatever older version wrote it; None where none is, or where it was cut short."""
    row = _read(folder / RUN)
    if row is None:
        return None
    record = RunRecord(folder, **_known_fields(RunRecord, row))
    record.workspace = present_folder(record.workspace)
    return record


def written_times(prefix: str = "") -> dict[Path, int]:
    """The folders of records whose names begin with `prefix`, and when each run.json was written (ns).

    Oldest first. A record that is removed meanwhile is left out.
    """
    files = records_folder().glob(f"{glob.escape(prefix)}*/{RUN}")
    times = {file.parent: _modified_at(file) for file in files}
    return dict(sorted(((folder, time) for folder, time in times.items() if time), key=lambda item: item[1]))


def all_records(prefix: str = "", *, newest_first: bool = False) -> Iterator[RunRecord]:
    """Every run's record on this machine, in the order in which they were last written."""
    folders = list(written_times(prefix))
    for folder in reversed(folders) if newest_first else folders:
        record = read_record(folder)
        if record is not None:
            yield record


def newest_record(matches: Callable[[RunRecord], bool], prefix: str = "") -> RunRecord | None:
    """The record that was written last of those for which `matches` holds."""
    return next(filter(matches, all_records(prefix, newest_first=True)), None)


def maker_of(path: str, digest: str) -> RunRecord | None:
    """The latest run that made `path` with these bytes; None if it ran elsewhere."""
    return newest_record(lambda record: record.outputs.get(path) == digest)


def open_record(label: str, key: str) -> RunRecord:
    """The record of an unfinished run of this label and key, so that a resumed run stays one run, or a new one."""
    for number in range(1, MOST_RUNS):
        folder = records_folder() / f"{label}-{key}-{number}"
        record = read_record(folder)
        if record is None or record.status != "finished":
            (folder / "artifacts").mkdir(parents=True, exist_ok=True)
            return RunRecord(folder)
    raise UserError(f"{records_folder()}: {MOST_RUNS} runs of {label}-{key}; remove old ones")


def _write(value: RunRecord | MirrorState | TrackerState, file: str) -> None:
    row = {item.name: getattr(value, item.name) for item in fields(value) if item.name != "folder"}
    write_json(value.folder / file, {name: entry for name, entry in row.items() if entry is not None})
    # A file system's own times are those of a clock that ticks: files of one tick would have no order.
    written = time.time_ns()
    with suppress(OSError):  # removed by a person, or on a file system that sets its own times
        os.utime(value.folder / file, ns=(written, written))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def _known_fields(kind: type[RunRecord | MirrorState | TrackerState], row: dict[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)} - {"folder"}
    return {name: value for name, value in row.items() if name in names and value is not None}


def _modified_at(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


MOST, LONGEST = 3, 28  # parameters in a name, and the characters of each
# What people change most, in the order in which forms, names and lists have it.
MAIN = (
    "rl.optimizer.lr",
    "rl.steps",
    "rl.group_size",
    "rl.kl.coef",
    "rl.loss.low",
    "rl.loss.high",
    "sft.optimizer.lr",
    "sft.steps",
    "run.seed",
)
SEED, PLAIN = "run.seed", ("rl.", "run.")  # sections that a name leaves out


def run_name(title: str, preset: str = "", changed: Mapping[str, Any] | None = None, commit: str = "") -> str:
    """The title with the preset and the changed parameters; without any of them with the commit.

    >>> run_name("rl", "", {"rl.optimizer.lr": 0.002, "rl.steps": 8})
    'rl lr=0.002 steps=8'
    >>> run_name("pipeline", "gsm8k", {"sft.optimizer.lr": 1e-05, "run.seed": 1}), run_name("rl", commit="3f2a1bc77")
    ('pipeline gsm8k sft.lr=1e-05 seed 1', 'rl 3f2a1bc')
    """
    words = [preset] if preset else []
    settings = change_words({key: value for key, value in (changed or {}).items() if key != SEED})
    words += [word[:LONGEST] for word in settings[:MOST]]
    words += [f"and {len(settings) - MOST} more"] if len(settings) > MOST else []
    words += [f"seed {changed[SEED]}"] if changed and SEED in changed else []
    return " ".join([title, *(words or [commit[:7]])]).strip()


def record_name(record: RunRecord, title: str) -> str:
    """The name of the record's run: the title with what was chosen and changed."""
    return run_name(title, chosen_words(record.groups, record.preset), record.changed, record.commit)


def chosen_words(groups: Iterable[str], preset: str = "") -> str:
    """Groups and preset in a few words.

    >>> chosen_words(["data=gsm8k", "model=Qwen/Qwen2.5-0.5B"], "long")
    'data=gsm8k model=Qwen2.5-0.5B long'
    """
    words = (f"{kind}={PurePath(name).name}" for kind, _, name in (group.partition("=") for group in groups))
    return " ".join([*words, *filter(None, [preset])])


def change_words(changed: Mapping[str, Any]) -> list[str]:
    """Each changed parameter in a word, the model and those of `MAIN` first.

    >>> change_words({"rl.kl.coef": 0.01, "rl.optimizer.lr": 0.002, "rl.loss": {"type": "gspo", "low": 0.2}})
    ['lr=0.002', 'kl.coef=0.01', 'loss=gspo']
    >>> change_words({"rl.optimizer.lr": 0.002, "model.base": {"type": "pretrained", "path": "models/Qwen2.5-0.5B"}})
    ['model.base=Qwen2.5-0.5B', 'lr=0.002']
    """
    return [f"{_short(key)}={_text(value)}" for key, value in sorted(changed.items(), key=_place)]


def _place(item: tuple[str, Any]) -> tuple[int, str]:
    """The model first, as in a form, then `MAIN`, then the others by name."""
    key = item[0]
    if key.startswith("model."):
        return -1, key
    return (MAIN.index(key) if key in MAIN else len(MAIN)), key


def _short(key: str) -> str:
    key = key.replace(".optimizer.lr", ".lr")
    return next((key.removeprefix(section) for section in PLAIN if key.startswith(section)), key)


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and "path" in value:
        return PurePath(str(value["path"])).name
    if isinstance(value, Mapping) and "type" in value:
        number = next((f" {value[name]:g}" for name in ("lr", "coef") if name in value), "")
        return f"{value['type']}{number}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
