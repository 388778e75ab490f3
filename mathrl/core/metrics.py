"""What a stage shows while it runs: its metrics, whose record is metrics.jsonl, which trackers mirror; and a progress
bar with the time left, also written where the Prefect task can read it.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mathrl.core.environment import Variable, rank
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


def pause(age: float) -> float:
    """Seconds until something that has run for `age` seconds is worth another look: a second in the first minute,
    a quarter of a minute after a quarter of an hour.

    >>> pause(0), pause(300), pause(7200)
    (1.0, 5.0, 15.0)
    """
    return min(15.0, max(1.0, age / 60))


class Progress:
    """A bar on stderr and, if $MATHRL_PROGRESS names a file, the same figures in it (replaced atomically)."""

    def __init__(self, title: str, total: int, done: int = 0, unit: str = "") -> None:
        self.title, self.total = title, total
        quiet = rank() != 0
        # On a terminal the bar redraws itself; in a log it prints a line every few seconds.
        interval = 0.2 if sys.stderr.isatty() else 5.0
        self.bar = tqdm(
            total=total, initial=done, desc=title, unit=unit, disable=quiet, mininterval=interval, dynamic_ncols=True
        )
        target = Variable.PROGRESS.get()
        self.file = Path(target) if target and not quiet else None

    def advance(self, count: int = 1, **figures: float) -> None:
        """Advance by `count`; `figures` are shown beside the bar (accuracy=0.61, length=22)."""
        if figures:
            self.bar.set_postfix({name: f"{value:.3g}" for name, value in figures.items()}, refresh=False)
        self.bar.update(count)
        if self.file:
            rate = self.bar.format_dict["rate"]
            left = (self.total - self.bar.n) / rate if rate else None
            aside = self.file.with_name(self.file.name + ".partial")
            state = {"title": self.title, "done": self.bar.n, "total": self.total, "seconds_left": left}
            record = Variable.RECORD.get()
            aside.write_text(json.dumps(state | {"figures": figures, "record": record}))
            aside.replace(self.file)

    def close(self) -> None:
        self.bar.close()


@contextmanager
def progress(title: str, total: int, done: int = 0, unit: str = "") -> Iterator[Progress]:
    bar = Progress(title, total, done, unit)
    try:
        yield bar
    finally:
        bar.close()
