"""The next trial for a worker.

A worker that died leaves its trial RUNNING; the next claim adopts it, with its number, parameters and folder,
so that its trainer resumes from its last checkpoint (on another machine: where home() is on a shared disk,
else from its start). Claims are made one at a time under a lock: no trial is lost, and none is run twice.
"""

import time
from collections.abc import Callable
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from mathrl.core.seeding import derive_seed
from mathrl.params.sweep import Categorical, Integer, Sweep
from mathrl.sweeps.space import distribution
from mathrl.sweeps.storage import alone
from mathrl.sweeps.study import Opened
from mathrl.sweeps.trial_lease import Held, Seen, holder, take

WAIT_SECONDS = 0.5


def claim(opened: Opened, until: float | None = None, stopping: Callable[[], bool] = lambda: False) -> Held | None:
    """A trial to run: one whose worker died, else a new one; None when all are begun or time is up.

    Where nothing is left but a trial whose trainer outlives its worker, it is waited for: a guard ends such a
    trainer within seconds, and one that was killed with the worker's whole group runs to its end. Another
    machine's trial is waited for until its lease is renewed, or has not been for AWAY_SECONDS.
    """
    seen, told = Seen(), False
    while not stopping():
        with alone(opened.sweep):
            trials = opened.study.get_trials(deepcopy=False)
            begun = sum(each.state != TrialState.WAITING for each in trials)
            opened.study.sampler = _sampler(opened.sweep, begun)
            running = [each for each in trials if each.state == TrialState.RUNNING]
            held = {each.number: holder(each, seen) for each in running}
            for each in running:
                if held[each.number] == "nobody":
                    return _taken(Trial(opened.study, each._trial_id), opened.sweep)
            late = until is not None and time.time() > until
            if not late and (opened.sweep.trials is None or begun < opened.sweep.trials):
                return _taken(opened.study.ask(), opened.sweep)
        if not {"trainer", "unknown"} & set(held.values()):
            return None
        away = [number for number in seen if held.get(number) == "unknown"]
        if away and not told:
            told = True
            print(f"trial {away[0]} is another machine's: waiting for a sign of life", flush=True)
        time.sleep(WAIT_SECONDS)
    return None


def _taken(trial: Trial, sweep: Sweep) -> Held:
    """Hold it, and draw what is not drawn yet: a worker may have died between two parameters."""
    held = take(trial, sweep)
    for key, axis in sweep.space.items():
        drawn: Any = distribution(axis)
        if isinstance(axis, Categorical):
            trial.suggest_categorical(key, drawn.choices)
        elif isinstance(axis, Integer):
            trial.suggest_int(key, drawn.low, drawn.high, step=drawn.step)
        else:
            trial.suggest_float(key, drawn.low, drawn.high, log=drawn.log)
    return held


def _sampler(sweep: Sweep, begun: int) -> optuna.samplers.BaseSampler:
    """TPE; its random numbers follow from the trials begun so far, so that workers do not draw alike."""
    seed = derive_seed(sweep.sampler_seed, "sweep", begun) % 2**32
    return optuna.samplers.TPESampler(n_startup_trials=sweep.startup_trials, seed=seed, constant_liar=True)
