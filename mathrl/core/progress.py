"""A progress bar with the time left, also written where the Prefect task can read it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from mathrl.core.environment import Variable, rank


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
