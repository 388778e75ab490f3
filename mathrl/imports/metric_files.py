"""The metrics of a run of another trainer, in any form that it leaves: rows of a step and numbers under its own names.

    checkpoint-60/trainer_state.json       Hugging Face's Trainer, TRL: its log_history
    metrics.jsonl, NAME.jsonl, NAME.csv    a row per step, or {"step": 3, "data": {…}} (verl's file logger)
    NAME.log, NAME.txt, NAME.out           verl's console: "step:3 - actor/entropy:0.4 - …"
    events.out.tfevents.*                  TensorBoard, read by tensorboard
    run-*.wandb                            Weights & Biases, its records as wandb declares them

What is cut short at the end is not read: the trainer is about to finish it.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.mirroring import import_optional
from mathrl.tracking.wandb_tensorboard import wandb_records

Steps = dict[int, dict[str, float]]  # step → metrics under the trainer's names
STEP_NAMES = (
    "step", "_step", "global_step", "train/global_step", "training/global_step", "trainer/global_step", "Step",
    "iteration", "progress/batch",
)  # fmt: skip
LOG_SUFFIXES = (".log", ".out", ".txt")
CONSOLE = re.compile(r"(?:^|\s)step:(\d+) - (.+:.+)$")
PAIR = re.compile(r"(\S+?):(?:np\.float\d+\()?(-?(?:\d[\d.e+-]*|inf|nan))\)?$")


def read_metrics(file: Path) -> Steps:
    """The metrics of a file by step; empty where it holds none.

    Raises:
        UserError: the file is damaged, or the package that reads it is not installed.
    """
    if file.name == "trainer_state.json":
        return _by_step(_rows_of_state(file))
    if ".tfevents." in file.name:
        return _events(file)
    if file.suffix == ".wandb":
        return _wandb(file)
    if file.suffix == ".csv":
        return _by_step(_csv(file))
    if file.suffix == ".jsonl":
        return _by_step(complete_lines(file))
    if file.suffix == ".json":
        rows = read_json(file)
        return _by_step(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else {}
    if file.suffix in LOG_SUFFIXES:
        return _by_step(_console(file))
    return {}


def complete_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; a last line that is cut short is left for later.

    Raises:
        UserError: a line before the last is not a JSON object.
    """
    waiting = ""
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            if waiting:
                raise UserError(f"{file}, line {number - 1}: not a JSON object: {waiting.strip()[:40]!r}")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                waiting = line
                continue
            if not isinstance(row, dict):
                waiting = line
                continue
            yield row
    if waiting.endswith("\n"):
        raise UserError(f"{file}: its last line is not a JSON object: {waiting.strip()[:40]!r}")


def step_of(row: Mapping[str, Any]) -> int | None:
    """The step of a row, under one of the names that trainers have for it."""
    for name in STEP_NAMES:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return int(value)
    return None


def flatten(values: Mapping[str, Any], prefix: str = "", separator: str = ".") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted names.

    >>> dict(flatten({"actor": {"optim": {"lr": 0.1}}, "n": 8}))
    {'actor.optim.lr': 0.1, 'n': 8}
    """
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}{separator}", separator)
        else:
            yield f"{prefix}{name}", value


def _by_step(rows: Iterable[Mapping[str, Any]]) -> Steps:
    """Rows of one step are one: several parts of a trainer may log for themselves."""
    steps: Steps = {}
    for row in rows:
        step = step_of(row)
        if step is None:
            continue
        inner = row.get("data")
        numbers = _numbers(inner if isinstance(inner, Mapping) else row)
        if numbers:
            steps.setdefault(step, {}).update(numbers)
    return steps


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in flatten(row, separator="/")
        if name not in STEP_NAMES and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _rows_of_state(file: Path) -> list[dict[str, Any]]:
    state = read_json(file)
    rows = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{file}: no log_history in it, which Hugging Face's Trainer writes")
    # The summary at the end of a training is no step of it.
    return [row for row in rows if isinstance(row, dict) and "train_runtime" not in row]


def _csv(file: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(1 << 30)  # of the process; by default a response of 128 KiB is too long
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        # The last value of a line that is still written may be cut short: 1.5 of 1.5e-05.
        lines = (line if line.endswith(("\n", "\r")) else line.rpartition(",")[0] for line in stream)
        try:
            for row in csv.DictReader(lines):
                yield {name: _number(text) for name, text in row.items() if name and isinstance(text, str)}
        except csv.Error as error:
            raise UserError(f"{file}: cannot be read as csv ({error})") from None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _console(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        for line in stream:
            if not line.endswith("\n") or "step:" not in line or (match := CONSOLE.search(line.rstrip())) is None:
                continue
            pairs = (PAIR.match(part.strip()) for part in match[2].split(" - "))
            yield {"step": int(match[1]), **{pair[1]: float(pair[2]) for pair in pairs if pair}}


def _events(file: Path) -> Steps:
    """TensorBoard's scalars; a record that is not yet whole ends the file."""
    module = import_optional("tensorboard.backend.event_processing.event_file_loader", f"{file}: reading it")
    loader = module.EventFileLoader(str(file))
    steps: Steps = {}
    try:
        for event in loader.Load():
            if event.session_log.status == event.session_log.START:  # a run that was resumed does these steps again
                steps = {step: row for step, row in steps.items() if step < event.step}
            for value in event.summary.value:
                number = _scalar(value)
                if number is not None:
                    steps.setdefault(int(event.step), {})[value.tag] = number
    except Exception as error:
        if type(error).__name__ != "DataLossError":  # tensorboard's own, or TensorFlow's where that is installed
            raise
        raise UserError(f"{file}: a damaged TensorBoard file ({error})") from None
    return steps


def _scalar(value: Any) -> float | None:
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if value.HasField("tensor") and len(value.tensor.float_val) == 1:
        return float(value.tensor.float_val[0])
    return None


def _wandb(file: Path) -> Steps:
    return _by_step(_wandb_rows(file))


def _wandb_rows(file: Path) -> Iterator[dict[str, Any]]:
    for record in wandb_records(file):
        if record.WhichOneof("record_type") != "history":
            continue
        row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        # W&B counts the calls of its log; Hugging Face's Trainer, which logs every few steps, has a step of its own.
        own = step_of({name: value for name, value in row.items() if name != "_step"})
        yield {**row, "step": record.history.step.num if own is None else own}
