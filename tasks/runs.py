"""What a flow runs, and the one runner of its graph: stages of the pipeline, a recipe, the controls of an RL run.

Steps run one after another or several at a time, each a Prefect task with live progress. One after another they are
one `dvc repro`, followed step by step. At the same time each is a `dvc repro --single-item` of its own: DVC reads,
hashes and writes its lock files one process at a time, and lets the others in while a stage runs. Either way a step is
started again where it was stopped from outside, and is reported when it has ended.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, Protocol

from prefect import Task, get_run_logger, tags, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run, task_run
from pydantic import BaseModel

from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.gpus import gpu_count
from mathrl.core.mirroring import while_mirroring
from mathrl.core.paths import main_checkout
from mathrl.params.form import form_overrides
from mathrl.params.recipe_steps import DEFAULT
from mathrl.params.schema import stages_until
from mathrl.planning.final_values import ignored_settings
from mathrl.recipes.controls import write_control_recipe
from mathrl.recipes.graph import LINKED, graph_file, write_recipe_graph
from mathrl.recipes.recipe import recipe_is_judged, recipe_warnings, step_overrides
from mathrl.tasks.graph import PIPELINE, Graph, Show, follow_each, needed_steps
from mathrl.tasks.lengths import check_lengths, is_judged
from mathrl.tasks.live_progress import LiveProgress, announce_model, line_handler, name_run
from mathrl.tasks.prefect_server import slot
from mathrl.tasks.report import report_recipe, report_stages, report_step
from mathrl.tasks.repro import ADVICE, Preempted, Repro, end_with_block, environment, remove_if_half_written
from mathrl.tasks.workspace import Workspace, hold_workspace, link_inputs, prepare, prepare_recipe

GPUS = "CUDA_VISIBLE_DEVICES"
# The number of restarts of a step that was stopped from outside, and the seconds before each.
RETRIES, RETRY_SECONDS = 10, (1, 10, 60)
RESUMES = "stopped before it was done, without an error; starting it again, it resumes\n"
Ended = Callable[[Graph, str], None]


class Source(Protocol):
    """Where a step runs: gives its `dvc repro`, and the file of its progress."""

    def open(self, step: str) -> AbstractContextManager[tuple[Repro, str]]: ...


def run_graph(
    graph: Graph,
    env: Mapping[str, str],
    show: Show,
    ended: Ended,
    *,
    jobs: int = 1,
    processes: int = 1,
    live: LiveProgress | None = None,
) -> None:
    """Bring the graph's steps up to date; `ended` is called with each that ran, in its task.

    With several `jobs` as many steps run at the same time, each in a slot of its own and on as many GPUs as it has
    `processes`. `live` is the progress of the graph's main step if that is shown already (`announce`).

    Raises:
        Preempted: a step was stopped from outside, more often than it is started again.
        UserError: a step failed.
    """
    if jobs == 1:
        with slot(show):
            _run_in_turn(graph, env, show, ended, live)
        return
    if part := graph.pipeline_part:
        with slot(show):
            _run_in_turn(Graph(graph.folder, target=part), env, show, ended)
    remove_if_half_written(graph.folder, graph.file, show)
    _run_at_once(graph, AtOnce(graph, side_by_side(env), show, places_for(jobs, processes, visible_gpus())), ended)


def announce(graph: Graph, env: Mapping[str, str]) -> LiveProgress:
    """Show the progress of the graph's main step, so that a run has something to look at from its first second."""
    live = LiveProgress(graph.main_step, Path(env[Variable.PROGRESS]))
    live.announce(graph.steps[: graph.steps.index(graph.main_step)])
    return live


def _run_in_turn(
    graph: Graph, env: Mapping[str, str], show: Show, ended: Ended, announced: LiveProgress | None = None
) -> None:
    def follow(step: str, repro: Repro) -> None:
        live = announced if announced is not None and step == announced.stage else None
        source = InTurn(repro, env[Variable.PROGRESS])
        run_step.with_options(task_run_name=step)(step, source, graph, ended, live)

    follow_each(graph, env, show, follow)


def was_preempted(task: Task[..., Any], run: Any, state: Any) -> bool:
    """Whether to retry a failed task: its step was stopped, and not by the flow itself."""
    return isinstance(state.data, Preempted)


@task(cache_policy=NO_CACHE, retries=RETRIES, retry_delay_seconds=list(RETRY_SECONDS), retry_condition_fn=was_preempted)
def run_step(step: str, source: Source, graph: Graph, ended: Ended, live: LiveProgress | None = None) -> str:
    """Run one step, or go on with it after a pre-emption, and report it: "ran" or "skipped".

    `live` is the step's progress if that is shown already.
    """
    with source.open(step) as (repro, progress):
        live = live or LiveProgress(step, Path(progress))
        live.start()
        outcome = repro.follow(step, live.refresh)
    if outcome == "skipped":
        get_run_logger().info("%s: nothing changed, DVC has its outputs", step)
        live.skip()
    else:
        live.finish()
        ended(graph, step)
    return outcome


class InTurn:
    """The step of a `dvc repro` of several, which is started again if a step was stopped."""

    def __init__(self, repro: Repro, progress: str) -> None:
        self.repro, self.progress = repro, progress

    @contextmanager
    def open(self, step: str) -> Iterator[tuple[Repro, str]]:
        if self.repro.stopped:
            self.repro.show(f"{step}: {RESUMES}")
            self.repro.start()
        yield self.repro, self.progress


class AtOnce:
    """Steps each in a `dvc repro` of its own, as many at a time as there are places; with GPUs, each on its own.

    Not a dataclass: Prefect looks into those for futures.
    """

    def __init__(self, graph: Graph, env: Mapping[str, str], show: Show, places: Sequence[str]) -> None:
        self.graph, self.env, self.show = graph, dict(env), show
        self.places = Queue[str]()
        for gpus in places:
            self.places.put(gpus)
        self.live: set[Repro] = set()
        self.ending, self.lock = False, threading.Lock()

    @contextmanager
    def open(self, step: str) -> Iterator[tuple[Repro, str]]:
        """When a place is free.

        Raises:
            UserError: the run is ending.
        """
        gpus = self.places.get()
        try:
            show = Prefixed(step, self.show, self.lock)
            if task_run.run_count and task_run.run_count > 1:
                show(RESUMES)
            with slot(show):
                progress = f"{self.env[Variable.PROGRESS]}-{step}"
                env = self.env | {Variable.PROGRESS: progress} | ({GPUS: gpus} if gpus else {})
                name = Graph(self.graph.folder, self.graph.file, step).name
                with self.lock:
                    if self.ending:
                        raise UserError(f"{step}: not started, because the run is ending")
                    repro = Repro(self.graph.folder, name, env, show, single=True, wait_for_lock=True)
                    self.live.add(repro)
                with end_with_block(repro):
                    yield repro, progress
                    repro.finish(step)
        finally:
            self.places.put(gpus)

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


def _run_at_once(graph: Graph, source: AtOnce, ended: Ended) -> None:
    """Run every step as soon as those that it needs have run; those that do not need a failed one run to their end.

    Raises:
        UserError: the first failed step's.
    """
    futures: dict[str, PrefectFuture[Any]] = {}
    needs, _ = needed_steps(graph.stages)
    try:
        for step in graph.steps:
            named, earlier = run_step.with_options(task_run_name=step), [futures[other] for other in needs[step]]
            futures[step] = named.submit(step, source, graph, ended, return_state=False, wait_for=earlier)
        for future in futures.values():
            future.wait()
        for future in futures.values():
            future.result()
    finally:
        source.stop()


def places_for(jobs: int, processes: int, gpus: Sequence[str]) -> list[str]:
    """The CUDA_VISIBLE_DEVICES of at most `jobs` steps at a time; empty texts on a machine without GPUs.

    A step has as many GPUs as it has processes; what is left over is not used.

    >>> places_for(4, 2, ["0", "1", "2", "3", "4"]), places_for(2, 8, ["0", "1"]), places_for(2, 2, [])
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


Sections = Mapping[str, BaseModel | None]
Links = Sequence[tuple[Sequence[str], Sequence[str]]]  # stages, and the overrides with which they name files


def run_stages(
    target: str, *, preset: str | None, sections: Sections, overrides: Sequence[str], allow_dirty: bool = False
) -> str:
    """Bring `target` (a stage, or pipeline) up to date and report it; returns the workspace's folder.

    Overrides, from the form or dotted, are validated before anything runs and go to a worktree of their own.
    """
    workspace = prepare(target, preset, [*form_overrides(sections), *overrides], allow_dirty=allow_dirty)
    chain = stages_until(target)
    seeds, doubts = [workspace.params.run.seed], [*ignored_settings(workspace.params), *workspace.doubtful]
    asked = chain if is_judged(workspace.params) else ()
    graph = Graph(workspace.folder, target=chain[-1])
    _run(workspace, graph, ("stage", target), seeds, doubts, [(chain, ())], asked)
    report_stages(workspace.folder, chain)
    return str(workspace.folder)


def run_recipe(
    recipe: str,
    *,
    preset: str | None = None,
    sections: Sections | None = None,
    overrides: Sequence[str] = (),
    allow_dirty: bool = False,
    jobs: int = 1,
    folder: Path | None = None,
) -> str:
    """Bring every step of the recipe up to date and report it; returns the workspace's folder.

    Overrides go over those of every step, in a worktree of their own. With several `jobs`, steps that do not depend on
    one another run at the same time, each in a slot of its own. With `folder`, of a run that has the recipe, there.
    """
    if recipe == DEFAULT:
        return run_stages(
            "pipeline", preset=preset, sections=sections or {}, overrides=overrides, allow_dirty=allow_dirty
        )
    if folder is not None:
        workspace = Workspace(folder, load_params(folder / "params"))
    else:
        settings = [*form_overrides(sections or {}), *overrides]
        workspace = prepare_recipe(recipe, preset, settings, allow_dirty=allow_dirty)
    checked = write_recipe_graph(recipe, workspace.folder)
    links = [
        ([step.stage], step_overrides(checked, name)) for name, step in checked.steps.items() if step.stage in LINKED
    ]
    seeds, doubts = checked.seeds or (workspace.params.run.seed,), recipe_warnings(checked, workspace.folder / "params")
    graph = Graph(workspace.folder, graph_file(recipe))
    asked = ("--recipe", recipe) if recipe_is_judged(checked, workspace.folder / "params") else ()
    _run(workspace, graph, ("recipe", recipe), seeds, doubts, links, asked, jobs)
    report_recipe(workspace.folder, recipe)
    return str(workspace.folder)


def run_controls(
    *,
    preset: str | None,
    sections: Sections,
    overrides: Sequence[str],
    allow_dirty: bool = False,
    rl_run: str = "rl",
    seeds: int = 3,
    only: Sequence[str] = (),
    jobs: int = 1,
) -> str:
    """Write the recipe of the run's controls and run it; returns the folder.

    `overrides` go over the run's own parameters, in every step.
    """
    if preset:
        raise UserError(
            "controls have the parameters of their run: choose no preset, but a run that was made with it, by its name "
            "under runs/"
        )
    settings = [*form_overrides(sections), *overrides]
    name, folder = write_control_recipe(rl_run, seeds, only, settings, main_checkout())
    return run_recipe(name, allow_dirty=allow_dirty, jobs=jobs, folder=folder.absolute())


def _run(
    workspace: Workspace,
    graph: Graph,
    title: tuple[str, str],
    seeds: Sequence[int],
    doubts: Sequence[str],
    links: Links,
    asked: Sequence[str],
    jobs: int = 1,
) -> None:
    """Run the graph in its workspace, under a name and tags, with its files linked, and mirrored to MLflow.

    `asked` are the stages, or --recipe and its name, whose lengths are judged before the first step (tasks/lengths.py).
    """
    folder = workspace.folder
    named = name_run(*title, workspace, seeds)
    env = environment(str(flow_run.id or ""))
    show = line_handler(title[1], workspace, doubts)
    live = announce(graph, env) if jobs == 1 else None

    def announce_step(graph: Graph, step: str) -> None:
        report_step(graph, step)
        announce_model(step, graph.place(step, "model"), workspace)

    with tags(*named), hold_workspace(workspace, show), while_mirroring(env, folder):
        for stages, overrides in links:
            link_inputs(folder, stages, load_params(folder / "params", overrides=overrides), env, overrides)
        own = graph.file != PIPELINE and not graph.pipeline_part  # a recipe that makes its splits itself
        if asked and not check_lengths(workspace, asked, env) and not own:
            run_graph(Graph(folder, target="curate"), env, show, announce_step)  # then it is known what the hub has
            check_lengths(workspace, asked, env)
        run_graph(graph, env, show, announce_step, jobs=jobs, processes=workspace.params.run.processes, live=live)
