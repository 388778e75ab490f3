"""Who has which trial: a file a running trial, leases/<number>.json in the study's folder.

It names the worker, and the trainer that it started with all that this started, by process id and start.
"""

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

from mathrl.core.files import write_json

AWAY_SECONDS = 300.0  # another machine's worker that has not renewed its lease for so long is dead
Known = tuple[int, float]


def renew(folder: Path, number: int, below: Sequence[Known] = ()) -> None:
    """Hold a trial's lease, with the processes (`tree`) of its trainer."""
    lease = {"host": socket.gethostname(), "worker": _known(psutil.Process()), "below": list(below)}
    write_json(_lease(folder, number), lease)


def tree(child: int) -> list[Known]:
    """A process and all that it has started, less those that have ended."""
    try:
        guard = psutil.Process(child)
        found = [guard, *guard.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    known = []
    for process in found:
        with suppress(psutil.NoSuchProcess):
            known.append(_known(process))
    return known


def give_back(folder: Path, number: int) -> None:
    _lease(folder, number).unlink(missing_ok=True)


def holder(folder: Path, number: int) -> Literal["worker", "trainer", "nobody"]:
    """Who has the trial: a living worker, only the trainer that it started, or nobody.

    Processes of this machine are told by their number and start; another machine's by the age of the lease.
    """
    file = _lease(folder, number)
    try:
        lease, written = json.loads(file.read_text()), file.stat().st_mtime
    except FileNotFoundError:
        return "nobody"
    if lease["host"] != socket.gethostname():
        return "worker" if _now(folder) - written < AWAY_SECONDS else "nobody"
    if _lives(*lease["worker"]):
        return "worker"
    return "trainer" if any(_lives(*each) for each in lease["below"]) else "nobody"


def _now(folder: Path) -> float:
    """The time by the clock that the leases are dated by: that of the shared disk."""
    (folder / "claim.lock").touch()
    return (folder / "claim.lock").stat().st_mtime


def _known(process: psutil.Process) -> Known:
    return process.pid, process.create_time()


def _lives(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        same: bool = abs(process.create_time() - born) < 1.0
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _lease(folder: Path, number: int) -> Path:
    return folder / "leases" / f"{number:04d}.json"
