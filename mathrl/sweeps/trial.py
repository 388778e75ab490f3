"""One trial: an RL run a seed, its dev curve read while it trains, ended early where the pruner says so."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from optuna.trial import TrialState

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.exit_status import RESUMABLE
from mathrl.core.files import write_json
from mathrl.core.paths import home, state_root
from mathrl.core.records import METRICS, RunRecord, newest_record
from mathrl.sweeps.record import TrialRecord
from mathrl.sweeps.space import overrides, trial_params, values_of
from mathrl.sweeps.study import Opened
from mathrl.sweeps.trial_lease import Held, Known, Lost, fenced, give_back, renew, tree

POLL_SECONDS, RENEW_SECONDS = 0.5, 15.0
ATTEMPTS = 3
Curve = list[tuple[int, float]]


class Interrupted(Exception):
    """The worker was asked to stop: the trial stays unfinished, and goes on at the next claim."""


class Failed(Exception):
    """A run that ended with an error, with its last words."""


@dataclass(frozen=True)
class Run:
    """One run of a stage in the study's folder: its label, and the words of `mathrl.stages.recipe_step`.

    `trial` is the record of the trial that it belongs to, empty for runs of the comparison.
    """

    folder: Path
    label: str
    stage: str
    words: tuple[str, ...]
    trial: str = ""

    @property
    def out(self) -> Path:
        return self.folder / self.label


def rl_run(opened: Opened, label: str, values: dict[str, Any], seed: int, trial: str = "") -> Run:
    sweep = opened.sweep
    words = ["--start", sweep.start, "--dev", sweep.dev, "--examples", sweep.examples]
    for file in sweep.data:
        words += ["--data", file]
    for each in (*overrides(sweep, values), f"run.seed={seed}"):
        words += ["--set", each]
    return Run(opened.folder, label, "rl", tuple(words), trial)


def run_trial(opened: Opened, held: Held, stopping: Callable[[], bool]) -> str:
    """Run a claimed trial to its end and tell the study; returns a line that says what came out.

    Raises:
        Interrupted: `stopping` became true; the trial is left for the next claim.
        Lost: another worker has the trial now; its trainer here is ended.
    """
    trial = held.trial
    values = values_of(opened.sweep.space, trial.params, opened.present, trial.number)
    record = TrialRecord(opened, trial.number)
    with fenced(held):
        trial.set_user_attr("values", values)
        record.begin(values)
    try:
        scores = _all_seeds(opened, held, values, record, stopping)
        with fenced(held):
            if scores is None:
                opened.study.tell(trial, state=TrialState.PRUNED)
                record.end("finished", "ended early")
                said = "ended early"
            else:
                mean = sum(scores) / len(scores)
                opened.study.tell(trial, mean)
                record.end("finished", "complete", summary={"dev/accuracy": mean})
                said = f"dev accuracy {mean:.4f}"
    except Failed as failed:
        with fenced(held):
            trial.set_user_attr("error", str(failed)[:2000])
            opened.study.tell(trial, state=TrialState.FAIL)
            record.end("failed", "failed", error=str(failed))
        said = f"failed: {failed}"
    except Interrupted:
        with suppress(Lost), fenced(held):
            record.end("stopped", "unfinished")
            give_back(held)
        raise
    return f"trial {trial.number}: {said}  ({', '.join(f'{k}={v}' for k, v in values.items())})"


def _all_seeds(
    opened: Opened, held: Held, values: dict[str, Any], record: TrialRecord, stopping: Callable[[], bool]
) -> list[float] | None:
    """The score of every seed; None where the trial was ended early."""
    trial = held.trial
    try:
        first = trial_params(opened.sweep, values).run.seed
    except UserError as error:
        raise Failed(f"these values do not go together: {error}") from None
    reported = set(opened.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
    scores: list[float] = []
    last = opened.steps * opened.sweep.seeds
    for place in range(opened.sweep.seeds):

        def hopeless(curve: Curve, place: int = place) -> bool:
            """Report what is new of the curve; whether the pruner gives the trial up. Trial 0 is never."""
            for upto in range(1, len(curve) + 1):
                step = place * opened.steps + curve[upto - 1][0]
                if step in reported:
                    continue
                reported.add(step)
                now = (sum(scores) + score(curve[:upto], opened.sweep.evaluations)) / (place + 1)
                with fenced(held):
                    record.report(step, now)
                    trial.report(now, step)
                if trial.number and step < last and trial.should_prune():
                    return True
            return False

        run = rl_run(opened, f"t{trial.number:04d}-s{first + place}", values, first + place, record.record.folder.name)
        curve = execute(run, opened, stopping, hopeless, lambda below: renew(held, below))
        if curve is None:
            return None
        scores.append(score(curve, opened.sweep.evaluations))
        with fenced(held):
            trial.set_user_attr("scores", scores)
    return scores


def score(curve: Curve, evaluations: int) -> float:
    """The mean of the last n dev evaluations.

    >>> score([(5, 0.1), (10, 0.4), (15, 0.6)], 2)
    0.5
    """
    last = [accuracy for _, accuracy in curve[-evaluations:]]
    return sum(last) / len(last)


def dev_curve(file: Path) -> Curve:
    """[(step, dev accuracy)] of a metrics.jsonl that may be written at this moment."""
    curve: Curve = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return curve
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break  # not whole yet
        if math.isfinite(row.get("dev/accuracy", math.nan)):
            curve.append((int(row["step"]), float(row["dev/accuracy"])))
    return curve


def execute(
    run: Run,
    opened: Opened,
    stopping: Callable[[], bool],
    hopeless: Callable[[Curve], bool] = lambda curve: False,
    hold: Callable[[list[Known]], None] = lambda below: None,
    *,
    keep: bool = False,
) -> Curve | None:
    """Run a stage to its end, or go on with it; its dev curve, or None where `hopeless` ended it early.

    What ran to its end before a worker died is not run again. `hold` is called with the trainer's processes
    when they change, now and then, and at the end.

    Raises:
        Interrupted: `stopping` became true; the run resumes at its next start.
        Lost: `hold` or `hopeless` found the trial with another worker.
        Failed: it ended with an error.
    """
    for _ in range(ATTEMPTS):
        if (record := finished(run)) is None:
            code = _attempt(run, opened, stopping, hopeless, hold)
            hold([])  # before anything is removed that may be another's
            if code is None:
                clear(run, keep=False)
                return None
            if code in RESUMABLE:
                continue
            if code:
                raise Failed(_last_words(run.out / "log.txt", code))
            record = finished(run)
        if record is None:
            raise Failed(f"{run.out} has no record of its end")
        curve = dev_curve(record.metrics_file)
        if run.stage == "rl":
            if not curve:
                raise Failed("no dev evaluation; are there dev problems?")
            if hopeless(curve):
                clear(run, keep=False)
                return None
        clear(run, keep=keep or opened.sweep.keep_models)
        return curve
    raise Failed(f"stopped or killed {ATTEMPTS} times, not by the sweep; was memory short?")


def _attempt(
    run: Run,
    opened: Opened,
    stopping: Callable[[], bool],
    hopeless: Callable[[Curve], bool],
    hold: Callable[[list[Known]], None],
) -> int | None:
    run.out.mkdir(parents=True, exist_ok=True)
    began, renewed, below = time.time(), 0.0, list[Known]()
    command = [sys.executable, "-m", "mathrl.core.guard", sys.executable, "-m", "mathrl.stages.recipe_step", run.stage]
    with (run.out / "log.txt").open("ab") as log:
        child = subprocess.Popen(
            [*command, str(run.out), *run.words],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=_environment(opened, run.trial),
        )
    try:
        while (code := child.poll()) is None:
            if (now := tree(child.pid)) != below or abs(time.time() - renewed) > RENEW_SECONDS:
                hold(now)
                below, renewed = now, time.time()
            if stopping():
                raise Interrupted
            record = newest(run)
            if record is not None and record.started >= began:
                _show(run, record)
                if hopeless(dev_curve(record.metrics_file)):
                    return None
            with suppress(subprocess.TimeoutExpired):
                child.wait(POLL_SECONDS)
        return int(code)
    except Lost:
        for pid, _ in tree(child.pid)[1:]:  # no last checkpoint: the folder may be the other worker's, too
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        raise
    finally:
        assert child.stdin is not None
        child.stdin.close()  # the guard ends the trainer: SIGINT, a checkpoint, then harder
        child.wait()


def _environment(opened: Opened, trial: str) -> dict[str, str]:
    # The database's password is the worker's, the progress bar the study's.
    given = {k: v for k, v in os.environ.items() if k not in (Variable.SWEEP_STORAGE, Variable.PROGRESS)}
    threads = max(1, (os.cpu_count() or 1) // opened.sweep.workers)
    return (
        {"OMP_NUM_THREADS": str(threads)}
        | given
        | {
            Variable.SWEEP: opened.tracked,
            Variable.TRIAL: trial,
            Variable.HOME: str(home()),
            Variable.STATE: str(state_root()),
            "PYTHONUNBUFFERED": "1",
        }
    )


def newest(run: Run) -> RunRecord | None:
    """The record of the run's last start."""
    return newest_record(lambda record: True, prefix=f"{run.folder.name}-{run.label}-")


def finished(run: Run) -> RunRecord | None:
    """The record of a finished run, with all that it wrote in place."""
    record = newest(run)
    done = record is not None and record.status == "finished"
    return record if done and (run.out / "report").exists() else None


def _show(run: Run, record: RunRecord) -> None:
    """The run's live metrics in its own folder, whole after whatever ends it."""
    link = run.out / METRICS
    if record.metrics_file.exists() and not link.exists():
        link.symlink_to(os.path.relpath(record.metrics_file, run.out))
        write_json(run.out / "run.json", {"record": str(record.folder), "words": run.words})


def clear(run: Run, *, keep: bool) -> None:
    """Without the model, if it is not wanted, and without what the run would resume from."""
    record = newest(run)
    if record is not None:
        _show(run, record)
    if not keep:
        shutil.rmtree(run.out / "model", ignore_errors=True)
        for state in state_root().glob(f"{run.folder.name}-{run.label}-*"):
            shutil.rmtree(state, ignore_errors=True) if state.is_dir() else state.unlink(missing_ok=True)


def _last_words(log: Path, code: int) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines[-30:] if line.startswith("error: ")]
    return (errors or lines or [""])[-1] or f"exit status {code}"
