"""Who has which trial: a note with each running trial, where the study is kept.

It names the worker, and the trainer that it started with all that this started, by process id and start. Each
claim puts a token of its own into it: a worker that slept while another took its trial over finds another's
token, and writes nothing more (`fenced`).
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
from mathrl.sweeps.storage import alone

AWAY_SECONDS = 300.0  # another machine's worker whose lease stays the same for so long is dead
LEASE = "lease"
Known = tuple[int, float]
Seen = dict[int, tuple[Any, float]]  # a trial's number → its lease and this machine's clock, at first sight


class Lost(Exception):
    """The trial is no longer this worker's; says what became of it."""


@dataclass(frozen=True)
class Held:
    """A trial that this worker claimed: its own while the lease in the storage has this token."""

    trial: Trial
    sweep: Sweep
    token: str


def take(trial: Trial, sweep: Sweep) -> Held:
    """Claim a trial that nobody has; the caller keeps other claims out (`alone`)."""
    held = Held(trial, sweep, os.urandom(8).hex())
    _write(held, ())
    return held


@contextmanager
def fenced(held: Held) -> Iterator[None]:
    """Whatever is written within is written by the trial's holder: claims wait until it is done.

    Raises:
        Lost: another worker took the trial over, or it was told to the study.
    """
    with alone(held.sweep):
        now = held.trial.storage.get_trial(held.trial._trial_id)
        lease = now.user_attrs.get(LEASE) or {}
        if now.state != TrialState.RUNNING:
            raise Lost(f"it is {now.state.name.lower()} already")
        if lease.get("token") != held.token:
            raise Lost(f"a worker on {lease.get('host', 'no machine')} has taken it over")
        yield


def renew(held: Held, below: Sequence[Known] = ()) -> None:
    """Hold a trial's lease, with the processes (`tree`) of its trainer.

    Raises:
        Lost: see `fenced`.
    """
    with fenced(held):
        _write(held, below)


def _write(held: Held, below: Sequence[Known]) -> None:
    worker = _known(psutil.Process())
    lease = {"host": socket.gethostname(), "worker": worker, "below": list(below)}
    held.trial.set_user_attr(LEASE, {**lease, "token": held.token, "at": time.time()})


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


def give_back(held: Held) -> None:
    """For the next claim, of an unfinished trial; within `fenced`."""
    held.trial.set_user_attr(LEASE, None)


def holder(trial: FrozenTrial, seen: Seen) -> Literal["worker", "trainer", "unknown", "nobody"]:
    """Who has a running trial: a living worker, only the trainer that it started, or nobody.

    Processes of this machine are told by their number and start; another machine's by whether its lease is
    renewed while one looks, on this machine's own clock, for clocks of two machines need not agree: unknown
    until then. `seen` is what earlier looks of the same claim saw.
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
