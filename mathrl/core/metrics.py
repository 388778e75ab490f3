"""The metrics of trainers: metrics.jsonl is the record, which trackers mirror."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mathrl.core.files import read_jsonl, remove_leftovers, write_text

TIMING_PREFIXES = ("time/", "throughput/", "system/", "tool/seconds")


class JsonlSink:
    """Appends one line per step to a file: {"step": 3, "at": <Unix seconds>, "reward/accuracy": 0.5, …}.

    With `resume_after=n`, lines past step n (logged after the last checkpoint, then lost to a kill) are
    dropped first, so that a resumed run's file holds each step once. The file is written aside: a kill or a
    full disk meanwhile leaves the old file.
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept: list[dict[str, Any]] = []
        if resume_after is not None and self.path.exists():
            kept = [row for row in complete_rows(self.path) if row["step"] <= resume_after]
        remove_leftovers(self.path)
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.append({"step": step, "at": time.time(), **{name: float(value) for name, value in metrics.items()}})

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row as it is; it has a "step"."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """All rows in the file."""
        return complete_rows(self.path)


def complete_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file that were written whole; none where there is no file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break  # a kill cut the line short
    return rows


def without_timings(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file without wall-clock figures, so that equal runs give equal DVC outputs."""
    return [
        {k: v for k, v in row.items() if k != "at" and not k.startswith(TIMING_PREFIXES)} for row in read_jsonl(path)
    ]
