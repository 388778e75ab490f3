"""Leases: which worker runs which trial, kept with each running trial in the study's storage.

A lease names the worker, its trainer and the trainer's children by process id and start time. Each claim writes
a new token into it: a worker that slept while another one took over its trial finds a different token, and
writes nothing more (`fenced`).
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import psutil
from optuna.trial import FrozenTrial, Trial, TrialState

from mathrl.params.sweep import Sweep
from mathrl.sweeps.storage import study_lock

AWAY_SECONDS = 300.0  # a worker of another machine is dead if its lease was not renewed for this long
LEASE = "lease"
ProcessKey = tuple[int, float]
Seen = dict[int, tuple[Any, float]]  # trial number → its lease and this machine's clock at the first look


class LeaseLost(Exception):
    """The trial no longer belongs to this worker; the message says why."""


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this worker claimed, and holds while the lease in the storage has this token."""

    trial: Trial
    sweep: Sweep
    token: str


def take(trial: Trial, sweep: Sweep) -> ClaimedTrial:
    """Claim a trial that no worker holds; the caller holds `study_lock`."""
    claimed = ClaimedTrial(trial, sweep, os.urandom(8).hex())
    _write(claimed, ())
    return claimed


@contextmanager
def fenced(claimed: ClaimedTrial) -> Iterator[None]:
    """Within the context only the trial's holder writes: claims wait until it ends.

    Raises:
        LeaseLost: another worker took over the trial, or the trial has ended.
    """
    with study_lock(claimed.sweep):
        stored = claimed.trial.storage.get_trial(claimed.trial._trial_id)
        lease = stored.user_attrs.get(LEASE) or {}
        if stored.state != TrialState.RUNNING:
            raise LeaseLost(f"it is {stored.state.name.lower()} already")
        if lease.get("token") != claimed.token:
            raise LeaseLost(f"a worker on {lease.get('host', 'no machine')} has taken it over")
        yield


def renew(claimed: ClaimedTrial, trainer: Sequence[ProcessKey] = ()) -> None:
    """Renew a trial's lease, with the processes (`process_tree`) of its trainer.

    Raises:
        LeaseLost: see `fenced`.
    """
    with fenced(claimed):
        _write(claimed, trainer)


def _write(claimed: ClaimedTrial, trainer: Sequence[ProcessKey]) -> None:
    worker = process_key(psutil.Process())
    lease = {"host": socket.gethostname(), "worker": worker, "below": list(trainer)}
    claimed.trial.set_user_attr(LEASE, {**lease, "token": claimed.token, "at": time.time()})


def process_tree(child: int) -> list[ProcessKey]:
    """A running process and its running descendants."""
    try:
        guard = psutil.Process(child)
        processes = [guard, *guard.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    keys = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            keys.append(process_key(process))
    return keys


def give_back(claimed: ClaimedTrial) -> None:
    """Leave an unfinished trial to the next claim; called within `fenced`."""
    claimed.trial.set_user_attr(LEASE, None)


def holder(trial: FrozenTrial, seen: Seen) -> Literal["worker", "trainer", "unknown", "nobody"]:
    """Who holds a running trial: a living worker, only the trainer that it started, or nobody.

    Processes of this machine are known by their id and start time. A worker of another machine lives if its
    lease is renewed between two looks, by this machine's clock, since clocks of two machines may differ: it is
    "unknown" until then. `seen` has the earlier looks of the same claim.
    """
    lease = trial.user_attrs.get(LEASE)
    if lease is None:
        return "nobody"
    if lease["host"] != socket.gethostname():
        first, since = seen.setdefault(trial.number, (lease, time.monotonic()))
        if lease != first:
            return "worker"
        return "nobody" if time.monotonic() - since >= AWAY_SECONDS else "unknown"
    if _lives(*lease["worker"]):
        return "worker"
    return "trainer" if any(_lives(*key) for key in lease["below"]) else "nobody"


def process_key(process: psutil.Process) -> ProcessKey:
    return process.pid, process.create_time()


def _lives(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        same: bool = abs(process.create_time() - born) < 1.0
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
