"""How every stage starts and ends: parameters, resume state, the record mirrored to MLflow, errors.

A stage is `python -m mathrl.stages.<stage>`, called alike by `dvc repro`, a flow and a sweep; it does not
know by whom. It leaves a record (`mathrl.core.records`), which `mathrl.tracking.mirror` uploads; stages
themselves import no tracker.
"""

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from mathrl.compose import load_params
from mathrl.compose.changes import changed_since_commit
from mathrl.compose.load import read_layers
from mathrl.core.code_values import stage_code
from mathrl.core.environment import Variable, rank, wait_without_spinning
from mathrl.core.errors import EXIT_INTERRUPTED, EXIT_STOPPED, UserError, exit_on_user_error, without_logins
from mathrl.core.files import release, remove_leftovers
from mathrl.core.gpus import gpu_count, use_expandable_segments
from mathrl.core.guard import process_start
from mathrl.core.hashing import digest, digest_path
from mathrl.core.metrics import JsonlSink
from mathrl.core.mirroring import while_mirroring
from mathrl.core.paths import code_version, state_root, typed_overrides, workspace_groups, workspace_preset
from mathrl.core.records import Evaluated, RunRecord, Status, open_record, read_record, records_folder
from mathrl.core.types import Problem
from mathrl.params import Params, stage_params
from mathrl.params.load import FOLDER, read_yaml
from mathrl.params.rollout import Rollout
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import READS, STAGES, hands_over, trains
from mathrl.params.train import Rl
from mathrl.params.training import Trl
from mathrl.planning.final_values import check_final_values, verdict
from mathrl.rollout.launch import RankFailed, listen_on_loopback, process_count, receive_signals, run_ranks


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
    record: RunRecord
    typed: Sequence[str] = ()
    """What a person typed for this run: overrides such as "rl.max_tokens=64"."""

    @property
    def artifacts(self) -> Path:
        return self.record.artifacts

    @property
    def metrics_file(self) -> Path:
        return self.record.metrics_file

    @property
    def rollouts(self) -> Path:
        """Folder of the rollouts that the run keeps."""
        return self.record.rollouts

    def open_metrics(self, resume_after: int | None = None) -> JsonlSink:
        """The live metrics file; `resume_after` is the step of the checkpoint that the run resumes from."""
        return JsonlSink(self.metrics_file, resume_after=resume_after)

    def check_lengths(
        self, problems: Sequence[Problem], tokenizer: Callable[[], Any], few_shot: Sequence[Problem] = ()
    ) -> None:
        """Check that the prompts and the answers of the problems fit the lengths of the stage (data/lengths.py).

        Args:
            tokenizer: Called only for a pretrained model.

        Raises:
            UserError: more than a tenth do not fit a length that nobody typed for this run.
        """
        if not isinstance(self.params.model.base, PretrainedModel):
            return
        from mathrl.data.lengths import length_doubts  # transformers

        refused, warned = verdict(length_doubts(self.params, self.name, problems, tokenizer(), few_shot), self.typed)
        if refused:
            raise UserError("; ".join(refused))
        if rank() == 0:
            for line in warned:
                print(f"warning: {line}", file=sys.stderr, flush=True)

    def summary(self, figures: Mapping[str, float]) -> None:
        """Final figures, shown with the MLflow run."""
        self._record(summary={**self.record.summary, **figures})

    def record_resolved(self, rollout: Rollout, rl: Rl | None = None) -> None:
        """What was chosen for this machine where the parameters leave it open."""
        chosen: dict[str, Any] = {"rollout.engine": rollout.engine}
        if rollout.engine == "vllm" and rollout.vllm.max_model_length is not None:
            chosen["rollout.vllm.max_model_length"] = rollout.vllm.max_model_length
        if rl is not None:
            chosen["rl.importance"] = rl.importance and rl.importance.model_dump()
        self._record(resolved=chosen)

    def dataset(self, name: str, path: Path, digest: str = "") -> None:
        """An input of the run that MLflow shows as a dataset, by default with the digest of its file."""
        dataset = {"path": str(path), "digest": digest or digest_path(path)}
        self._record(datasets={**self.record.datasets, name: dataset})

    def datasets(self, name: str, files: Sequence[Path]) -> None:
        """Inputs of one kind; several are told apart by their places: mixture/easy/train, mixture/hard/train."""
        for file in files:
            self.dataset(name if len(files) == 1 else "/".join([name, *file.parts[-2:-1], file.stem]), file)

    def record_measured(self, models: Mapping[str, Path], dataset: str) -> None:
        """The summary's figures LABEL/… are of these model folders, on the dataset of this name."""
        folders = {label: str(path) for label, path in models.items()}
        self._record(measured=Evaluated(models=folders, dataset=dataset))

    def health(self, report: Mapping[str, Any]) -> None:
        """What `mathrl.health.watch` reports of the run so far; the flow and MLflow show it live."""
        self._record(health=report)

    def _record(self, **changes: Any) -> None:
        if rank() == 0:
            self.record.update(**changes)


@dataclass(frozen=True)
class _Stage:
    """A stage with its work and files; as a recipe's step (`step`: recipe/name) with overrides of params/."""

    name: str
    work: Callable[[StageRun], None]
    inputs: Sequence[Path]
    outputs: Sequence[Path]
    overrides: Sequence[str]
    step: str
    before: Callable[[Params], None]

    @property
    def title(self) -> str:
        return self.step or self.name

    @property
    def label(self) -> str:
        """Names its state and records."""
        return self.title.replace("/", "-")

    @property
    def recipe(self) -> str | None:
        return self.step.split("/")[0] if self.step else None


def run_stage(
    name: str,
    work: Callable[[StageRun], None],
    *,
    inputs: Sequence[str | Path],
    outputs: Sequence[str | Path],
    overrides: Sequence[str] = (),
    step: str = "",
    before: Callable[[Params], None] = lambda params: None,
) -> None:
    """Run `work` as the stage `name` and end the process: 0, 2 for a user's error, 75 when it was stopped
    and can resume, 130 for Ctrl-C.

    As a recipe's step (`step`: recipe/name) it has that name in the records, and dotted overrides of params/.

    `before` is called before the inputs are looked at, at every rank.

    The ranks on this machine are started here, and only `work` runs in them. Under torchrun every rank calls this;
    ranks above 0 leave locks, records and clean-up to rank 0.
    """
    wait_without_spinning()
    if rank() == 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_STOPPED))  # trainers put a gentler one over it
    else:
        receive_signals()
    paths = tuple(map(Path, inputs)), tuple(map(Path, outputs))
    stage = _Stage(name, work, *paths, tuple(overrides), step, before)
    try:
        exit_on_user_error(lambda: _run(stage))
    except KeyboardInterrupt:
        print(f"{stage.title}: stopped; start it again to resume", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _run(stage: _Stage) -> None:
    resolved = load_params(overrides=stage.overrides)
    params = stage_params(resolved, stage.name)
    typed = _typed_overrides(stage)
    check_final_values(params, [stage.name], typed)
    if trains(stage.name, params) and not hands_over(stage.name, params) and params.run.device != "cpu" and gpu_count():
        use_expandable_segments()
    listen_on_loopback(stage.name, params)
    stage.before(params)
    inputs = {str(path): digest_path(_present(path, stage.name)) for path in stage.inputs}
    sections = resolved.model_dump(mode="json", by_alias=True)
    own_sections = {section: sections[section] for section in READS[stage.name]}
    key = resume_key(stage.title, own_sections, inputs)
    state = state_root() / f"{stage.label}-{key}"
    if rank() != 0:
        state.mkdir(parents=True, exist_ok=True)
        # Rank 0 writes the record; its folder is not known here.
        stage.work(StageRun(stage.name, params, state, RunRecord(Path(Variable.RECORD.get() or os.devnull)), typed))
        return
    with _hold_lock(state, stage.name):
        state.mkdir(parents=True, exist_ok=True)
        for path in stage.outputs:
            remove_leftovers(path)
        record = open_record(stage.label, key)
        os.environ[Variable.RECORD] = str(record.folder)
        record.update(params=own_sections, key=key, inputs=inputs, **_origin(stage, sections))
        with while_mirroring():
            _work(stage, StageRun(stage.name, params, state, record, typed))


def _typed_overrides(stage: _Stage) -> Sequence[str]:
    """What a person typed for this run: of a recipe's step the overrides of its file, and not the recipe's own."""
    file = FOLDER / "recipes" / f"{stage.recipe}.yaml"
    if stage.recipe is not None and file.exists():
        return read_yaml(file).get("overrides") or ()
    return () if stage.recipe is not None else typed_overrides()


def resume_key(title: str, sections: Mapping[str, dict[str, Any]], inputs: Mapping[str, str]) -> str:
    """The digest of what a run must have in common with an interrupted one to resume it: all but run.processes."""
    if "run" in sections:
        seed_and_device = {name: value for name, value in sections["run"].items() if name != "processes"}
        sections = {**sections, "run": seed_and_device}
    return digest([title, sections, inputs])


def _work(stage: _Stage, run: StageRun) -> None:
    """Do the stage's work, in ranks if it has several, and finish its record."""
    learns, samples = trains(stage.name, run.params), "rollout" in READS[stage.name]
    ranks = (learns or samples) and not hands_over(stage.name, run.params)
    processes = process_count(run.params.run, fewer=not learns) if ranks else 1
    by_trl = stage.name in ("sft", "rl") and isinstance(getattr(run.params, stage.name).engine, Trl)
    if processes > 1:
        try:
            try:
                run_ranks(
                    processes,
                    lambda: exit_on_user_error(lambda: _record_work(stage, run)),
                    run.record.folder / "ranks",
                    import_models=not by_trl,
                )
            finally:
                run.record = read_record(run.record.folder) or run.record  # rank 0 has written to it
        except RankFailed as failed:
            run.record.update(status="failed", ended=time.time(), error=failed.message)
            raise
        except (KeyboardInterrupt, SystemExit) as error:
            if run.record.status == "running":  # rank 0 was killed before it could say so
                run.record.update(status=_status(error), ended=time.time())
            raise
    else:
        _record_work(stage, run)
    # First: a checkpoint that outlives a finished record is resumed without the rows before it.
    shutil.rmtree(run.state)
    run.record.update(status="finished", ended=time.time(), outputs=_digests(stage.outputs))


def _record_work(stage: _Stage, run: StageRun) -> None:
    """Do the stage's work in this process; its record says how that failed, if it does."""
    try:
        stage.work(run)
    except BaseException as error:
        message = without_logins(str(error)) or type(error).__name__
        with suppress(OSError):  # a disk that is full already ended it
            run._record(status=_status(error), ended=time.time(), error=message)
        raise


def _origin(stage: _Stage, sections: Mapping[str, Any]) -> dict[str, Any]:
    """What the record says of where, when and by whom a stage is run.

    The parameters of the whole pipeline, by which runs belong together, are without a step's overrides.
    """
    if stage.step:
        sections = load_params().model_dump(mode="json", by_alias=True)
    pipeline = {section: sections[section] for name in STAGES for section in READS[name]}
    trial = read_record(records_folder() / Variable.TRIAL.get()) if Variable.TRIAL.get() else None
    return {
        "stage": stage.name,
        "name": stage.title,
        "recipe": stage.recipe,
        "preset": workspace_preset(),
        "groups": workspace_groups(),
        "composition": read_layers().experiment_values(),
        "status": "running",
        "started": time.time(),
        "pid": os.getpid(),
        "pid_start": process_start(os.getpid()),
        "host": socket.gethostname(),
        "workspace": str(Path.cwd()),
        "git": code_version(),
        "code": stage_code(stage.name),
        "pipeline": digest([stage.recipe, pipeline] if stage.recipe else pipeline),
        "pipeline_params": pipeline,
        "changed": changed_since_commit(pipeline, workspace_preset(), groups=workspace_groups()),
        "prefect_flow_run": Variable.FLOW_RUN.get(),
        "sweep": trial.sweep if trial else "",
        "trial": Variable.TRIAL.get(),
    }


def _digests(outputs: Sequence[Path]) -> dict[str, str]:
    """Digests of every output, and of what a data or step folder holds, which later stages name as inputs."""
    folders = [path for path in outputs if path.parts[0] in ("data", "pipelines") and path.is_dir()]
    parts = [part for folder in folders for part in folder.iterdir()]
    return {str(path): digest_path(path) for path in [*outputs, *sorted(parts)]}


def _present(path: Path, stage: str) -> Path:
    if not path.exists():
        raise UserError(f"{path}: missing; run `mathrl run {stage}` or `dvc repro {stage}` first")
    return path


@contextmanager
def _hold_lock(state: Path, stage: str) -> Iterator[None]:
    """Hold the lock of the state folder, a file beside it that goes with the last holder.

    Raises:
        UserError: another process holds it.
        SystemExit: another flow held it, and has run this stage meanwhile.
    """
    file = state.with_name(f"{state.name}.lock")  # names have dots: `with_suffix` would cut recipes' names off
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        if Variable.FLOW_RUN.get():
            _wait_for_other_flow(lock, stage)
        raise UserError(
            f"stage {stage} is already running with these parameters and inputs ({state}); wait for it or stop it"
        ) from None
    try:
        yield
    finally:
        release(lock)


def _wait_for_other_flow(lock: FileLock, stage: str) -> NoReturn:
    """Wait until another flow has run this very stage, and end with 75: the flow starts DVC again, which then
    has the outputs in its cache."""
    print(f"{stage}: another flow is running this stage; waiting for it to end", file=sys.stderr, flush=True)
    lock.acquire(timeout=-1)
    release(lock)
    sys.exit(EXIT_STOPPED)


def _status(error: BaseException) -> Status:
    stopped = isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemExit) and error.code in (EXIT_STOPPED, EXIT_INTERRUPTED)
    )
    return "stopped" if stopped else "failed"
