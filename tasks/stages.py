"""Run stages of the pipeline as Prefect tasks over one `dvc repro`, with live progress."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from httpx import HTTPError
from prefect import get_run_logger, task
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from pydantic import BaseModel

from mathrl.core.errors import UserError
from mathrl.core.mirroring import mirroring
from mathrl.params.form import form_overrides
from mathrl.params.schema import STAGES
from tasks.inputs import link_inputs
from tasks.report import artifact_key, health_markdown, report
from tasks.repro import Repro, environment, running
from tasks.slots import slot
from tasks.workspace import Workspace, prepare

CONSOLE = "MATHRL_CONSOLE"  # set by the command line: output goes to the terminal as it comes
# Stages beside the pipeline, each in a DVC file of its own.
BESIDE = {name: f"{name}/dvc.yaml:{name}" for name in ("controls", "pages")}


def run_stages(
    target: str,
    preset: str | None,
    sections: Mapping[str, BaseModel | None],
    overrides: Sequence[str],
    *,
    controls: bool = False,
    allow_dirty: bool = False,
) -> str:
    """Bring `target` (a stage, or pipeline) up to date and report it; returns the workspace's folder.

    Overrides, from the form or dotted, are validated before anything runs and go to a worktree of their own.
    """
    name = str(flow_run.name or target)
    workspace = prepare(target, preset, [*form_overrides(sections), *overrides], allow_dirty=allow_dirty)
    last = STAGES[-1] if target == "pipeline" else target
    chain = STAGES[: STAGES.index(last) + 1]
    env = environment(workspace.folder, str(flow_run.id or ""))
    show = shower(name, workspace)
    link_inputs(workspace.folder, chain, workspace.params, env)
    with slot(), mirroring(env, workspace.folder):
        with running(Repro(workspace.folder, last, env, show)) as repro:
            for stage in chain:
                run_stage(stage, repro, env["MATHRL_PROGRESS"])
            repro.finish(last)
        if controls:
            _beside("controls", workspace, env, show)
    report(workspace.folder, last)
    return str(workspace.folder)


def run_beside(
    stage: str,
    preset: str | None,
    sections: Mapping[str, BaseModel | None],
    overrides: Sequence[str],
    *,
    allow_dirty: bool = False,
) -> str:
    """Like `run_stages`, for one stage beside the pipeline."""
    name = str(flow_run.name or stage)
    workspace = prepare(stage, preset, [*form_overrides(sections), *overrides], allow_dirty=allow_dirty)
    env = environment(workspace.folder, str(flow_run.id or ""))
    link_inputs(workspace.folder, [stage], workspace.params, env)
    with slot(), mirroring(env, workspace.folder):
        _beside(stage, workspace, env, shower(name, workspace))
    report(workspace.folder, stage)
    return str(workspace.folder)


def _beside(stage: str, workspace: Workspace, env: dict[str, str], show: "_Console | _Logged") -> None:
    with running(Repro(workspace.folder, BESIDE[stage], env, show, single=True)) as repro:
        run_stage(stage, repro, env["MATHRL_PROGRESS"])
        repro.finish(stage)


@task(cache_policy=NO_CACHE, task_run_name="{stage}")
def run_stage(stage: str, repro: Repro, progress_file: str) -> str:
    """Follow one stage of a running `dvc repro`: "ran" or "skipped"."""
    live = Live(stage, Path(progress_file))
    outcome = repro.follow(stage, live.refresh)
    live.finish()
    if outcome == "skipped":
        get_run_logger().info("%s: nothing changed, DVC has its outputs", stage)
    return outcome


class Live:
    """The stage's progress as a Prefect artifact, made when there is something to show."""

    def __init__(self, stage: str, file: Path) -> None:
        self.stage, self.file = stage, file
        self.artifact: Any = None
        self.record: Path | None = None
        self.health: Any = None
        self.silent = False
        file.unlink(missing_ok=True)

    def refresh(self) -> None:
        state = self._state()
        if state is None:
            return
        share = min(100.0, 100.0 * state["done"] / max(1, state["total"] or 0))
        left = state["seconds_left"]
        text = f"{state['title']}: {state['done']:.0f}"
        text += f" of {state['total']:.0f}" if state["total"] else ""
        text += f", about {left:.0f} s left" if left else ""
        self._show(share, text)
        self._show_health()

    def finish(self) -> None:
        self._state()
        if self.artifact is not None:
            self._show(100.0, f"{self.stage}: done")
        self._show_health()
        self.file.unlink(missing_ok=True)

    def _state(self) -> Any:
        try:
            state = json.loads(self.file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        self.record = Path(state["record"]) if state.get("record") else None
        return state

    def _show(self, share: float, text: str) -> None:
        def send() -> None:
            if self.artifact is None:
                key = artifact_key(f"{self.stage}-progress")
                self.artifact = create_progress_artifact(share, key=key, description=text)
            else:
                update_progress_artifact(self.artifact, share, description=text)

        self._try(send)

    def _show_health(self) -> None:
        """A new version of the markdown artifact `<stage>-health` whenever the findings have changed."""
        try:
            told = json.loads((self.record / "run.json").read_text()).get("health") if self.record else None
        except (FileNotFoundError, json.JSONDecodeError):
            return
        if told is not None and told != self.health:
            self.health, key = told, artifact_key(f"{self.stage}-health")
            self._try(lambda: create_markdown_artifact(health_markdown(told), key=key, description="health"))

    def _try(self, send: Callable[[], Any]) -> None:
        """A server that does not answer costs the picture of the progress, never the stage."""
        try:
            send()
        except (HTTPError, PrefectException) as error:
            if not self.silent:
                get_run_logger().warning("%s: its progress cannot be shown: %s", self.stage, error)
            self.silent = True


def shower(name: str, workspace: Workspace) -> "_Console | _Logged":
    if os.environ.get(CONSOLE):
        if workspace.overrides:
            print(f"{', '.join(workspace.overrides)}: in {workspace.folder}", file=sys.stderr)
        return _Console()
    return _Logged(f"{name} in {workspace.folder}")


class _Console:
    """Lines and bars as they come, less DVC's advice on git, which nobody needs to follow here."""

    ADVICE = (
        "Generating lock", "Updating lock", "To track the changes", "\tgit add", "To enable auto staging",
        "\tdvc config core.autostage", "Use `dvc push`",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tail = ""

    def __call__(self, text: str) -> None:
        *lines, self.tail = (self.tail + text).split("\n")
        for line in lines:
            if line.strip() and not line.startswith(self.ADVICE):
                sys.stderr.write(line + "\n")
        if "\r" in self.tail:  # a bar that redraws itself
            sys.stderr.write(self.tail)
            self.tail = ""
        sys.stderr.flush()


class _Logged:
    """Whole lines to the flow run's log, so that the UI shows them; a bar's redrawings are left out."""

    def __init__(self, title: str) -> None:
        self.logger, self.tail = get_run_logger(), ""
        self.logger.info(title)

    def __call__(self, text: str) -> None:
        *lines, self.tail = (self.tail + text).split("\n")
        for line in lines:
            if line.strip() and "\r" not in line:
                self.logger.info(line)


def refuse(stage: str) -> None:
    """Raises UserError for a name that is no stage."""
    if stage not in (*STAGES, "pipeline"):
        raise UserError(f"no stage {stage!r}; stages: {', '.join(STAGES)}, or pipeline")
