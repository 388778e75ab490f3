"""The next trial for a worker.

Every worker sees home() (on several machines: $MATHRL_HOME on a shared disk), where trainers resume from.
A worker that died leaves its trial RUNNING; the next claim adopts it, with its number, parameters and folder,
so that its trainer resumes from its last checkpoint. Claims are made one at a time under a lock: no trial is
lost, and none is run twice.
"""

import time
from collections.abc import Callable
from typing import Any

import optuna
from filelock import FileLock
from optuna.trial import Trial, TrialState

from mathrl.core.seeding import derive_seed
from mathrl.params.sweep import Categorical, Integer, Sweep
from mathrl.sweeps.lease import holder, renew
from mathrl.sweeps.space import distribution
from mathrl.sweeps.study import Opened

WAIT_SECONDS = 0.5


def claim(
    opened: Opened, until: float | None = None, stopping: Callable[[], bool] = lambda: False
) -> Trial | None:
    """A trial to run: one whose worker died, else a new one; None when all are begun or time is up.

    Where nothing is left but a trial whose trainer outlives its worker, it is waited for: a guard ends such a
    trainer within seconds, and one that was killed with the worker's whole group runs to its end.
    """
    while not stopping():
        with FileLock(opened.folder / "claim.lock"):
            trials = opened.study.get_trials(deepcopy=False)
            begun = sum(each.state != TrialState.WAITING for each in trials)
            opened.study.sampler = _sampler(opened.sweep, begun)
            running = [each for each in trials if each.state == TrialState.RUNNING]
            held = {each.number: holder(opened.folder, each.number) for each in running}
            for each in running:
                if held[each.number] == "nobody":
                    renew(opened.folder, each.number)
                    return _suggest(Trial(opened.study, each._trial_id), opened.sweep)
            late = until is not None and time.time() > until
            if not late and (opened.sweep.trials is None or begun < opened.sweep.trials):
                trial = opened.study.ask()
                renew(opened.folder, trial.number)
                return _suggest(trial, opened.sweep)
        if "trainer" not in held.values():
            return None
        time.sleep(WAIT_SECONDS)
    return None


def _suggest(trial: Trial, sweep: Sweep) -> Trial:
    """Draw what is not drawn yet: a worker may have died between two parameters."""
    for key, axis in sweep.space.items():
        drawn: Any = distribution(axis)
        if isinstance(axis, Categorical):
            trial.suggest_categorical(key, drawn.choices)
        elif isinstance(axis, Integer):
            trial.suggest_int(key, drawn.low, drawn.high, step=drawn.step)
        else:
            trial.suggest_float(key, drawn.low, drawn.high, log=drawn.log)
    return trial


def _sampler(sweep: Sweep, begun: int) -> optuna.samplers.BaseSampler:
    """TPE; its random numbers follow from the trials begun so far, so that workers do not draw alike."""
    seed = derive_seed(sweep.sampler_seed, "sweep", begun) % 2**32
    return optuna.samplers.TPESampler(n_startup_trials=sweep.startup_trials, seed=seed, constant_liar=True)
