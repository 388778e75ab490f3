"""One worker of a study: `python -m mathrl.sweeps.worker`, started by mathrl.sweeps.run.

Claims and runs trials until none is left. When its standard input is closed (its parent has ended, or asks it to
end) or it is signalled, it stops its trainer after a checkpoint, and the trial stays unfinished.
"""

import signal
import sys
import threading
from collections.abc import Sequence

from optuna.trial import TrialState

from mathrl.compose import load_params
from mathrl.core.errors import UserError, exit_on_user_error
from mathrl.core.guard import at_end_of_input
from mathrl.params.sweep import Sweep
from mathrl.sweeps.study import open_study
from mathrl.sweeps.trial import Interrupted, run_trial
from mathrl.sweeps.trial_claim import TrialLost, claim

MOST_FAILURES = 3  # failed trials in a row, after which the worker gives up


def sweep_section(overrides: Sequence[str]) -> Sweep:
    """params/sweep.yaml with overrides; overrides of other sections are set for every trial.

    Raises:
        UserError: wrong parameters.
    """
    of_sweep = [override for override in overrides if override.startswith("sweep.")]
    of_trials = [override for override in overrides if not override.startswith("sweep.")]
    sweep = load_params(overrides=of_sweep).sweep
    load_params(overrides=[*sweep.set, *of_trials])
    return sweep.model_copy(update={"set": (*sweep.set, *of_trials)})


def run_trials(overrides: Sequence[str], until: float | None = None) -> None:
    """Run trials until none is left.

    Raises:
        UserError: the study cannot be opened, or trial after trial fails.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    at_end_of_input(stop.set)
    failures = 0
    while not stop.is_set():
        opened = open_study(sweep_section(overrides))  # again: params/ may have changed meanwhile
        claimed = claim(opened, until)
        if claimed is None:
            return
        number = claimed.trial.number
        try:
            outcome = run_trial(opened, claimed, stop.is_set)
            print(f"\n{outcome}", flush=True)  # on its own line, below the bar
        except Interrupted:
            print(f"trial {number}: stopped; the next `mathrl sweep run` resumes it", flush=True)
            return
        except TrialLost as lost:
            print(f"\ntrial {number} no longer belongs to this worker: {lost}", flush=True)
            continue
        last = opened.study.get_trials(deepcopy=False)[number]
        failures = failures + 1 if last.state == TrialState.FAIL else 0
        if failures == MOST_FAILURES:
            raise UserError(f"{MOST_FAILURES} trials in a row failed; the last: {last.user_attrs['error']}")


if __name__ == "__main__":
    deadline = float(sys.argv[1]) if sys.argv[1] != "-" else None
    exit_on_user_error(lambda: run_trials(sys.argv[2:], deadline))
