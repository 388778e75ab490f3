"""One process that follows the stages' records and uploads them to MLflow and to the trackers that the project names
(`tracking.trackers`): `python -m mathrl.tracking.mirror`.

It runs until its standard input is closed, then uploads the rest and ends. Records are the truth; what was
uploaded is kept in each record's `MirrorState`, so that nothing is sent twice and what a server missed while it
was down is sent by the next mirror. A record is locked by the mirror that follows it. Where machines share the
folder, a running stage is left to the mirrors of its own machine, which alone see whether its process lives.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mathrl.core.errors import UserError, without_logins
from mathrl.core.guard import at_end_of_input, is_alive
from mathrl.core.metrics import pause
from mathrl.core.mirroring import mlflow_page
from mathrl.core.paths import rollouts_page
from mathrl.core.records import RunRecord, read_record, written_times
from mathrl.tracking.client import connect, experiment
from mathrl.tracking.trackers import MetricsTail, Trackers, has_all
from mathrl.tracking.upload import Upload, question, tracker_addresses

EVERY_SECONDS = 1.0
FINISH_SECONDS = 30.0  # for another mirror to upload what it has of stages that have ended
AWAY_SECONDS = 24 * 3600.0  # another machine's running record counts as killed when it has not changed for this long


def main() -> None:
    """Follow until end of input. A server that does not answer is reported once and tried again."""
    ended = threading.Event()
    at_end_of_input(ended.set)
    mirror = Mirror()
    while not ended.wait(EVERY_SECONDS):
        mirror.sweep(patient=True)
    mirror.finish()


@dataclass
class Followed:
    """What a mirror knows of one record.

    `written` is the time of run.json (ns) at the last look, and `due` when the record is looked at although
    run.json has not changed; `tail` tells how much of a run's metrics was uploaded, `linked` where MLflow says that
    other trackers have it; `monitor` logs the machine's load while the stage runs.
    """

    folder: Path
    lock: FileLock | None = None
    written: int = 0
    due: float = 0.0
    complete: bool = False
    failing: bool = False
    linked: dict[str, str] = field(default_factory=dict)
    tail: MetricsTail = field(default_factory=MetricsTail)
    monitor: Any = None

    def acquire(self) -> bool:
        """Whether this mirror has the record, and no other."""
        if self.lock is None:
            lock = FileLock(self.folder / ".lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:
                return False
            self.lock = lock
        return True

    def leave(self) -> None:
        """To other mirrors, or because it is complete."""
        self.stop_monitor()
        self.failing = False
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def stop_monitor(self) -> None:
        if self.monitor is not None:
            self.monitor.finish()
            self.monitor = None


class Mirror:
    """Uploads records; keeps a record's lock for as long as it runs. `earlier`: see `Trackers`."""

    def __init__(self, *, earlier: bool = False) -> None:
        self.trackers = Trackers(earlier=earlier)
        self.followed: dict[Path, Followed] = {}
        self.upload: Upload | None = None
        self.reported = False  # an error, since all went well

    def sweep(self, *, patient: bool = False) -> int:
        """Bring every record up to date; returns how many are now complete in MLflow.

        A patient sweep leaves out runs that have gone on for long and were looked at a moment ago.
        """
        answers = True
        for followed, record in self._open_records(patient):
            if _dead(record):
                record = read_record(followed.folder) or record  # it may have ended since it was read
            status = "killed" if _dead(record) else record.status
            feeds = self.trackers.open_feeds(record)
            if answers and not has_all(record, record.mirror_state()):
                answers = self._upload(followed, record, status)
            self.trackers.follow(feeds, record, status, _links(record))
            if answers:
                self._link_trackers(followed, record, status)
            if status != "running":
                followed.complete = self._has_all(record)
                if followed.complete:
                    self._leave(followed)
        self.reported = any(followed.failing for followed in self.followed.values())
        return sum(followed.complete for followed in self.followed.values())

    def _upload(self, followed: Followed, record: RunRecord, status: str) -> bool:
        """Bring the record up to date in MLflow; returns whether a server is there."""
        if self.upload is None and not self._try(followed, self._connect):
            return False
        if not self._try(followed, partial(self._bring_up_to_date, followed, record, status)):
            self.upload = None
        return True

    def _link_trackers(self, followed: Followed, record: RunRecord, status: str) -> None:
        addresses, state = tracker_addresses(record), record.mirror_state()
        if addresses == followed.linked or not state.run_id or not (self.upload or self._try(followed, self._connect)):
            return
        assert self.upload is not None
        if self._try(followed, partial(self.upload.link_trackers, state, record, status)):
            followed.linked = addresses

    def _connect(self) -> None:
        self.upload = Upload(connect())

    def _try(self, followed: Followed, upload: Callable[[], None]) -> bool:
        try:
            upload()
            followed.failing = False
        except Exception as error:  # neither must MLflow stop a run, nor one record keep the others back
            followed.failing = True
            self._report(error)
        return not followed.failing

    def _has_all(self, record: RunRecord) -> bool:
        return has_all(record, record.mirror_state()) and not self.trackers.incomplete(record)

    def _leave(self, followed: Followed) -> None:
        self.trackers.leave(followed.folder)
        followed.leave()

    def finish(self) -> None:
        """Upload the rest. What another mirror has of stages that have ended, such as this flow's, is waited for.

        Not where the server takes nothing: then the other mirror does not come further either.
        """
        deadline = time.monotonic() + FINISH_SECONDS
        self.sweep()
        while not self.reported and self._is_another_at_work() and time.monotonic() < deadline:
            time.sleep(EVERY_SECONDS)
            self.sweep()
        self.trackers.leave()

    def _is_another_at_work(self) -> bool:
        open_elsewhere = [f.folder for f in self.followed.values() if not f.complete and f.lock is None]
        return any((record := read_record(folder)) and record.status != "running" for folder in open_elsewhere)

    def _report(self, error: Exception) -> None:
        if not self.reported:
            message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            print(
                f"tracking: {without_logins(message)}; the run goes on, `mathrl runs sync` uploads later",
                file=sys.stderr,
            )
        self.reported = True

    def _open_records(self, patient: bool) -> Iterator[tuple[Followed, RunRecord]]:
        """The records of which MLflow lacks something, as far as they are this mirror's, oldest first."""
        times = written_times()
        for folder in self.followed.keys() - times.keys():  # removed by a person
            self._leave(self.followed.pop(folder))
        for folder, written in times.items():
            followed = self.followed.setdefault(folder, Followed(folder))
            unchanged = followed.written == written
            if unchanged and (followed.complete or (patient and time.time() < followed.due)):
                continue  # a complete record is opened again when a failed run is resumed
            record = read_record(folder)
            if record is None:
                continue
            followed.written, followed.complete = written, False
            followed.due = time.time() + pause(time.time() - record.started)
            if _elsewhere(record):
                self._leave(followed)
                continue
            # Looked at twice: thousands of records are not locked, and another mirror may have had the lock.
            followed.complete = self._has_all(record)
            if not followed.complete and followed.acquire():
                followed.complete = self._has_all(record)
                if not followed.complete:
                    yield followed, record
            if followed.complete:
                self._leave(followed)

    def _bring_up_to_date(self, followed: Followed, record: RunRecord, status: str) -> None:
        assert self.upload is not None
        state = record.mirror_state()
        if not state.run_id:
            state.run_id, state.parent = self.upload.start(record)
            state.experiment = experiment(self.upload.client, question(record))
            state.write()
        elif state.complete is not None:
            self.upload.reopen(state.run_id)
            state.complete = None
            state.write()
        rows, end = followed.tail.rows(record)
        new = [row for row in rows if state.step is None or int(row["step"]) > state.step]
        last_step = self.upload.metrics(state.run_id, rows, after=state.step)
        sent_before = [row for row in rows if state.step is not None and int(row["step"]) <= state.step]
        self.upload.metrics_again(state.run_id, [row for row in sent_before if row["at"] >= record.started])
        self.upload.forecast(state.run_id, record, new)
        followed.tail.bytes_read = end  # not before: rows that the server did not take are read again
        # A resumed run has not reported its health yet; MLflow keeps what it reported before.
        health = state.health if record.health is None else record.health
        if health is not None and health != state.health:
            self.upload.health(state.run_id, health)
        if (last_step, health) != (state.step, state.health):
            state.step, state.health = last_step, health
            state.write()
        if status == "running":
            self._monitor(followed, record, state.run_id)
            return
        followed.stop_monitor()
        self.upload.finish(state.run_id, state.parent, record, status)
        state.complete, state.status = record.started, status
        state.write()

    def _monitor(self, followed: Followed, record: RunRecord, run_id: str) -> None:
        if record.stage != "trial" and followed.monitor is None:
            followed.monitor = _system_monitor(run_id)
        if followed.monitor is not None:
            followed.monitor.sampling_interval = max(10.0, 2 * pause(time.time() - record.started))


def _system_monitor(run_id: str) -> Any:
    """MLflow's own monitor, started: samples of system/cpu_utilization_percentage …"""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    # It logs its starts and ends, and a server that is away, which the mirror reports once.
    logging.getLogger("mlflow.system_metrics").setLevel(logging.ERROR)
    monitor = SystemMetricsMonitor(run_id, resume_logging=True)
    monitor.start()
    return monitor


def sync() -> int:
    """Upload everything that is missing now; returns the number of complete records.

    Raises:
        UserError: the server does not answer.
    """
    connect()
    mirror = Mirror(earlier=True)
    complete = mirror.sweep()
    mirror.trackers.leave()
    if mirror.reported or mirror.trackers.failing:
        raise UserError("not everything could be uploaded; see the message above")
    return complete


def _links(record: RunRecord) -> dict[str, str]:
    """Where else the run is shown, for the trackers beside MLflow."""
    state = record.mirror_state()
    rollouts = rollouts_page(record.folder.name) if record.keeps_rollouts else ""
    links = {"MLflow run": state.run_id, "MLflow": mlflow_page(state, state.run_id), "Rollouts": rollouts}
    return {name: address for name, address in links.items() if address}


def _elsewhere(record: RunRecord) -> bool:
    """Whether the stage runs on another machine, as far as its record tells."""
    running = record.status == "running" and not record.is_here
    return running and time.time() - record.last_change() < AWAY_SECONDS


def _dead(record: RunRecord) -> bool:
    """Whether a record that says that the stage runs has no process."""
    return record.status == "running" and not (record.is_here and is_alive(record.pid, record.pid_start))


if __name__ == "__main__":
    main()
