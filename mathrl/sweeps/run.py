"""Run or resume a study on this machine: `python -m mathrl.sweeps.run [override …]`, and each of its workers.

Started again after any end, or on another machine beside this one, it continues the same study. A worker claims and
runs trials until none is left. When its standard input is closed (its parent has ended, or asks it to end) or it is
signalled, it stops its trainer after a checkpoint, and the trial stays unfinished.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from optuna.trial import TrialState

from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError, exit_on_user_error
from mathrl.core.guard import at_end_of_input
from mathrl.core.metrics import progress
from mathrl.core.mirroring import while_mirroring
from mathrl.core.paths import home, state_root, tracking_uri
from mathrl.core.records import METRICS
from mathrl.params.sweep import Sweep
from mathrl.sweeps.report import write_report
from mathrl.sweeps.study import OpenStudy, TrialLost, claim, open_study
from mathrl.sweeps.trial import Interrupted, run_trial

POLL_SECONDS = 1.0
MOST_FAILURES = 3  # failed trials in a row, after which the worker gives up
WORKER = "--worker"  # before the arguments of a worker: when it starts no further trial, or -, and overrides


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


def run(overrides: Sequence[str], stop_requested: Callable[[], bool] = lambda: False) -> None:
    """Start the workers, wait for them, write the report.

    Raises:
        UserError: a wrong section, or trials left unfinished because a worker ended with an error.
    """
    sweep = sweep_section(overrides)
    opened = open_study(sweep)
    until = "-" if sweep.hours is None else str(time.time() + 3600 * sweep.hours)
    command = [sys.executable, "-m", "mathrl.sweeps.run", WORKER, until, *overrides]
    plural = "s" * (sweep.workers != 1)
    print(f"study {sweep.study}, {sweep.workers} worker{plural}, in {opened.folder}", flush=True)
    per_trial = opened.steps * sweep.seeds
    total, done = per_trial * (sweep.trials or 0), _steps_done(opened, per_trial)
    with mirror_trials(), progress("RL steps of all trials", total, done, unit="step") as bar:

        def show() -> None:
            ended = sum(trial.state.is_finished() for trial in opened.study.get_trials(deepcopy=False))
            bar.advance(max(0, _steps_done(opened, per_trial) - bar.bar.n), trials_done=ended)

        # Here and not with each trainer, which may be a fork of a process in which torch has read this.
        threads = str(max(1, (os.cpu_count() or 1) // sweep.workers))
        environment = {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"} | os.environ
        workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment)
            for _ in range(sweep.workers)
        ]
        try:
            while any(worker.poll() is None for worker in workers) and not stop_requested():
                show()
                time.sleep(POLL_SECONDS)
        finally:
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.close()
            codes = [worker.wait() for worker in workers]
        show()
    write_report(opened)
    unfinished = [t.number for t in opened.study.get_trials(deepcopy=False) if t.state == TrialState.RUNNING]
    if any(codes) and not stop_requested() and (unfinished or EXIT_USER_ERROR in codes):
        raise UserError(
            f"a worker ended with exit status {next(filter(None, codes))}, see above; unfinished trials: "
            f"{', '.join(map(str, unfinished)) or 'none'}; start it again to resume"
        )


def _steps_done(opened: OpenStudy, per_trial: int) -> int:
    """RL steps of all trials so far: those that ended count whole, the others by the rows of their metrics."""
    steps = 0
    for trial in opened.study.get_trials(deepcopy=False):
        if trial.state.is_finished():
            steps += per_trial
        else:
            files = opened.folder.glob(f"t{trial.number:04d}-s*/{METRICS}")
            steps += min(per_trial, sum(file.read_bytes().count(b"\n") for file in files if file.exists()))
    return steps


@contextmanager
def mirror_trials() -> Iterator[None]:
    """One process that mirrors all records to MLflow, wherever the trials run."""
    os.environ |= {Variable.HOME: str(home()), Variable.STATE: str(state_root()), "MLFLOW_TRACKING_URI": tracking_uri()}
    with while_mirroring():
        yield


def main(overrides: Sequence[str]) -> None:
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    exit_on_user_error(lambda: run(overrides, lambda: bool(signals)))
    if signals:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        deadline = float(sys.argv[2]) if sys.argv[2] != "-" else None
        exit_on_user_error(lambda: run_trials(sys.argv[3:], deadline))
    else:
        main(sys.argv[1:])
