"""Tasks of a datatrove pipeline, on this machine or under Slurm.

Each completed task leaves a marker, so that a killed run repeats only the tasks that were not complete.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from threading import Thread
from typing import Any

import multiprocess
from datatrove.executor.base import PipelineExecutor
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from loguru import logger

from mathrl.core.errors import UserError
from mathrl.curation.processes import cores
from mathrl.params.pages import Executor, SlurmExecutor

_running: set[int] = set()  # this process, while its executor runs
USER_ERROR = f"{UserError.__module__}.{UserError.__qualname__}: "


class _Local(LocalPipelineExecutor):  # type: ignore[misc]
    """datatrove's local executor, whose tasks write to their log files and not to the terminal."""

    def run(self) -> Any:
        _running.add(os.getpid())
        try:
            return super().run()
        finally:
            _running.discard(os.getpid())

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> Any:
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
            try:
                return super()._run_for_rank(rank, local_rank, node_rank)
            finally:
                logger.remove()  # datatrove adds one that writes to `nowhere`


def _watch_parent() -> None:
    """In a process that the executor forks, the manager of its queue: end it when the executor is gone."""
    parent = os.getppid()
    if parent in _running:
        Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


os.register_at_fork(after_in_child=_watch_parent)


def run_tasks(steps: Sequence[PipelineStep], tasks: int, executor: Executor, folder: Path) -> None:
    """Run the steps for the ranks 0 to `tasks` - 1 and wait for them; logs and markers are in `folder`.

    Raises:
        UserError: a task ended with one, or a cluster did not complete all tasks.
    """
    runner = _runner(list(steps), tasks, executor, folder)
    logger.remove()  # datatrove's account of itself; that of the tasks stands in folder/logs
    try:
        runner.run()
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        if executor.type != "slurm":
            raise
        raise UserError(_failure(folder) or f"sbatch failed ({error}); see {folder / 'slurm_logs'}") from None
    finally:
        logger.remove()
    missing = runner.get_incomplete_ranks()
    if missing:
        raise UserError(
            _failure(folder)
            or f"{len(missing)} of {tasks} tasks were not completed, first task {missing[0]}; see {folder / 'logs'}"
        )


def _runner(steps: list[PipelineStep], tasks: int, executor: Executor, folder: Path) -> PipelineExecutor:
    if isinstance(executor, SlurmExecutor):
        return SlurmPipelineExecutor(
            steps,
            tasks=tasks,
            time=executor.time,
            partition=executor.partition,
            workers=executor.workers or -1,
            tasks_per_job=executor.files_per_job,
            cpus_per_task=executor.cpus_per_job,
            mem_per_cpu_gb=executor.gb_per_cpu,
            qos=executor.qos,
            job_name=f"mathrl-{folder.name}",
            env_command=f"export PATH={Path(sys.executable).parent}:$PATH",
            sbatch_args={**executor.sbatch, "wait": ""},  # sbatch returns when the jobs have ended
            logging_dir=str(folder),
        )
    # The server from which workers are forked imports the steps once, not every worker of every pipeline.
    multiprocess.set_forkserver_preload(["mathrl.corpus.corpus"])
    return _Local(steps, tasks=tasks, workers=min(tasks, executor.workers or cores()), logging_dir=str(folder))


def _failure(folder: Path) -> str | None:
    """The message of the first task that ended with a `UserError`, from the tasks' logs."""
    for log in sorted((folder / "logs").glob("task_*.log")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(USER_ERROR):
                return line.removeprefix(USER_ERROR)
    return None
