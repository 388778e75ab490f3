"""The metric sink: where trainers put numbers. metrics.jsonl is the truth; trackers mirror it."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mathrl.core.files import read_jsonl, remove_leftovers, write_text

TIMING_PREFIXES = ("time/", "throughput/", "system/")


class MetricSink(Protocol):
    """Takes one dict of numbers a step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...


class JsonlSink:
    """Appends {"step": 3, "at": <unix seconds>, "reward/accuracy": 0.5, …} a line to a file.

    With `resume_after=n`, lines past step n (logged after the last checkpoint, then lost to a kill) are
    dropped first, so that a resumed run's file holds each step once. That file is written aside: a kill or a
    full disk meanwhile leaves the one before.
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept: list[dict[str, Any]] = []
        if resume_after is not None and self.path.exists():
            kept = [row for row in _whole_rows(self.path) if row["step"] <= resume_after]
        remove_leftovers(self.path)
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {"step": step, "at": time.time(), **{name: float(value) for name, value in metrics.items()}}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """What the file holds."""
        return _whole_rows(self.path)


def _whole_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break  # a line cut short by a kill
    return rows


def without_timings(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file less wall-clock figures: equal for equal runs, so fit for a DVC output."""
    return [
        {k: v for k, v in row.items() if k != "at" and not k.startswith(TIMING_PREFIXES)} for row in read_jsonl(path)
    ]
