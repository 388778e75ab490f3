"""A run of another trainer in its folder: which trainer, its metrics, its rollouts, its configuration and checkpoints.

The folder is only read. What each file holds is found out from the file, not from its place, since users move files.
"""

import json
import os
import pickle
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from mathrl.core.errors import UserError
from mathrl.imports.metric_files import LOG_SUFFIXES, Steps, flatten, read_metrics
from mathrl.imports.rollout_shapes import first_row, holds_rollouts
from mathrl.params.other_trainers import OWN, TRAINERS, metric_names, our_metric, parameter_names
from mathrl.tracking.wandb_tensorboard import wandb_records

# What a person types, and the trainer's name in the table of names. The last ones are forms of any trainer.
SYSTEMS = {"verl": "verl", "trl": "TRL", "prime-rl": "prime-rl", "tinker": "tinker", "openrlhf": "OpenRLHF",
           "nemo-rl": "NeMo-RL", "rlinf": "RLinf"}  # fmt: skip
FORMS = ("wandb", "tensorboard", "csv", "mlflow")
MADE_FROM = {"model.base.path": "start", "curate.sources": "data"}
DEEPEST, MOST_FILES = 8, 200_000
LARGE = (".safetensors", ".pt", ".pth", ".bin", ".distcp")
CHECKPOINT = re.compile(r"(?:checkpoint-|global_step_|step_)(\d+)")
REWARD_MEAN = re.compile(r"(?:train/)?rewards/(.+)/mean")  # of one of TRL's reward functions
CONFIGS = ("config.yaml", "config.json", "training_args.bin", "args.json")
SHOWN_CONFLICTS = 0.5  # share of common steps with other values: then two files are of two runs


@dataclass
class ForeignRun:
    """What a folder holds.

    Example:
        ForeignRun(Path("outputs/run7"), "verl", steps={1: {"actor/entropy": 0.9}}, rollouts=[Path("…/1.jsonl"), …],
                   validation=[], config={"actor_rollout_ref.rollout.n": 8, …}, checkpoints={20: "…/global_step_20"},
                   sources=["logs/run7.jsonl"])
    """

    folder: Path
    system: str
    steps: Steps = field(default_factory=dict)
    rollouts: list[Path] = field(default_factory=list)
    validation: list[Path] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    checkpoints: dict[int, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    started: float = 0.0  # Unix seconds; 0: as its files were first written

    def found_lines(self) -> list[str]:
        """What was found, a line each."""
        names = {name for row in self.steps.values() for name in row}
        lines = []
        if self.steps:
            counts = f"{len(self.steps)} steps of {len(names)} metrics"
            lines.append(f"metrics: {counts} in {_few(self.sources)}")
        for what, files in (("rollouts", self.rollouts), ("validation", self.validation)):
            if files:
                lines.append(
                    f"{what}: {_count(len(files), 'file')}, {_few([str(f.relative_to(self.top)) for f in files])}"
                )
        if self.config:
            lines.append(f"configuration: {_count(len(self.config), 'parameter')}")
        lines += [f"{MADE_FROM[ours]}: {_few(names)}" for ours, names in self.made_from.items()]
        if self.checkpoints:
            lines.append(
                f"checkpoints: {_count(len(self.checkpoints), 'folder')}, the last of step {max(self.checkpoints)}"
            )
        return lines

    def missing_lines(self) -> list[str]:
        """What was not found, and how the trainer is made to write it."""
        there = {"metrics": self.steps, "rollouts": self.rollouts, "configuration": self.config,
                 "checkpoints": self.checkpoints}  # fmt: skip
        hints = HINTS.get(self.system, {})
        return [f"{name}: {hints[name]}" if name in hints else name for name, found in there.items() if not found]

    @property
    def made_from(self) -> dict[str, list[str]]:
        """What the configuration names as the start and as the data, by our parameter.

        Example: {"model.base.path": ["Qwen/Qwen2.5-0.5B"], "curate.sources": ["/data/train.parquet"]}
        """
        table = {row.name: row.ours for row in parameter_names() if row.trainer == self.system}
        named: dict[str, list[str]] = {}
        for name, value in self.config.items():
            if (ours := table.get(name)) in MADE_FROM:
                values = value if isinstance(value, list | tuple) else [value]
                named.setdefault(ours, []).extend(text for text in values if isinstance(text, str) and text)
        return named

    @property
    def reward_weights(self) -> list[float]:
        """The weights of TRL's reward functions in their order, which its rollouts do not have; empty: 1 each.

        Without `reward_weights` it is 1 for each function that has a metric: what they log beside is no reward.
        """
        if self.system != "TRL":
            return []
        metrics = {found[1] for row in self.steps.values() for name in row if (found := REWARD_MEAN.fullmatch(name))}
        weights = self.config.get("reward_weights")
        return list(weights) if isinstance(weights, list | tuple) else [1.0] * len(metrics)

    @property
    def top(self) -> Path:
        return self.folder if self.folder.is_dir() else self.folder.parent


HINTS = {
    "TRL": {
        "rollouts": "log_completions=True keeps them in completions/",
        "metrics": "trainer_state.json comes with a checkpoint (save_steps)",
    },
    "verl": {
        "rollouts": "trainer.rollout_data_dir=DIR keeps them",
        "metrics": "trainer.logger=[console,file] and VERL_FILE_LOGGER_ROOT=DIR keep them",
        "configuration": "Hydra writes .hydra/config.yaml into its run's folder",
    },
    "prime-rl": {"rollouts": "the file monitor keeps them in rollouts/"},
    "tinker": {"rollouts": "summaries have texts where the environment keeps a trace, as ProblemEnv does"},
    "NeMo-RL": {
        "metrics": "logger.tensorboard_enabled=true keeps them",
        "rollouts": "they are in train_data_step*.jsonl",
    },
    "OpenRLHF": {"metrics": "--logger.tensorboard_dir DIR keeps them", "rollouts": "OpenRLHF keeps none"},
}


def read_run(folder: Path, system: str | None = None) -> ForeignRun:
    """The run in a folder or a file; `system` is one of `SYSTEMS` or `FORMS`, None to find out.

    Raises:
        UserError: there is no run in it, there are several, or a file is damaged.
    """
    if system == "mlflow":
        return _read_mlflow(str(folder))
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    run = ForeignRun(folder.absolute(), "")
    metric_files: list[Path] = []
    for file in _files(run.folder):
        _place(file, run, metric_files)
    run.steps = _merge(metric_files, run)
    _split_validation(run)
    if not run.steps and not run.rollouts:
        raise UserError(
            f"{folder}: no run of another trainer: neither metrics (trainer_state.json, *.jsonl or *.csv with a column "
            "of steps, a console log of verl, TensorBoard or W&B files) nor rollouts"
        )
    run.system = SYSTEMS[system] if system in SYSTEMS else _recognise(run) or (system or "")
    return run


def _read_mlflow(text: str) -> ForeignRun:
    """A run of an MLflow server, by its name or id ($MLFLOW_TRACKING_URI).

    Raises:
        UserError: the server does not answer, or it has no such run.
    """
    from mathrl.tracking.client import connect, read_history  # a second, which folders do without
    from mathrl.tracking.lineage import find_run

    client = connect()
    found = find_run(client, text)
    if found is None:
        raise UserError(f"{text}: MLflow has no run of this name or id; MLFLOW_TRACKING_URI names its server")
    steps, config = read_history(client, found)
    name = str(found.info.run_name or found.info.run_id)
    run = ForeignRun(Path(name), "", steps, config={key: _value(value) for key, value in config.items()})
    run.sources, run.started = [f"MLflow run {found.info.run_id}"], (found.info.start_time or 0) / 1000
    run.system = _recognise(run)
    return run


def _value(text: str) -> Any:
    """A parameter that MLflow keeps as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _files(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
        return
    count = 0
    for place, folders, files in os.walk(top):
        here = Path(place)
        deep = len(here.relative_to(top).parts)
        folders[:] = sorted(
            name for name in folders if (not name.startswith(".") or name == ".hydra") and deep < DEEPEST
        )
        for name in sorted(files):
            count += 1
            if count > MOST_FILES:
                raise UserError(f"{top}: more than {MOST_FILES:,} files; give the folder of one run")
            yield here / name


def _place(file: Path, run: ForeignRun, metric_files: list[Path]) -> None:
    """Note what the file is."""
    found = CHECKPOINT.fullmatch(file.parent.name)
    if found and (file.suffix in LARGE or file.name in ("config.json", "trainer_state.json")):
        run.checkpoints[int(found[1])] = str(file.parent)
    if file.name in CONFIGS or file.suffix == ".toml":
        if not (file.name == "config.json" and found):  # a model's
            run.config |= _read_config(file)
    elif (
        file.name == "trainer_state.json"
        or ".tfevents." in file.name
        or file.suffix in (".wandb", ".csv", *LOG_SUFFIXES)
    ):
        metric_files.append(file)
        if file.suffix == ".wandb":
            run.config |= _wandb_config(file)
    elif file.suffix in (".parquet", ".jsonl") and (row := first_row(file)):
        if holds_rollouts(row):
            run.rollouts.append(file)
        elif file.suffix == ".jsonl":
            metric_files.append(file)
    elif file.suffix == ".json" and "history" in file.name:
        metric_files.append(file)


def _merge(files: list[Path], run: ForeignRun) -> Steps:
    """The metrics of all files; of Hugging Face's states the last alone, since each repeats what came before.

    Raises:
        UserError: two files have other values for most of their common steps: they are of two runs.
    """
    states = [file for file in files if file.name == "trainer_state.json"]
    files = [file for file in files if file not in states]
    if len({state.parent.parent for state in states if CHECKPOINT.fullmatch(state.parent.name)}) > 1:
        raise UserError(f"{run.folder}: several runs: {_few([str(state) for state in states])}; give the folder of one")
    if states:
        files.append(max(states, key=lambda file: (_step_of_state(file), file.stat().st_mtime)))
    merged: Steps = {}
    owner: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        steps = read_metrics(file)
        if not steps:
            continue
        shared = [step for step in steps if step in merged]
        other = [step for step in shared if _conflicting_metrics(steps[step], merged[step])]
        if shared and len(other) > max(1, SHOWN_CONFLICTS * len(shared)) and not _resumes(steps, merged):
            name = _conflicting_metrics(steps[other[0]], merged[other[0]])[0]
            both = f"{owner[name].relative_to(run.top)} and {file.relative_to(run.top)}"
            raise UserError(
                f"{run.folder}: {both} are of two runs: {name} differs at {len(other)} of {len(shared)} common steps; "
                "give the folder or file of one"
            )
        for step, row in steps.items():
            merged.setdefault(step, {}).update(row)
            owner.update(dict.fromkeys(row, file))
        run.sources.append(str(file.relative_to(run.top)))
    return dict(sorted(merged.items()))


def _step_of_state(file: Path) -> int:
    found = CHECKPOINT.fullmatch(file.parent.name)
    return int(found[1]) if found else -1


def _resumes(steps: Steps, before: Steps) -> bool:
    """Whether a file goes on from a step within what is there, and has every step from there on: a resumed run's."""
    start, end = min(steps), min(max(steps), max(before))
    again = {step for step in before if start <= step <= end}
    return start > min(before) and again == {step for step in steps if step <= end}


def _conflicting_metrics(first: Mapping[str, float], second: Mapping[str, float]) -> list[str]:
    """The metrics of which two rows of a step have other values; a log has fewer digits."""
    common = [name for name in first if name in second and not name.startswith(("time", "perf", "timing"))]
    return [name for name in common if abs(first[name] - second[name]) > 1e-3 * max(1e-3, abs(first[name]))]


def _split_validation(run: ForeignRun) -> None:
    """verl writes rollouts and validation in one shape: by the folder's or the file's name."""

    def is_validation(file: Path) -> bool:
        names = [*file.relative_to(run.top).parts]
        return any(re.match(r"(?:val|eval|test)(?:$|[_\W]|idation|uation)", name) for name in names)

    run.validation = [file for file in run.rollouts if is_validation(file)]
    run.rollouts = [file for file in run.rollouts if not is_validation(file)]
    # prime-rl keeps what it samples and, again, what it trains on.
    if any("effective" in file.parts for file in run.rollouts):
        run.rollouts = [file for file in run.rollouts if "effective" not in file.parts]


def _recognise(run: ForeignRun) -> str:
    """The trainer whose names the metrics have most, or mathrl itself; with none, the one whose rollouts look so."""
    names = {name for row in run.steps.values() for name in row}
    counts = {trainer: sum(bool(our_metric(trainer, name)[0]) for name in names) for trainer in TRAINERS}
    counts[OWN] = len(names & {row.ours for row in metric_names()})
    if any(counts.values()):
        return max(counts, key=lambda trainer: counts[trainer])  # the first of equals
    row = first_row(run.rollouts[0]) if run.rollouts else {}
    shapes = {"verl": {"input", "output", "score"}, "TRL": {"prompt", "completion", "advantage"},
              "NeMo-RL": {"content", "rewards"}, "prime-rl": {"traces"}}  # fmt: skip
    return next((trainer for trainer, shape in shapes.items() if shape <= set(row)), "")


def _read_config(file: Path) -> dict[str, Any]:
    """The parameters of a configuration file under dotted names.

    Raises:
        UserError: the file is damaged.
    """
    try:
        if file.suffix == ".toml":
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        elif file.suffix == ".yaml":
            values = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
        elif file.suffix == ".bin":
            values = _training_arguments(file)
        else:
            values = json.loads(file.read_text(encoding="utf-8"))
        return {name: value for name, value in flatten(values) if _is_plain(value)} if isinstance(values, dict) else {}
    except (ValueError, YAMLError, pickle.UnpicklingError, zipfile.BadZipFile, EOFError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read as a configuration ({str(error).splitlines()[0]})") from None


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, str | int | float | bool)
        or (isinstance(value, list | tuple) and all(map(_is_plain, value)))
    )


class _Inert:
    """Stands for any class or function that a pickle names: nothing of it is imported or called."""

    def __init__(self, *arguments: Any, **_: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Inert,), {})

    def persistent_load(self, pid: Any) -> Any:
        return None


def _training_arguments(file: Path) -> dict[str, Any]:
    """Hugging Face's training_args.bin, a pickle, read without importing what it names."""
    with zipfile.ZipFile(file) as packed:
        name = next((name for name in packed.namelist() if name.endswith("data.pkl")), "")
        if not name:
            raise ValueError("no data.pkl in it")
        with packed.open(name) as stream:
            try:
                values = vars(_InertUnpickler(stream).load())
            except (AttributeError, IndexError, KeyError, TypeError, RecursionError) as error:  # it is damaged
                raise ValueError(f"data.pkl is damaged: {error}") from None
    return {
        key: value.arguments[0] if isinstance(value, _Inert) and len(getattr(value, "arguments", ())) == 1 else value
        for key, value in values.items()
        if not key.startswith("_")
    }


def _wandb_config(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for record in wandb_records(file):
        kind = record.WhichOneof("record_type")
        items = record.run.config.update if kind == "run" else record.config.update if kind == "config" else ()
        for item in items:
            name = ".".join(item.nested_key) or item.key
            if not name.startswith("_wandb"):
                values |= dict(flatten({name: json.loads(item.value_json)}))
    return {name: value for name, value in values.items() if _is_plain(value)}


def _few(names: list[str], most: int = 3) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
