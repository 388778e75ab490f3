"""Steps that do not depend on one another, at the same time: one `dvc repro --single-item` each.

DVC reads, hashes and writes its lock files one process at a time, and lets the others in while a stage runs.
"""

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.runtime import task_run

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.gpus import gpu_count
from tasks.concurrency import slot
from tasks.dvc_output import ADVICE
from tasks.live_progress import LiveProgress
from tasks.repro import Repro, running
from tasks.stages import RETRIES, RETRY_SECONDS, was_preempted

GPUS = "CUDA_VISIBLE_DEVICES"


class Steps:
    """The steps of a DVC file, at most `jobs` of them at a time; with GPUs, each on some of its own.

    Not a dataclass: Prefect looks into those for futures.
    """

    def __init__(
        self, workspace: Path, file: str, env: Mapping[str, str], show: Callable[[str], None], places: Sequence[str]
    ) -> None:
        self.workspace, self.file, self.env, self.show = workspace, file, dict(env), show
        self.places = Queue[str]()
        for gpus in places:
            self.places.put(gpus)
        self.live: set[Repro] = set()
        self.ending, self.lock = False, threading.Lock()

    def run(self, step: str) -> str:
        """Run the step when a place is free: "ran" or "skipped".

        Raises:
            Preempted: it was stopped from outside and can resume.
            UserError: it failed, or the run is ending.
        """
        gpus = self.places.get()
        try:
            show = Prefixed(step, self.show, self.lock)
            with slot(show):
                return self._follow(step, gpus, show)
        finally:
            self.places.put(gpus)

    def _follow(self, step: str, gpus: str, show: Callable[[str], None]) -> str:
        progress = f"{self.env[Variable.PROGRESS]}-{step}"
        env = self.env | {Variable.PROGRESS: progress} | ({GPUS: gpus} if gpus else {})
        with self.lock:
            if self.ending:
                raise UserError(f"{step}: not started, because the run is ending")
            repro = Repro(self.workspace, f"{self.file}:{step}", env, show, single=True, wait_for_lock=True)
            self.live.add(repro)
        live = LiveProgress(step, Path(progress))
        with running(repro):
            outcome = repro.follow(step, live.refresh)
            repro.finish(step)
        if outcome == "ran":
            live.finish()
        return outcome

    def stop(self) -> None:
        """Start no further step and end those that run."""
        with self.lock:
            self.ending = True
        for repro in list(self.live):
            repro.stop()


class Prefixed:
    """Complete lines with the step's name in front, so that the output of steps at the same time can be told apart."""

    def __init__(self, step: str, show: Callable[[str], None], lock: threading.Lock) -> None:
        self.step, self.show, self.lock, self.tail = step, show, lock, ""

    def __call__(self, text: str) -> None:
        *lines, self.tail = (self.tail + text).split("\n")
        # Without DVC's advice, and bars that redraw themselves.
        lines = [line for line in lines if line.strip() and "\r" not in line and not line.startswith(ADVICE)]
        with self.lock:
            for line in lines:
                self.show(f"{self.step}: {line}\n")


@task(cache_policy=NO_CACHE, retries=RETRIES, retry_delay_seconds=list(RETRY_SECONDS), retry_condition_fn=was_preempted)
def run_step(step: str, steps: Steps) -> str:
    """Run one step; started again after a preemption, it resumes."""
    if task_run.run_count and task_run.run_count > 1:
        steps.show(f"{step}: stopped before it was done, without an error; starting it again, it resumes\n")
    return steps.run(step)


def run_at_once(steps: Steps, needs: Mapping[str, Sequence[str]], ended: Callable[[str, str], None]) -> None:
    """Run every step as soon as those that it `needs` have run; `ended` is called with each step and its outcome.

    Steps that do not need a failed one run to their end.

    Raises:
        UserError: the first failed step's.
    """
    futures: dict[str, PrefectFuture[Any]] = {}
    try:
        for step, before in needs.items():
            named, earlier = run_step.with_options(task_run_name=step), [futures[other] for other in before]
            futures[step] = named.submit(step, steps, return_state=False, wait_for=earlier)
        for future in futures.values():
            future.wait()
        for step, future in futures.items():
            ended(step, future.result())
    finally:
        steps.stop()


def needed_steps(stages: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, list[str]], set[str]]:
    """The steps of a DVC file that each one needs, and what they need that none of them makes.

    >>> a = {"deps": ["data/curated/rl.jsonl"], "outs": ["p/a"]}
    >>> needed_steps({"a": a, "b": {"deps": ["p/a/model"], "outs": ["p/b"]}})
    ({'a': [], 'b': ['a']}, {'data/curated/rl.jsonl'})
    """
    makers = outputs_of(stages)
    needs = {
        step: list(dict.fromkeys(made for dep in stage.get("deps", []) if (made := _maker(dep, makers)) is not None))
        for step, stage in stages.items()
    }
    deps = {dep for stage in stages.values() for dep in stage.get("deps", [])}
    return needs, {dep for dep in deps if _maker(dep, makers) is None}


def last_maker(stages: Mapping[str, Mapping[str, Any]], paths: Collection[str]) -> str | None:
    """The last of the stages, which need one another in their order, that makes one of the paths; None if none does.

    >>> last_maker({"a": {"outs": ["data/a"]}, "b": {"outs": ["b"]}, "c": {}}, ["data/a/x.jsonl", "b"])
    'b'
    """
    makers = outputs_of(stages)
    made = {_maker(path, makers) for path in paths}
    return next((stage for stage in reversed(list(stages)) if stage in made), None)


def outputs_of(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The stage of each output of a DVC file."""
    return {
        (out if isinstance(out, str) else next(iter(out))): step
        for step, stage in stages.items()
        for kind in ("outs", "metrics", "plots")
        for out in stage.get(kind, [])
    }


def _maker(dep: str, makers: Mapping[str, str]) -> str | None:
    return next((step for out, step in makers.items() if dep == out or dep.startswith(f"{out}/")), None)


def places(jobs: int, processes: int, gpus: Sequence[str]) -> list[str]:
    """The CUDA_VISIBLE_DEVICES of at most `jobs` steps at a time; empty texts on a machine without GPUs.

    A step has as many GPUs as it has processes; what is left over is not used.

    >>> places(4, 2, ["0", "1", "2", "3", "4"]), places(2, 8, ["0", "1"]), places(2, 2, [])
    (['0,1', '2,3'], ['0,1'], ['', ''])
    """
    if not gpus:
        return [""] * jobs
    per_job = min(processes, len(gpus))
    return [",".join(gpus[n * per_job : (n + 1) * per_job]) for n in range(min(jobs, len(gpus) // per_job))]


def side_by_side(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of steps that share the processor's cores: a thread that waits for others gives up its core.

    By default OpenMP's threads wait in a loop, so that two steps take the cores from each other and hardly advance. The
    number of threads stays, and with it every bit of the results.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", **env}


def visible_gpus() -> list[str]:
    """The names of the GPUs that this process sees, as CUDA_VISIBLE_DEVICES has them."""
    count, named = gpu_count(), os.environ.get(GPUS)
    return [name.strip() for name in named.split(",")][:count] if named else [str(number) for number in range(count)]
