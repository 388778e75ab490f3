"""One trial and its record: an RL run per seed, its dev curve read while it trains, ended early by the pruner."""

import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from optuna.trial import TrialState

from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import RESUMABLE, UserError
from mathrl.core.files import write_json
from mathrl.core.guard import end_group, process_start, signal_group
from mathrl.core.hashing import digest_path
from mathrl.core.metrics import JsonlSink, complete_rows
from mathrl.core.paths import code_version, home, state_root
from mathrl.core.records import METRICS, RunRecord, Status, newest_record, records_folder
from mathrl.params.schema import STAGES
from mathrl.sweeps.space import overrides, trial_params, values_of
from mathrl.sweeps.study import ClaimedTrial, OpenStudy, TrialLost, locked_file, while_holding
from mathrl.sweeps.trainer import start_run

POLL_SECONDS, CHECK_SECONDS = 0.5, 15.0
ATTEMPTS = 3
Curve = list[tuple[int, float]]


class TrialRecord:
    """records/<study>-t<number>-<id of the study>: the trial's parameters, dev curve and outcome.

    The worker that adopts a dead worker's trial writes the same record.
    """

    def __init__(self, opened: OpenStudy, number: int) -> None:
        self.opened, self.number = opened, number
        name, _, study_id = opened.tracked.rpartition("-")
        self.record = RunRecord(records_folder() / f"{name}-t{number:04d}-{study_id}")

    def begin(self, values: Mapping[str, Any]) -> None:
        self.record.artifacts.mkdir(parents=True, exist_ok=True)
        sections, sweep = load_params().model_dump(mode="json", by_alias=True), self.opened.sweep
        files = (sweep.start, *sweep.data, sweep.dev, sweep.examples)
        self.record.update(
            stage="trial",
            name=f"{sweep.study}/t{self.number:04d}",
            key=self.record.folder.name,
            status="running",
            started=time.time(),
            pid=os.getpid(),
            pid_start=process_start(os.getpid()),
            host=socket.gethostname(),
            workspace=str(Path.cwd()),
            git=code_version(),
            params=dict(values),
            changed=dict(values),
            inputs={file: digest_path(Path(file)) for file in files},
            pipeline=self.opened.tracked,
            pipeline_params={name: sections[name] for name in STAGES} | {"sweep": sweep.model_dump(mode="json")},
            sweep=self.opened.tracked,
            prefect_flow_run=Variable.FLOW_RUN.get(),
        )
        self.metrics = JsonlSink(self.record.metrics_file, resume_after=sys.maxsize)

    def report(self, step: int, accuracy: float) -> None:
        self.metrics.log(step, {"dev/accuracy": accuracy})

    def end(self, status: Status, outcome: str, **more: Any) -> None:
        """`outcome` says in words how the trial ended; `more` are other fields of its record."""
        self.record.update(status=status, outcome=outcome, ended=time.time(), **more)


class Interrupted(Exception):
    """The worker was asked to stop: the trial stays unfinished, and resumes at the next claim."""


class RunFailed(Exception):
    """A run ended with an error; the message is the last line of its output."""


@dataclass(frozen=True)
class TrialRun:
    """One RL run in the study's folder: its label, the arguments of its command, and the record of its trial."""

    folder: Path
    label: str
    arguments: tuple[str, ...]
    trial: str

    @property
    def out(self) -> Path:
        return self.folder / self.label


def rl_run(opened: OpenStudy, label: str, values: dict[str, Any], seed: int, trial: str) -> TrialRun:
    sweep = opened.sweep
    arguments = ["--start", sweep.start, "--dev", sweep.dev, "--examples", sweep.examples]
    for file in sweep.data:
        arguments += ["--data", file]
    for override in (*overrides(sweep, values), f"run.seed={seed}"):
        arguments += ["--set", override]
    return TrialRun(opened.folder, label, tuple(arguments), trial)


def run_trial(opened: OpenStudy, claimed: ClaimedTrial, stop_requested: Callable[[], bool]) -> str:
    """Run a claimed trial to its end and report it to the study; returns a line with its outcome.

    Raises:
        Interrupted: `stop_requested` became true; the trial is left for the next claim.
        TrialLost: another worker has taken over the trial; its trainer here is ended.
    """
    trial = claimed.trial
    values = values_of(opened.sweep.space, trial.params, opened.present, trial.number)
    record = TrialRecord(opened, trial.number)
    with while_holding(claimed):
        trial.set_user_attr("values", values)
        record.begin(values)
    try:
        scores = _all_seeds(opened, claimed, values, record, stop_requested)
        with while_holding(claimed):
            if scores is None:
                opened.study.tell(trial, state=TrialState.PRUNED)
                record.end("finished", "ended early")
                outcome = "ended early"
            else:
                mean = sum(scores) / len(scores)
                opened.study.tell(trial, mean)
                record.end("finished", "complete", summary={"dev/accuracy": mean})
                outcome = f"dev accuracy {mean:.4f}"
    except RunFailed as failed:
        with while_holding(claimed):
            trial.set_user_attr("error", str(failed)[:2000])
            opened.study.tell(trial, state=TrialState.FAIL)
            record.end("failed", "failed", error=str(failed))
        outcome = f"failed: {failed}"
    except Interrupted:
        with suppress(TrialLost), while_holding(claimed):
            record.end("stopped", "unfinished")
        raise
    finally:
        claimed.lock.close()
    return f"trial {trial.number}: {outcome}  ({', '.join(f'{k}={v}' for k, v in values.items())})"


def _all_seeds(
    opened: OpenStudy,
    claimed: ClaimedTrial,
    values: dict[str, Any],
    record: TrialRecord,
    stop_requested: Callable[[], bool],
) -> list[float] | None:
    """The score of every seed; None if the trial was ended early."""
    trial = claimed.trial

    def check() -> None:
        with while_holding(claimed):
            pass

    try:
        first = trial_params(opened.sweep, values).run.seed
    except UserError as error:
        raise RunFailed(f"these values are not valid together: {error}") from None
    reported = set(opened.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
    scores: list[float] = []
    last = opened.steps * opened.sweep.seeds
    for place in range(opened.sweep.seeds):

        def prune(curve: Curve, place: int = place) -> bool:
            """Report the new part of the curve; whether the pruner ends the trial. Trial 0 is never ended."""
            for length in range(1, len(curve) + 1):
                step = place * opened.steps + curve[length - 1][0]
                if step in reported:
                    continue
                reported.add(step)
                value = (sum(scores) + score(curve[:length], opened.sweep.evaluations)) / (place + 1)
                with while_holding(claimed):
                    record.report(step, value)
                    trial.report(value, step)
                if trial.number and step < last and trial.should_prune():
                    return True
            return False

        run = rl_run(opened, f"t{trial.number:04d}-s{first + place}", values, first + place, record.record.folder.name)
        try:
            curve = execute(run, opened, stop_requested, prune, check)
        except RunFailed:
            clear(run, keep=False)  # no claim resumes it
            raise
        if curve is None:
            return None
        scores.append(score(curve, opened.sweep.evaluations))
        with while_holding(claimed):
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
    """[(step, dev accuracy)] of a metrics.jsonl that may be growing."""
    rows = complete_rows(file)
    return [(row["step"], row["dev/accuracy"]) for row in rows if math.isfinite(row.get("dev/accuracy", math.nan))]


def execute(
    run: TrialRun,
    opened: OpenStudy,
    stop_requested: Callable[[], bool],
    prune: Callable[[Curve], bool],
    check: Callable[[], None],
) -> Curve | None:
    """Run RL to its end, or resume it; returns its dev curve, or None if `prune` ended it early.

    A run that was finished before a worker died is not run again, and a trainer that outlives its worker is waited
    for. `check` is called every CHECK_SECONDS, and at the end.

    Raises:
        Interrupted: `stop_requested` became true; the run resumes at its next start.
        TrialLost: `check` or `prune` noticed that another worker holds the trial.
        RunFailed: the run ended with an error.
    """
    for _ in range(ATTEMPTS):
        while (lock := locked_file(run.folder / "locks" / run.label)) is None:
            if stop_requested():
                raise Interrupted
            time.sleep(POLL_SECONDS)
        if (record := finished_record(run)) is None:
            code = _attempt(run, lock, stop_requested, prune, check)
            check()  # before removing files that may belong to another worker
            if code is None:
                clear(run, keep=False)
                return None
            if code in RESUMABLE:
                continue
            if code:
                raise RunFailed(_last_error(run.out / "log.txt", code))
            record = finished_record(run)
        if record is None:
            raise RunFailed(f"{run.out} has no finished record")
        curve = dev_curve(record.metrics_file)
        if not curve:
            raise RunFailed("no dev evaluation; are there dev problems?")
        if prune(curve):
            clear(run, keep=False)
            return None
        clear(run, keep=opened.sweep.keep_models)
        return curve
    raise RunFailed(f"stopped or killed {ATTEMPTS} times, not by the sweep; did memory run out?")


def _attempt(
    run: TrialRun,
    lock: IO[bytes],
    stop_requested: Callable[[], bool],
    prune: Callable[[Curve], bool],
    check: Callable[[], None],
) -> int | None:
    """Run it once, while its processes hold `lock`; its exit status, or None if `prune` ended it."""
    run.out.mkdir(parents=True, exist_ok=True)
    began = checked = time.time()
    with lock, (run.out / "log.txt").open("ab") as log:
        child = start_run([str(run.out), *run.arguments], _environment(run.trial), log, lock)
    assert child.pid is not None
    try:
        while (code := child.exitcode) is None:
            if abs(time.time() - checked) > CHECK_SECONDS:
                check()
                checked = time.time()
            if stop_requested():
                raise Interrupted
            record = newest(run)
            if record is not None and record.started >= began:
                _show(run, record)
                if prune(dev_curve(record.metrics_file)):
                    return None
            child.join(POLL_SECONDS)
        return code if code >= 0 else 128 - code
    except TrialLost:
        signal_group(child.pid, signal.SIGKILL)  # no last checkpoint: the other worker may use the folder
        raise
    finally:
        while child.exitcode is None:  # once is not enough where it had no group of its own yet
            end_group(child.pid, lambda: child.exitcode)
            child.join(POLL_SECONDS)
        if child.exitcode < 0:  # killed: its own children would outlive it
            end_group(child.pid, lambda: child.exitcode)


def _environment(trial: str) -> dict[str, str]:
    # The database's password is the worker's, the progress bar the study's.
    inherited = {k: v for k, v in os.environ.items() if k not in (Variable.SWEEP_STORAGE, Variable.PROGRESS)}
    return inherited | {Variable.TRIAL: trial, Variable.HOME: str(home()), Variable.STATE: str(state_root())}


def newest(run: TrialRun) -> RunRecord | None:
    """The record of the run's last start."""
    return newest_record(lambda record: True, prefix=f"{run.folder.name}-{run.label}-")


def finished_record(run: TrialRun) -> RunRecord | None:
    """The record of a finished run, with all that it wrote in place."""
    record = newest(run)
    done = record is not None and record.status == "finished"
    return record if done and (run.out / "report").exists() else None


def _show(run: TrialRun, record: RunRecord) -> None:
    """Link the run's live metrics into its own folder."""
    link = run.out / METRICS
    if record.metrics_file.exists() and not link.exists():
        link.symlink_to(os.path.relpath(record.metrics_file, run.out))
        write_json(run.out / "command.json", {"record": str(record.folder), "arguments": run.arguments})


def clear(run: TrialRun, *, keep: bool) -> None:
    """Remove the model unless it is to be kept, and the checkpoints."""
    record = newest(run)
    if record is not None:
        _show(run, record)
    if not keep:
        shutil.rmtree(run.out / "model", ignore_errors=True)
        for state in state_root().glob(f"{run.folder.name}-{run.label}-*"):
            shutil.rmtree(state, ignore_errors=True) if state.is_dir() else state.unlink(missing_ok=True)


def _last_error(log: Path, code: int) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines[-30:] if line.startswith("error: ")]
    return (errors or lines or [""])[-1] or f"exit status {code}"
