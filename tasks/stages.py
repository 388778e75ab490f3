"""Run stages of the pipeline as Prefect tasks over one `dvc repro`, with live progress."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import Task, get_run_logger, tags, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from pydantic import BaseModel

from mathrl.core.environment import Variable
from mathrl.core.mirroring import mirroring
from mathrl.params.form import form_overrides
from mathrl.params.ignored import warnings
from mathrl.params.schema import BESIDE, stages_until
from tasks.concurrency import slot
from tasks.inputs import link_inputs
from tasks.lengths import check_lengths, is_judged
from tasks.live_progress import LiveProgress
from tasks.report import report, report_stage
from tasks.repro import Preempted, Repro, dvc_target, environment, running
from tasks.run_names import announce_model, name_run
from tasks.stage_output import line_handler
from tasks.workspace import Workspace, prepare, working

# The number of restarts of a stage that was stopped from outside, and the seconds before each.
RETRIES, RETRY_SECONDS = 10, (1, 10, 60)


def run_stages(
    target: str,
    *,
    preset: str | None,
    sections: Mapping[str, BaseModel | None],
    overrides: Sequence[str],
    controls: bool = False,
    allow_dirty: bool = False,
) -> str:
    """Bring `target` (a stage, or pipeline) up to date and report it; returns the workspace's folder.

    Overrides, from the form or dotted, are validated before anything runs and go to a worktree of their own.
    """
    workspace = prepare(target, preset, [*form_overrides(sections), *overrides], allow_dirty=allow_dirty)
    run_tags = name_run("stage", target, workspace, [workspace.params.run.seed])
    chain = stages_until(target)
    env = environment(workspace.folder, str(flow_run.id or ""))
    show = line_handler(target, workspace, [*warnings(workspace.params), *workspace.doubtful])
    announced = LiveProgress("rl" if "rl" in chain else chain[-1], Path(env[Variable.PROGRESS]))
    announced.announce(chain[: chain.index(announced.stage)])
    with tags(*run_tags), working(workspace, show), slot(show), mirroring(env, workspace.folder):
        link_inputs(workspace.folder, chain, workspace.params, env)
        beside = [("controls",)] if controls else []
        asked = [*chain, *(stage for stages in beside for stage in stages)]
        left = chain
        if is_judged(workspace.params) and not check_lengths(workspace, asked, env):
            _run_chain(chain[:1], workspace, env, show, announced)  # what is on the hub is known when it is curated
            check_lengths(workspace, asked, env)
            left = chain[1:]
        for stages in [left, *beside]:
            _run_chain(stages, workspace, env, show, announced)
    report(workspace.folder, chain)
    return str(workspace.folder)


def _run_chain(
    stages: Sequence[str],
    workspace: Workspace,
    env: dict[str, str],
    show: Callable[[str], None],
    announced: LiveProgress,
) -> None:
    """One `dvc repro` of the last of the stages; beside the pipeline, of it alone."""
    last = stages[-1]
    target = dvc_target(last, workspace.folder)
    with running(Repro(workspace.folder, target, env, show, single=last in BESIDE)) as repro:
        for stage in stages:
            live = announced if stage == announced.stage else None
            outcome = run_stage(stage, repro, env[Variable.PROGRESS], live)
            if outcome == "ran" and stage not in BESIDE:
                announce_model(stage, workspace.folder / "models" / stage, workspace)
        repro.finish(last)


def was_preempted(task: Task[..., Any], run: Any, state: Any) -> bool:
    """Whether to retry a failed task: its stage was stopped, and not by the flow itself."""
    return isinstance(state.data, Preempted)


@task(
    cache_policy=NO_CACHE,
    task_run_name="{stage}",
    retries=RETRIES,
    retry_delay_seconds=list(RETRY_SECONDS),
    retry_condition_fn=was_preempted,
)
def run_stage(stage: str, repro: Repro, progress_file: str, live: LiveProgress | None = None) -> str:
    """Follow one stage of a running `dvc repro`, which is started again if the stage was preempted.

    `live` is the stage's progress if that is shown already. Returns "ran" or "skipped".
    """
    if repro.stopped:
        repro.show(f"{stage}: stopped before it was done, without an error; starting it again, it resumes\n")
        repro.start()
    live = live or LiveProgress(stage, Path(progress_file))
    live.start()
    outcome = repro.follow(stage, live.refresh)
    if outcome == "skipped":
        get_run_logger().info("%s: nothing changed, DVC has its outputs", stage)
        live.skip()
    else:
        live.finish()
        report_stage(repro.workspace, stage)
    return outcome
