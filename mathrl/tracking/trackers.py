"""W&B and TensorBoard, fed from the same records as MLflow by the same mirror: no training process knows of them.

A tracker beside MLflow implements `Tracker`; what it has of a run is kept in the record (`TrackerState`), so that
nothing is sent twice and what it missed is sent by the next mirror. What it refuses is reported once and left out.
"""

import json
import math
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mathrl.core.errors import UserError, without_logins
from mathrl.core.mirroring import chosen_trackers
from mathrl.core.records import MirrorState, RunRecord, TrackerState
from mathrl.tracking.upload import TITLES
from mathrl.tracking.wandb_tensorboard import TensorboardTracker, WandbTracker

RETRY_SECONDS = 60.0  # until a tracker that did not answer is tried again
REPORTS = (".html", ".md", ".png")
UNREPORTED = ("trial",)  # stages whose record holds other records, and no curves


class Tracker(Protocol):
    """One run in a tracker. An OSError says that it does not answer; with any other error it refuses what it got."""

    def open(self, record: RunRecord) -> int | None:
        """Open the record's run with its parameters, or go on with it; returns the last step that it has."""

    def metrics(self, step: int, at: float, values: Mapping[str, Any]) -> None:
        """Take the metrics of a step at a time (Unix seconds); an earlier step again is done again after a resume."""

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take examples; a row's keys are the columns."""

    def report(self, file: Path) -> None:
        """Take a page, a text or a picture of the run's report."""

    def links(self, links: Mapping[str, str]) -> None:
        """Take addresses by their names."""

    def flush(self) -> None:
        """Keep what was sent, and show it."""

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        """End the session; `running` where the run goes on without it.

        A TimeoutError says that the upload goes on; after any other error the session is lost.
        """


# Their packages are imported by `Tracker.open`, which takes a second.
KINDS: dict[str, Callable[[TrackerState], Tracker]] = {"wandb": WandbTracker, "tensorboard": TensorboardTracker}


@dataclass
class MetricsTail:
    """Reads a record's metrics as they grow: `started` is the run's whose file was read, up to `bytes_read`.

    A resumed run writes its file again, a while after it started: `inode` tells the old file from the new one.
    """

    started: float = 0.0
    inode: int = 0
    bytes_read: int = 0

    def rows(self, record: RunRecord) -> tuple[list[dict[str, Any]], int]:
        """The rows after those that were read, and the byte after them."""
        inode = record.metrics_file.stat().st_ino if record.metrics_file.exists() else 0
        if (self.started, self.inode) != (record.started, inode):
            self.started, self.inode, self.bytes_read = record.started, inode, 0
        return new_rows(record.metrics_file, self.bytes_read)


def new_rows(file: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """The complete rows of a metrics file from byte `start` on, and the byte after them.

    A file that is shorter was written again from its start. The last line may be incomplete yet.
    """
    if not file.exists():
        return [], 0
    with file.open("rb") as stream:
        stream.seek(start if start <= file.stat().st_size else 0)
        start = stream.tell()
        lines, newline, _ = stream.read().rpartition(b"\n")
    return [json.loads(line) for line in lines.splitlines()], start + len(lines) + len(newline)


def has_all(record: RunRecord, state: MirrorState | TrackerState) -> bool:
    """Whether a tracker has all of a run; not where a run that was taken for killed has ended after all."""
    mistaken = state.status == "killed" and record.status != "running"
    return state.complete == record.started and not mistaken


class Feed:
    """A record on its way into a tracker; `report` takes what the tracker refuses.

    `ending` is the `complete` and `status` of a session that was asked to end and has not uploaded everything yet.
    """

    def __init__(self, name: str, folder: Path, report: Callable[[str], None]) -> None:
        self.state, self.tail, self.report = TrackerState.read(folder, name), MetricsTail(), report
        self.tracker: Tracker | None = None
        self.ending: tuple[float, str] | None = None
        self.refused: set[str] = set()
        if not self.state.run:
            self.state.run = uuid.uuid4().hex[:12]
            self.state.write()

    def bring_up_to_date(self, record: RunRecord, status: str, links: Mapping[str, str]) -> None:
        """Send what the tracker lacks; at the end of the run tables, report and summary."""
        state, before = self.state, replace(self.state)
        if self.ending is not None:
            self._end(_summary(record))
            return
        if self.tracker is None:
            tracker, self.tail = KINDS[state.tracker](state), MetricsTail()
            state.step = tracker.open(record)
            self.tracker = tracker
        tracker = self.tracker
        if dict(links) != state.links:
            self._offer("links", partial(tracker.links, links))
            state.links = dict(links)
        rows, end = self.tail.rows(record)
        for row in rows:
            step, at = int(row["step"]), float(row["at"])
            if state.step is None or step > state.step or at > state.at:
                self._offer_metrics(tracker, step, at, {k: v for k, v in row.items() if k not in ("step", "at")})
                state.step, state.at = step, at
        tracker.flush()
        self.tail.bytes_read = end
        if state != before:
            state.write()
        if status != "running":
            self._offer_report(tracker, record)
            self.ending = record.started, status
            self._end(_summary(record))

    def _end(self, summary: Mapping[str, Any]) -> None:
        assert self.tracker is not None and self.ending is not None
        try:
            self.tracker.close(self.ending[1], summary)
        except TimeoutError:
            raise
        except Exception:  # a tracker's own errors, of any kind
            self.tracker = self.ending = None
            raise
        self.state.complete, self.state.status = self.ending
        self.state.write()
        self.tracker = self.ending = None

    def leave(self) -> None:
        """End the session of a run that goes on, or that other mirrors follow."""
        if self.tracker is not None:
            self.tracker.close("running", {})
            self.tracker = None

    def _offer_report(self, tracker: Tracker, record: RunRecord) -> None:
        examples = record.artifacts / "examples.json"
        if examples.exists() and (rows := json.loads(examples.read_text(encoding="utf-8"))):
            self._offer("examples", partial(tracker.table, "examples", rows))
        for file in sorted(record.artifacts.glob("*")):
            if file.suffix in REPORTS:
                self._offer(file.name, partial(tracker.report, file))

    def _offer_metrics(self, tracker: Tracker, step: int, at: float, values: Mapping[str, Any]) -> None:
        """All at once; where the tracker refuses them, one by one."""
        try:
            tracker.metrics(step, at, values)
        except OSError:
            raise
        except Exception:  # a tracker's own errors, of any kind
            for name, value in values.items():
                self._offer(name, partial(tracker.metrics, step, at, {name: value}))

    def _offer(self, what: str, send: Callable[[], None]) -> None:
        try:
            send()
        except OSError:
            raise
        except Exception as error:  # a tracker's own errors, of any kind
            if what not in self.refused:
                self.refused.add(what)
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                self.report(f"refuses {what!r}, all else is sent: {reason}")


class Trackers:
    """The chosen trackers, fed with the records that a mirror follows.

    With `earlier` also the runs that ended, complete in MLflow, before a tracker was chosen. One that does not answer
    is reported, and tried again after a minute; it holds up neither the others nor MLflow.
    """

    def __init__(self, *, earlier: bool = False) -> None:
        self.earlier = earlier
        self.feeds: dict[tuple[str, Path], Feed] = {}
        self.retry_at: dict[str | tuple[str, Path], float] = {}
        self.failing: set[tuple[str, Path]] = set()
        self.reported: set[tuple[str, ...]] = set()
        self.names: tuple[str, ...] = ()
        try:
            self.names = chosen_trackers()
        except UserError as error:
            self._report("", "", str(error))

    def incomplete(self, record: RunRecord) -> list[str]:
        """The trackers that lack something of the record."""
        if record.stage in UNREPORTED or record.imported_from:
            return []
        states = {name: TrackerState.read(record.folder, name) for name in self.names}
        before = not self.earlier and bool(self.names) and record.mirror_state().complete is not None
        return [n for n, state in states.items() if not has_all(record, state) and (state.run or not before)]

    def open_feeds(self, record: RunRecord) -> list[Feed]:
        """The feeds of the trackers that lack something, noted in the record before MLflow has all of it."""
        feeds = []
        for name in self.incomplete(record):
            key, report = (name, record.folder), partial(self._report, name, str(record.folder))
            self.feeds[key] = self.feeds.get(key) or Feed(name, record.folder, report)
            feeds.append(self.feeds[key])
        return feeds

    def follow(self, feeds: Sequence[Feed], record: RunRecord, status: str, links: Mapping[str, str]) -> None:
        """Bring every tracker up to date, whatever another raises."""
        for feed in feeds:
            name, key = feed.state.tracker, (feed.state.tracker, record.folder)
            if time.monotonic() < max(self.retry_at.get(held, -math.inf) for held in (name, key)):
                self.failing.add(key)
                continue
            try:
                feed.bring_up_to_date(record, status, links)
                self.failing.discard(key)
            except Exception as error:  # a tracker must never stop a run, whatever it raises
                self.failing.add(key)
                if feed.ending is None:
                    del self.feeds[key]  # it is opened again from what it has
                # A file of this run that cannot be read, or a tracker that does not answer any run.
                self.retry_at[key if isinstance(error, UserError) else name] = time.monotonic() + RETRY_SECONDS
                reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                self._report(name, "", f"{reason}; the run goes on, `mathrl runs sync` sends the rest later")

    def leave(self, folder: Path | None = None) -> None:
        """End the sessions of a record, or of all."""
        for key in [key for key in self.feeds if folder in (None, key[1])]:
            try:
                self.feeds.pop(key).leave()
            except Exception as error:  # as above
                self._report(key[0], "", f"{type(error).__name__}: {error}")

    def _report(self, name: str, record: str, message: str) -> None:
        if (name, record, message) not in self.reported:
            self.reported.add((name, record, message))
            text = " ".join(without_logins(f"{TITLES.get(name, '')} {message}".strip()).split())
            print(f"tracking: {text}", file=sys.stderr)


def _summary(record: RunRecord) -> dict[str, Any]:
    """The figures and words that a run ends with: {"final/rl/pass_at_1": 0.41, "health": "green"}."""
    words = {"health": record.health["colour"] if record.health else "", "outcome": record.outcome}
    figures = {f"final/{name}": value for name, value in record.summary.items()}
    return figures | {name: text for name, text in words.items() if text}
