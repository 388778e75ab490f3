"""How every stage starts and ends: parameters, resume state, the record mirrored to MLflow, errors.

A stage is `python -m mathrl.stages.<stage>`, called alike by `dvc repro`, a flow and a sweep; it does not
know by whom. It leaves a record in home()/records: run.json, metrics.jsonl and artifacts/, which
`mathrl.tracking.mirror` uploads; stages themselves import no tracker.
"""

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError, exit_on_user_error, without_logins
from mathrl.core.exit_status import EXIT_INTERRUPTED, EXIT_STOPPED
from mathrl.core.files import remove_leftovers, write_json
from mathrl.core.hashing import digest, digest_path
from mathrl.core.hosts import launch_on_hosts
from mathrl.core.launch import rank
from mathrl.core.metrics import JsonlSink
from mathrl.core.mirroring import mirroring
from mathrl.core.paths import code_version, home, state_root, workspace_preset
from mathrl.params import Params, load_params, stage_params
from mathrl.params.schema import READS, STAGES


@dataclass
class StageRun:
    """What a stage's work is given.

    `params` shows only the sections that dvc.yaml names for the stage; `state` is an absolute folder that
    survives a kill and is found again by the same stage with the same parameters and inputs; what is put
    into `artifacts` (pictures, tables) goes to MLflow.
    """

    name: str
    params: Params
    state: Path
    record: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def artifacts(self) -> Path:
        return self.record / "artifacts"

    def open_metrics(self, resume_after: int | None = None) -> JsonlSink:
        """The live metrics file; `resume_after` is the step of the checkpoint that the run goes on from."""
        return JsonlSink(self.record / "metrics.jsonl", resume_after=resume_after)

    def summary(self, figures: Mapping[str, float]) -> None:
        """Final figures, shown with the MLflow run."""
        self._note(summary={**self.facts.get("summary", {}), **figures})

    def dataset(self, name: str, path: Path, digest: str = "") -> None:
        """An input of the run that MLflow shows as a dataset, with its digest, if it is not its file's."""
        each = {"path": str(path), "digest": digest or digest_path(path)}
        self._note(datasets={**self.facts.get("datasets", {}), name: each})

    def measured(self, models: Mapping[str, Path], dataset: str) -> None:
        """The summary's figures LABEL/… are of these model folders, on the dataset of this name."""
        self._note(measured={"models": {name: str(path) for name, path in models.items()}, "dataset": dataset})

    def health(self, report: Mapping[str, Any]) -> None:
        """What `mathrl.health.watch` says of the run so far; the flow and MLflow show it live."""
        self._note(health=report)

    def _note(self, **facts: Any) -> None:
        self.facts.update(facts)
        if rank() == 0:
            write_json(self.record / "run.json", self.facts)


def run_stage(
    name: str,
    work: Callable[[StageRun], None],
    *,
    inputs: Sequence[str | Path],
    outputs: Sequence[str | Path],
    overrides: Sequence[str] = (),
    step: str | None = None,
    before: Callable[[Params], None] = lambda params: None,
) -> None:
    """Run `work` as the stage `name` and end the process: 0, 2 for a user's error, 75 when it was stopped
    and can go on, 130 for Ctrl-C.

    As a recipe's step (`step`: recipe/name) it has that name in the records, and dotted overrides of params/.

    `before` is called before the inputs are looked at, at every rank.

    Every rank of the stage calls this; ranks above 0 leave locks, records and clean-up to rank 0.
    """
    if rank() == 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_STOPPED))  # trainers put a gentler one over it
    paths = [Path(i) for i in inputs], [Path(o) for o in outputs]
    try:
        exit_on_user_error(lambda: _run(name, work, *paths, overrides, step, before))
    except KeyboardInterrupt:
        print(f"{step or name}: stopped; start it again and it goes on", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _run(
    name: str,
    work: Callable[[StageRun], None],
    inputs: list[Path],
    outputs: list[Path],
    overrides: Sequence[str],
    step: str | None,
    before: Callable[[Params], None],
) -> None:
    params = stage_params(name, overrides)
    hostfile = params.training.deepspeed.hostfile if "training" in READS[name] else None
    status = launch_on_hosts(hostfile) if hostfile else None
    if status is not None:
        sys.exit(status)
    before(params)
    given = {str(path): digest_path(_present(path, name)) for path in inputs}
    shown = load_params(overrides=overrides).model_dump(mode="json", by_alias=True)
    own = {section: shown[section] for section in READS[name]}
    key = digest([step or name, own, given])
    label = (step or name).replace("/", "-")
    state = state_root() / f"{label}-{key}"
    state.mkdir(parents=True, exist_ok=True)
    if rank() != 0:
        # Rank 0 writes the record; under another launcher its place is not told.
        work(StageRun(name, params, state, Path(Variable.RECORD.get() or os.devnull)))
        return
    with _only_one(state, name):
        for path in outputs:
            remove_leftovers(path)
        record = _open_record(label, key)
        os.environ[Variable.RECORD] = str(record)
        run = StageRun(name, params, state, record)
        recipe = step.split("/")[0] if step else None
        every = load_params().model_dump(mode="json", by_alias=True) if step else shown
        every = {section: every[section] for stage in STAGES for section in READS[stage]}
        run._note(
            stage=name, name=step or name, recipe=recipe, preset=workspace_preset(), key=key,
            status="running", pid=os.getpid(), host=socket.gethostname(), started=time.time(), params=own,
            pipeline=digest([recipe, every] if recipe else every), pipeline_params=every, git=code_version(),
            inputs=given, outputs={}, workspace=str(Path.cwd()),
            prefect_flow_run=Variable.FLOW_RUN.get(),
            sweep=Variable.SWEEP.get(), trial=Variable.TRIAL.get(),
        )  # fmt: skip
        with mirroring():
            try:
                work(run)
            except BaseException as error:
                said = without_logins(str(error)) or type(error).__name__
                with suppress(OSError):  # a disk that is full already ended it
                    run._note(status=_status(error), ended=time.time(), error=said)
                raise
            # First: a checkpoint that outlives a finished record is resumed without the rows before it.
            shutil.rmtree(state)
            run._note(status="finished", ended=time.time(), outputs=_digests(outputs))


def _digests(outputs: list[Path]) -> dict[str, str]:
    """Of every output, and of what a data or step folder holds, which later stages name as their inputs."""
    folders = [path for path in outputs if path.parts[0] in ("data", "pipelines") and path.is_dir()]
    parts = [part for folder in folders for part in folder.iterdir()]
    return {str(path): digest_path(path) for path in [*outputs, *sorted(parts)]}


def _present(path: Path, stage: str) -> Path:
    if not path.exists():
        raise UserError(f"{path}: not there yet; `mathrl run {stage}` or `dvc repro {stage}` makes it first")
    return path


@contextmanager
def _only_one(state: Path, name: str) -> Iterator[None]:
    lock = FileLock(state.with_suffix(".lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        if Variable.FLOW_RUN.get():
            _wait_for_the_other(lock, name)
        raise UserError(
            f"stage {name} with these parameters and inputs is running already ({state}); wait for it or stop it"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _wait_for_the_other(lock: FileLock, name: str) -> NoReturn:
    """Wait until another flow has run this very stage, and end with 75: the flow starts DVC again, which then
    has the outputs in its cache."""
    print(f"{name}: another run makes the same; waiting for it", file=sys.stderr, flush=True)
    lock.acquire(timeout=-1)
    lock.release()
    sys.exit(EXIT_STOPPED)


def _open_record(name: str, key: str) -> Path:
    """The record of an unfinished run of this key, so that a resumed run stays one run, or a new one."""
    root = home() / "records"
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        record = root / f"{name}-{key}-{number}"
        try:
            finished = json.loads((record / "run.json").read_text())["status"] == "finished"
        except (FileNotFoundError, json.JSONDecodeError):
            finished = False
        if not finished:
            (record / "artifacts").mkdir(parents=True, exist_ok=True)
            return record
    raise UserError(f"{root}: ten thousand runs of {name}-{key}; remove old ones")


def _status(error: BaseException) -> str:
    stopped = isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemExit) and error.code in (EXIT_STOPPED, EXIT_INTERRUPTED)
    )
    return "stopped" if stopped else "failed"
