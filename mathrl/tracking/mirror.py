"""One process that follows the stages' records and uploads them: `python -m mathrl.tracking.mirror`.

It goes on until its standard input is closed, then uploads the rest and ends. Records are the truth; what was
uploaded is kept in each record's mirror.json, so that nothing is sent twice and what a server missed while it
was down is sent by the next mirror. A record is locked by the mirror that has it. Where machines share the
folder, a run that goes on is left to the mirrors of its own machine, which alone see whether it lives.
"""

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mathrl.core.errors import UserError, without_logins
from mathrl.core.files import write_json
from mathrl.core.parent import at_end_of_input
from mathrl.core.paths import home
from mathrl.core.progress import pause
from mathrl.tracking.client import connect, experiment
from mathrl.tracking.upload import Upload, question

EVERY_SECONDS = 1.0
AWAY_SECONDS = 24 * 3600.0  # another machine's run whose record has not changed for so long counts as killed


def main() -> None:
    """Follow until end of input. A server that does not answer is said once and tried again."""
    ended = threading.Event()
    at_end_of_input(ended.set)
    mirror = Mirror()
    while not ended.wait(EVERY_SECONDS):
        mirror.sweep(patient=True)
    mirror.sweep()


class Mirror:
    """Uploads records; keeps a record's lock for as long as it lives."""

    def __init__(self) -> None:
        self.records = home() / "records"
        self.locks: dict[Path, FileLock] = {}
        self.done: dict[Path, int] = {}  # complete records, with the time of their run.json
        self.read: dict[Path, tuple[float, int]] = {}  # a run's start, and how many bytes of its metrics
        self.due: dict[Path, tuple[int, float]] = {}  # run.json's time, and when else its record is looked at
        self.failing: set[Path] = set()
        self.machines: dict[Path, Any] = {}  # what logs cpu, memory, disk, network and GPUs, by record
        self.upload: Upload | None = None
        self.said = False

    def sweep(self, *, patient: bool = False) -> int:
        """Bring every record up to date; returns how many are now complete in MLflow.

        A patient one leaves out runs that have gone on for long and were looked at a moment ago.
        """
        for record, written in self._open_records(patient):
            try:
                self.upload = self.upload or Upload(connect())
            except Exception as error:  # the tracker must never stop a run, whatever it raises
                self.failing.add(record)
                self._say(error)
                break
            try:
                self._bring_up_to_date(record, written)
                self.failing.discard(record)
            except Exception as error:  # nor must one record keep the others back
                self.failing.add(record)
                self.upload = None
                self._say(error)
        self.said = bool(self.failing)  # what goes wrong after all went well is said again
        return len(self.done)

    def _say(self, error: Exception) -> None:
        if not self.said:
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            print(f"tracking: {without_logins(said)}; the run goes on, `mathrl sync` uploads later", file=sys.stderr)
        self.said = True

    def _open_records(self, patient: bool) -> Iterator[tuple[Path, int]]:
        times = {file: file.stat().st_mtime_ns for file in self.records.glob("*/run.json")}
        for run in sorted(times, key=lambda file: times[file]):
            record = run.parent
            if self.done.get(record) == times[run]:
                continue  # a record is opened again when a failed run goes on
            looked, due = self.due.get(record, (0, 0.0))
            if patient and looked == times[run] and time.time() < due:
                continue
            facts, now = _read(run), time.time()
            self.due[record] = times[run], now + pause(now - facts.get("started", now))
            if _elsewhere(facts, record):
                self._leave(record)
            elif not self._mine(record):
                continue
            elif _complete(facts, _read(record / "mirror.json")):
                self._finish(record, times[run])
            else:
                yield record, times[run]

    def _mine(self, record: Path) -> bool:
        if record not in self.locks:
            lock = FileLock(record / ".lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:
                return False
            self.locks[record] = lock
        return True

    def _finish(self, record: Path, written: int) -> None:
        self.done[record] = written
        self._leave(record)

    def _leave(self, record: Path) -> None:
        self._unwatch(record)
        self.failing.discard(record)
        if record in self.locks:
            self.locks.pop(record).release()

    def _unwatch(self, record: Path) -> None:
        if record in self.machines:
            self.machines.pop(record).finish()

    def _bring_up_to_date(self, record: Path, written: int) -> None:
        facts, known = _read(record / "run.json"), _read(record / "mirror.json")
        before = json.dumps(known)
        if _dead(facts):
            facts = _read(record / "run.json")  # it may have ended, with a last word, since that was read
        status = "killed" if _dead(facts) else facts.get("status", "running")
        assert self.upload is not None
        if "run_id" not in known:
            known["run_id"], known["parent"] = self.upload.start(facts, record.name)
            known["experiment"] = experiment(self.upload.client, question(facts))
            write_json(record / "mirror.json", known)
        elif "complete" in known:
            self.upload.reopen(known["run_id"])
            del known["complete"]
        began, read = self.read.get(record, (0.0, 0))
        # A run that goes on writes its file anew, so it is read from its start again.
        rows, read = new_rows(record / "metrics.jsonl", read if began == facts.get("started") else 0)
        known["step"] = self.upload.metrics(known["run_id"], rows, after=known.get("step"))
        self.read[record] = facts.get("started", 0.0), read
        # A run that goes on has said nothing of its health yet; MLflow keeps what it said before.
        if "health" in facts and facts["health"] != known.get("health"):
            self.upload.health(known["run_id"], facts["health"])
            known["health"] = facts["health"]
        if json.dumps(known) != before:
            write_json(record / "mirror.json", known)
        if status == "running" and facts["stage"] != "trial" and record not in self.machines:
            self.machines[record] = _watched_machine(known["run_id"])
        if record in self.machines:
            self.machines[record].sampling_interval = max(10.0, 2 * pause(time.time() - facts["started"]))
        if status != "running":
            self._unwatch(record)
            self.upload.finish(known["run_id"], known["parent"], facts, status, record / "artifacts")
            known |= {"complete": facts.get("started"), "status": status}
            write_json(record / "mirror.json", known)
            self._finish(record, written)


def _watched_machine(run_id: str) -> Any:
    """MLflow's own monitor, begun: samples of system/cpu_utilization_percentage …"""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    # It tells of its starts and ends, and of a server that is away, which the mirror says once.
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
    if mirror.said:
        raise UserError("not everything could be uploaded; see the message above")
    return complete


def _read(file: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return value
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def new_rows(file: Path, read: int) -> tuple[list[dict[str, Any]], int]:
    """The whole rows after the first `read` bytes of a metrics file, and how many bytes are read then.

    A file that is shorter than that was begun anew. The last line may be half written yet.
    """
    if not file.exists():
        return [], 0
    with file.open("rb") as stream:
        stream.seek(read if read <= file.stat().st_size else 0)
        start = stream.tell()
        whole, newline, _ = stream.read().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()], start + len(whole) + len(newline)


def _elsewhere(facts: dict[str, Any], record: Path) -> bool:
    """Whether a run goes on at another machine, as far as its record tells."""
    if facts.get("status") != "running" or facts.get("host", socket.gethostname()) == socket.gethostname():
        return False
    files = [record / name for name in ("run.json", "metrics.jsonl", "mirror.json")]
    changed = max(file.stat().st_mtime for file in files if file.exists())
    return time.time() - changed < AWAY_SECONDS


def _complete(facts: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether MLflow has all of it; not where a run that was taken for killed has ended after all."""
    mistaken = known.get("status") == "killed" and facts.get("status") != "running"
    return known.get("complete") == facts.get("started") and not mistaken


def _dead(facts: dict[str, Any]) -> bool:
    """Whether a run that says of itself that it goes on has no process."""
    here = facts.get("host", socket.gethostname()) == socket.gethostname()
    return facts.get("status", "running") == "running" and not (here and _alive(int(facts.get("pid", 0))))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    main()
