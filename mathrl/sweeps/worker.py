"""One worker of a study: `python -m mathrl.sweeps.worker`, started by mathrl.sweeps.run.

Claims and runs trials until none is left. When its standard input is closed (whoever started it has ended or
wants it to stop) or it is signalled, it stops its trainer after a checkpoint, and the trial stays unfinished.
"""

import signal
import sys
import threading
from collections.abc import Sequence

from optuna.trial import TrialState

from mathrl.core.errors import UserError, exit_on_user_error
from mathrl.core.parent import at_end_of_input
from mathrl.params import load_params
from mathrl.params.sweep import Sweep
from mathrl.sweeps.study import open_study
from mathrl.sweeps.trial import Interrupted, run_trial
from mathrl.sweeps.trial_claim import claim
from mathrl.sweeps.trial_lease import Lost

MOST_FAILURES = 3  # in a row, before the worker gives up


def sweep_section(overrides: Sequence[str]) -> Sweep:
    """params/sweep.yaml with overrides; those of other sections are set for every trial.

    Raises:
        UserError: wrong parameters.
    """
    own = [each for each in overrides if each.startswith("sweep.")]
    others = [each for each in overrides if not each.startswith("sweep.")]
    sweep = load_params(overrides=own).sweep
    load_params(overrides=[*sweep.set, *others])
    return sweep.model_copy(update={"set": (*sweep.set, *others)})


def work(overrides: Sequence[str], until: float | None = None) -> None:
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
        opened = open_study(sweep_section(overrides))  # anew: params/ may have been changed meanwhile
        held = claim(opened, until, stop.is_set)
        if held is None:
            return
        number = held.trial.number
        try:
            said = run_trial(opened, held, stop.is_set)
            print(f"\n{said}", flush=True)  # on a line of its own, below the bar
        except Interrupted:
            print(f"trial {number}: stopped; the next `mathrl sweep run` goes on with it", flush=True)
            return
        except Lost as lost:
            print(f"\ntrial {number} is no longer this worker's: {lost}", flush=True)
            continue
        last = opened.study.get_trials(deepcopy=False)[number]
        failures = failures + 1 if last.state == TrialState.FAIL else 0
        if failures == MOST_FAILURES:
            raise UserError(f"{MOST_FAILURES} trials in a row failed; the last: {last.user_attrs['error']}")


if __name__ == "__main__":
    deadline = float(sys.argv[1]) if sys.argv[1] != "-" else None
    exit_on_user_error(lambda: work(sys.argv[2:], deadline))
