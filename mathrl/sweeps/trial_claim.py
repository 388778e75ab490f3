"""The next trial for a worker, and the worker's hold on it.

A running trial belongs to the worker that holds its lock, which is free as soon as that worker is dead. The next claim
then adopts the trial, with its number, parameters and folder, so that its trainer resumes from its last checkpoint (on
another machine only if home() is on a shared disk, else from the start). Claims are made one at a time: no trial is
lost, and none runs twice. Each claim writes a new token into the trial: a worker that slept while another one took over
its trial finds a different token, and writes nothing more (`while_holding`).
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from mathrl.core.hashing import derive_seed
from mathrl.params.sweep import Categorical, Integer, Sweep
from mathrl.sweeps.space import distribution
from mathrl.sweeps.study import OpenStudy, TrialLock, study_lock, trial_lock

HOLDER = "holder"


class TrialLost(Exception):
    """The trial no longer belongs to this worker; the message says why."""


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this worker claimed, and holds while the storage has `holder` and `lock` is open.

    For example holder = {"host": "node1", "pid": 4711, "token": "5f3a…"}.
    """

    trial: Trial
    sweep: Sweep
    lock: TrialLock
    holder: dict[str, Any]


def claim(opened: OpenStudy, until: float | None = None) -> ClaimedTrial | None:
    """A trial to run: one whose worker died, else a new one; None if all were started or time is up."""
    with study_lock(opened.sweep):
        trials = opened.study.get_trials(deepcopy=False)
        started = sum(trial.state != TrialState.WAITING for trial in trials)
        opened.study.sampler = _sampler(opened.sweep, started)
        for trial in trials:
            if trial.state == TrialState.RUNNING and (lock := trial_lock(opened.sweep, trial.number)):
                return _claim(Trial(opened.study, trial._trial_id), opened.sweep, lock)
        late = until is not None and time.time() > until
        if late or (opened.sweep.trials is not None and started >= opened.sweep.trials):
            return None
        new = opened.study.ask()
        free = trial_lock(opened.sweep, new.number)
        assert free is not None, "only claims lock trials"
        return _claim(new, opened.sweep, free)


def _claim(trial: Trial, sweep: Sweep, lock: TrialLock) -> ClaimedTrial:
    """Claim the trial and suggest its missing parameters: a worker may have died between two of them."""
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "token": os.urandom(8).hex()}
    trial.set_user_attr(HOLDER, holder)
    for key, axis in sweep.space.items():
        range_: Any = distribution(axis)
        if isinstance(axis, Categorical):
            trial.suggest_categorical(key, range_.choices)
        elif isinstance(axis, Integer):
            trial.suggest_int(key, range_.low, range_.high, step=range_.step)
        else:
            trial.suggest_float(key, range_.low, range_.high, log=range_.log)
    return ClaimedTrial(trial, sweep, lock, holder)


@contextmanager
def while_holding(claimed: ClaimedTrial) -> Iterator[None]:
    """Within the context only the trial's holder writes: claims wait until it ends.

    Raises:
        TrialLost: another worker took over the trial, or the trial has ended.
    """
    with study_lock(claimed.sweep):
        stored = claimed.trial.storage.get_trial(claimed.trial._trial_id)
        if stored.state != TrialState.RUNNING:
            raise TrialLost(f"it is {stored.state.name.lower()} already")
        holder = stored.user_attrs[HOLDER]
        if holder != claimed.holder:
            raise TrialLost(f"a worker on {holder['host']} has taken it over")
        yield


def _sampler(sweep: Sweep, started: int) -> optuna.samplers.BaseSampler:
    """TPE, seeded by the number of trials started so far, so that no two workers draw the same parameters."""
    seed = derive_seed(sweep.sampler_seed, "sweep", started) % 2**32
    return optuna.samplers.TPESampler(n_startup_trials=sweep.startup_trials, seed=seed, constant_liar=True)
