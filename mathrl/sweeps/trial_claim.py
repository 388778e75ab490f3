"""The next trial for a worker.

A worker that died leaves its trial RUNNING; the next claim adopts it, with its number, parameters and folder,
so that its trainer resumes from its last checkpoint (on another machine only if home() is on a shared disk, else
from the start). Claims are made one at a time under a lock: no trial is lost, and none runs twice.
"""

import time
from collections.abc import Callable
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from mathrl.core.seeding import derive_seed
from mathrl.params.sweep import Categorical, Integer, Sweep
from mathrl.sweeps.space import distribution
from mathrl.sweeps.storage import study_lock
from mathrl.sweeps.study import OpenStudy
from mathrl.sweeps.trial_lease import ClaimedTrial, Seen, holder, take

WAIT_SECONDS = 0.5


def claim(
    opened: OpenStudy, until: float | None = None, stop_requested: Callable[[], bool] = lambda: False
) -> ClaimedTrial | None:
    """A trial to run: one whose worker died, else a new one; None if all were started or time is up.

    If only a trial is left whose trainer outlives its worker, wait for it: a guard ends such a trainer within
    seconds, and without its guard it runs to its end. Wait for another machine's trial until its lease is
    renewed, or was not renewed for AWAY_SECONDS.
    """
    seen, notified = Seen(), False
    while not stop_requested():
        with study_lock(opened.sweep):
            trials = opened.study.get_trials(deepcopy=False)
            started = sum(trial.state != TrialState.WAITING for trial in trials)
            opened.study.sampler = _sampler(opened.sweep, started)
            running = [trial for trial in trials if trial.state == TrialState.RUNNING]
            holders = {trial.number: holder(trial, seen) for trial in running}
            for trial in running:
                if holders[trial.number] == "nobody":
                    return _claimed(Trial(opened.study, trial._trial_id), opened.sweep)
            late = until is not None and time.time() > until
            if not late and (opened.sweep.trials is None or started < opened.sweep.trials):
                return _claimed(opened.study.ask(), opened.sweep)
        if not {"trainer", "unknown"} & set(holders.values()):
            return None
        away = [number for number in seen if holders.get(number) == "unknown"]
        if away and not notified:
            notified = True
            print(f"trial {away[0]} belongs to another machine: waiting for its lease to be renewed", flush=True)
        time.sleep(WAIT_SECONDS)
    return None


def _claimed(trial: Trial, sweep: Sweep) -> ClaimedTrial:
    """Claim the trial and suggest its missing parameters: a worker may have died between two of them."""
    claimed = take(trial, sweep)
    for key, axis in sweep.space.items():
        range_: Any = distribution(axis)
        if isinstance(axis, Categorical):
            trial.suggest_categorical(key, range_.choices)
        elif isinstance(axis, Integer):
            trial.suggest_int(key, range_.low, range_.high, step=range_.step)
        else:
            trial.suggest_float(key, range_.low, range_.high, log=range_.log)
    return claimed


def _sampler(sweep: Sweep, started: int) -> optuna.samplers.BaseSampler:
    """TPE, seeded by the number of trials started so far, so that no two workers draw the same parameters."""
    seed = derive_seed(sweep.sampler_seed, "sweep", started) % 2**32
    return optuna.samplers.TPESampler(n_startup_trials=sweep.startup_trials, seed=seed, constant_liar=True)
