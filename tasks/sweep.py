"""Run a study's workers as one Prefect task, or its comparison as a recipe, and show what came out."""

import base64
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import tags, task
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from pydantic import BaseModel

from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.markdown import cell
from mathrl.core.mirroring import while_mirroring
from mathrl.core.paths import home, main_checkout
from mathrl.params.form import form_overrides
from mathrl.tasks.live_progress import LiveProgress, line_handler, name_run
from mathrl.tasks.prefect_server import slot
from mathrl.tasks.repro import environment
from mathrl.tasks.runs import run_recipe
from mathrl.tasks.workspace import Workspace, answer_of, in_use, with_study, workspace

LAST_LINES, REFRESH_SECONDS = 20, 2.0


def run_sweep(
    *,
    preset: str | None,
    sections: Mapping[str, BaseModel | None],
    overrides: Sequence[str],
    compare: bool,
    allow_dirty: bool,
) -> str:
    """Run the study of params/sweep.yaml with overrides, in the checkout or a preset's worktree; returns the
    study's folder. With `compare` the recipe that compares its winner runs instead.

    Raises:
        UserError: wrong parameters, or a study that stopped with an error.
    """
    given = [*form_overrides(sections), *overrides]
    overrides = with_study(preset, given, main_checkout())
    root = workspace(preset, given, allow_dirty=allow_dirty)
    params = load_params(root / "params", overrides=[text for text in overrides if text.startswith("sweep.")])
    folder = home() / "sweeps" / params.sweep.study
    if compare:
        compare_winner(overrides, root, folder, params.sweep.workers)
        return str(folder)
    env = study_environment()
    settings = Workspace(root, params, preset, tuple(overrides))
    run_tags = name_run("sweep", params.sweep.study, settings, [])
    show = line_handler(f"sweep {params.sweep.study}", settings)
    with tags(*run_tags), in_use(root), slot(show), while_mirroring(env, root):
        try:
            follow(overrides, root, env, show)
        finally:
            report(folder)
    return str(folder)


def study_environment() -> dict[str, str]:
    """That of a stage, with the study's database."""
    database = {name: os.environ[name] for name in (Variable.SWEEP_STORAGE,) if name in os.environ}
    return environment(str(flow_run.id or "")) | database


def compare_winner(overrides: Sequence[str], root: Path, folder: Path, jobs: int) -> None:
    """The winner of the study in `folder` against the present parameters, as a recipe of the folder `root`."""

    def output_of(*words: str) -> str:
        command = [sys.executable, "-m", "mathrl.sweeps.winner", *words, *overrides]
        return answer_of(command, root, study_environment())

    found = json.loads(output_of("recipe").splitlines()[-1])
    if found["recipe"]:
        run_recipe(found["recipe"], jobs=jobs, folder=root.absolute())
        output_of("verdict", found["recipe"], str(found["winner"]))
    verdict = read_json(folder / "comparison.json")["verdict"]
    create_markdown_artifact(cell(verdict), key="sweep-comparison", description="Winner and present parameters on test")


@task(cache_policy=NO_CACHE, task_run_name="run")
def follow(overrides: Sequence[str], root: Path, env: Mapping[str, str], show: Callable[[str], None]) -> None:
    """Run the study in one process, which ends with all that it started when this one ends."""
    command = [sys.executable, "-m", "mathrl.core.guard", sys.executable, "-m", "mathrl.sweeps.run", *overrides]
    child = subprocess.Popen(
        command, cwd=root, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert child.stdin is not None and child.stdout is not None
    lines: list[str] = []
    live = LiveProgress("sweep", Path(env[Variable.PROGRESS]))
    try:
        while True:
            if not select.select([child.stdout], [], [], REFRESH_SECONDS)[0]:
                live.refresh()
                continue
            if not (piece := os.read(child.stdout.fileno(), 65536)):
                break
            text = piece.decode(errors="replace")
            show(text)
            lines = [*lines, *(line for line in text.splitlines() if line.strip())][-LAST_LINES:]
        code = child.wait()
        live.finish()
    finally:
        child.stdin.close()
        child.wait()
    if code:
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        raise UserError(f"the sweep stopped: {(errors or lines or ['it printed nothing'])[-1]}")


def report(folder: Path) -> None:
    """Artifacts of the tables and pictures in the study's folder."""
    if (folder / "trials.json").exists():
        about = f"Trials of study {folder.name}, the best first"
        create_markdown_artifact((folder / "trials.md").read_text(), key="sweep-report", description=about)
    for picture in sorted(folder.glob("*.png")):
        data = base64.b64encode(picture.read_bytes()).decode()
        about = f"{picture.stem.replace('_', ' ')} of study {folder.name}"
        create_image_artifact(f"data:image/png;base64,{data}", key=f"sweep-{picture.stem}", description=about)
    if (folder / "trials.json").exists():
        rows = [cells(trial) for trial in json.loads((folder / "trials.json").read_text())["trials"]]
        about = f"Trials of study {folder.name}, the best first, as a table"
        create_table_artifact(rows, key="sweep-trials", description=about)


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in row.items()
    }
