"""Who has which trial: a note with each running trial, where the study is kept.

It names the worker, and the trainer that it started with all that this started, by process id and start.
"""

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import psutil
from optuna.trial import FrozenTrial, Trial

AWAY_SECONDS = 300.0  # another machine's worker that has not renewed its lease for so long is dead
LEASE = "lease"
Known = tuple[int, float]


def renew(trial: Trial, below: Sequence[Known] = ()) -> None:
    """Hold a trial's lease, with the processes (`tree`) of its trainer."""
    worker = _known(psutil.Process())
    lease = {"host": socket.gethostname(), "worker": worker, "below": list(below), "at": time.time()}
    trial.set_user_attr(LEASE, lease)


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


def give_back(trial: Trial) -> None:
    """For the next claim, of an unfinished trial."""
    trial.set_user_attr(LEASE, None)


def holder(trial: FrozenTrial) -> Literal["worker", "trainer", "nobody"]:
    """Who has a running trial: a living worker, only the trainer that it started, or nobody.

    Processes of this machine are told by their number and start; another machine's by the age of the lease.
    """
    lease = trial.user_attrs.get(LEASE)
    if lease is None:
        return "nobody"
    if lease["host"] != socket.gethostname():
        return "worker" if time.time() - lease["at"] < AWAY_SECONDS else "nobody"
    if _lives(*lease["worker"]):
        return "worker"
    return "trainer" if any(_lives(*each) for each in lease["below"]) else "nobody"


def _known(process: psutil.Process) -> Known:
    return process.pid, process.create_time()


def _lives(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        same: bool = abs(process.create_time() - born) < 1.0
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
