"""One process that follows the stages' records and uploads them: `python -m mathrl.tracking.mirror`.

It runs until its standard input is closed, then uploads the rest and ends. Records are the truth; what was
uploaded is kept in each record's `MirrorState`, so that nothing is sent twice and what a server missed while it
was down is sent by the next mirror. A record is locked by the mirror that follows it. Where machines share the
folder, a running stage is left to the mirrors of its own machine, which alone see whether its process lives.
"""

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mathrl.core.errors import UserError, without_logins
from mathrl.core.guard import at_end_of_input, is_alive
from mathrl.core.progress import pause
from mathrl.core.records import MirrorState, RunRecord, read_record, written_times
from mathrl.tracking.client import connect, experiment
from mathrl.tracking.upload import Upload, question

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
    run.json has not changed; `started` and `bytes_read` tell how much of a run's metrics was uploaded; `monitor`
    logs the machine's load while the stage runs.
    """

    folder: Path
    lock: FileLock | None = None
    written: int = 0
    due: float = 0.0
    complete: bool = False
    failing: bool = False
    started: float = 0.0
    bytes_read: int = 0
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

    def new_rows(self, record: RunRecord) -> tuple[list[dict[str, Any]], int]:
        """The metrics after those that were uploaded, and the byte after them; a resumed run writes its file again."""
        if self.started != record.started:
            self.started, self.bytes_read = record.started, 0
        return new_rows(record.metrics_file, self.bytes_read)


class Mirror:
    """Uploads records; keeps a record's lock for as long as it runs."""

    def __init__(self) -> None:
        self.followed: dict[Path, Followed] = {}
        self.upload: Upload | None = None
        self.reported = False  # an error, since all went well

    def sweep(self, *, patient: bool = False) -> int:
        """Bring every record up to date; returns how many are now complete in MLflow.

        A patient sweep leaves out runs that have gone on for long and were looked at a moment ago.
        """
        for followed, record in self._open_records(patient):
            try:
                self.upload = self.upload or Upload(connect())
            except Exception as error:  # the tracker must never stop a run, whatever it raises
                followed.failing = True
                self._report(error)
                break
            try:
                self._bring_up_to_date(followed, record)
                followed.failing = False
            except Exception as error:  # nor must one record keep the others back
                followed.failing = True
                self.upload = None
                self._report(error)
        self.reported = any(followed.failing for followed in self.followed.values())
        return sum(followed.complete for followed in self.followed.values())

    def finish(self) -> None:
        """Upload the rest. What another mirror has of stages that have ended, such as this flow's, is waited for.

        Not where the server takes nothing: then the other mirror does not come further either.
        """
        deadline = time.monotonic() + FINISH_SECONDS
        self.sweep()
        while not self.reported and self._is_another_at_work() and time.monotonic() < deadline:
            time.sleep(EVERY_SECONDS)
            self.sweep()

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
            self.followed.pop(folder).leave()
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
                followed.leave()
                continue
            # Looked at twice: thousands of records are not locked, and another mirror may have had the lock.
            followed.complete = _complete(record, record.mirror_state())
            if not followed.complete and followed.acquire():
                followed.complete = _complete(record, record.mirror_state())
                if not followed.complete:
                    yield followed, record
            if followed.complete:
                followed.leave()

    def _bring_up_to_date(self, followed: Followed, record: RunRecord) -> None:
        assert self.upload is not None
        state = record.mirror_state()
        if _dead(record):
            record = read_record(followed.folder) or record  # it may have ended since it was read
        status = "killed" if _dead(record) else record.status
        if not state.run_id:
            state.run_id, state.parent = self.upload.start(record)
            state.experiment = experiment(self.upload.client, question(record))
            state.write()
        elif state.complete is not None:
            self.upload.reopen(state.run_id)
            state.complete = None
            state.write()
        rows, end = followed.new_rows(record)
        new = [row for row in rows if state.step is None or int(row["step"]) > state.step]
        last_step = self.upload.metrics(state.run_id, rows, after=state.step)
        sent_before = [row for row in rows if state.step is not None and int(row["step"]) <= state.step]
        self.upload.metrics_again(state.run_id, [row for row in sent_before if row["at"] >= record.started])
        self.upload.forecast(state.run_id, record, new)
        followed.bytes_read = end  # not before: rows that the server did not take are read again
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
        followed.complete = True
        followed.leave()

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
    mirror = Mirror()
    complete = mirror.sweep()
    if mirror.reported:
        raise UserError("not everything could be uploaded; see the message above")
    return complete


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


def _elsewhere(record: RunRecord) -> bool:
    """Whether the stage runs on another machine, as far as its record tells."""
    running = record.status == "running" and not _here(record)
    return running and time.time() - record.last_change() < AWAY_SECONDS


def _complete(record: RunRecord, state: MirrorState) -> bool:
    """Whether MLflow has all of it; not where a run that was taken for killed has ended after all."""
    mistaken = state.status == "killed" and record.status != "running"
    return state.complete == record.started and not mistaken


def _dead(record: RunRecord) -> bool:
    """Whether a record that says that the stage runs has no process."""
    return record.status == "running" and not (_here(record) and is_alive(record.pid))


def _here(record: RunRecord) -> bool:
    return record.host in ("", socket.gethostname())


if __name__ == "__main__":
    main()
