"""Run a recipe as Prefect tasks over one `dvc repro`, one task per step, with live progress."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prefect import tags
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run
from pydantic import BaseModel

from mathrl.core.environment import Variable
from mathrl.core.mirroring import mirroring
from mathrl.core.results import RecipeSummary, read_recipe_summary, results_table
from mathrl.params.form import form_overrides
from mathrl.params.load import parse_yaml
from mathrl.recipes.graph import ROOT, write_recipe_graph
from mathrl.recipes.recipe import has_pretrained, recipe_warnings
from tasks.concurrency import slot
from tasks.lengths import check_lengths
from tasks.mlflow_links import artifact_key
from tasks.parallel import Steps, needed_steps, places, run_at_once, side_by_side, visible_gpus
from tasks.report import link_to_mlflow, show_pictures
from tasks.repro import Repro, environment, remove_if_half_written, running
from tasks.run_names import announce_model, name_run
from tasks.stage_output import line_handler
from tasks.stages import run_stage
from tasks.workspace import prepare_recipe, working


def run_recipe(
    recipe: str,
    *,
    preset: str | None,
    sections: Mapping[str, BaseModel | None],
    overrides: Sequence[str],
    allow_dirty: bool = False,
    jobs: int = 1,
) -> str:
    """Bring every step of the recipe up to date and report it; returns the workspace's folder.

    Overrides go over those of every step, in a worktree of their own. With several `jobs`, steps that do not depend on
    one another run at the same time, each in a slot of its own.
    """
    workspace = prepare_recipe(recipe, preset, [*form_overrides(sections), *overrides], allow_dirty=allow_dirty)
    checked = write_recipe_graph(recipe, workspace.folder)
    seeds = checked.seeds or (workspace.params.run.seed,)
    named = name_run("recipe", recipe, workspace, seeds)
    env = environment(workspace.folder, str(flow_run.id or ""))
    show = line_handler(recipe, workspace, recipe_warnings(checked, workspace.folder / "params"))
    steps, file = workspace.folder / ROOT / recipe, f"{ROOT}/{recipe}/dvc.yaml"

    def ended(step: str, outcome: str) -> None:
        if outcome == "ran":
            announce_model(step, steps / step / "model", workspace)
            show_pictures(step, (steps / step / "report").glob("*.png"))

    with tags(*named), working(workspace, show), mirroring(env, workspace.folder):
        if has_pretrained(checked, workspace.folder / "params"):
            words = ["--recipe", recipe]
            if not check_lengths(workspace, words, env) and checked.curated is None:
                with slot(show):
                    _run_in_turn(workspace.folder, "curate", env, show, ended)
                check_lengths(workspace, words, env)
        if jobs == 1:
            with slot(show):
                _run_in_turn(workspace.folder, file, env, show, ended)
        else:
            needs, curated = needed_steps(parse_yaml((workspace.folder / file).read_text("utf-8"), file)["stages"])
            if curated:
                with slot(show):
                    _run_in_turn(workspace.folder, "curate", env, show, ended)
            remove_if_half_written(workspace.folder, file, show)
            free = places(jobs, workspace.params.run.processes, visible_gpus())
            run_at_once(Steps(workspace.folder, file, side_by_side(env), show, free), needs, ended)
    link_to_mlflow(workspace.folder, recipe)
    if summary := recipe_summary(workspace.folder, recipe):  # last: Prefect shows the newest first
        key = artifact_key(f"recipe-{recipe}")
        text = "\n".join(f"- {verdict}" for verdict in verdicts(summary))
        about = f"Which models of recipe {recipe} are better"
        create_markdown_artifact(text or "One model: nothing to compare.", key=f"{key}-verdicts", description=about)
        create_table_artifact(summary_rows(summary), key=key, description=f"Accuracy of the models of recipe {recipe}")
    return str(workspace.folder)


def _run_in_turn(
    folder: Path, target: str, env: dict[str, str], show: Callable[[str], None], ended: Callable[[str, str], None]
) -> None:
    """One `dvc repro` of the target and all that it depends on, step by step."""
    with running(Repro(folder, target, env, show)) as repro:
        while (step := repro.upcoming()) is not None:
            ended(step, run_stage.with_options(task_run_name=step)(step, repro, env[Variable.PROGRESS]))
        repro.finish(target)


def summary_rows(summary: RecipeSummary) -> list[dict[str, str]]:
    """A row of text per evaluate step, benchmark and model."""
    return [
        {"evaluation": step if benchmark == "test" else f"{step}, {benchmark}"} | row
        for step, benchmarks in summary.items()
        for benchmark, results in benchmarks.items()
        for row in results_table(results.models)
    ]


def verdicts(summary: RecipeSummary) -> list[str]:
    """The sentence of every paired test."""
    return [
        test.verdict()
        for benchmarks in summary.values()
        for results in benchmarks.values()
        for test in results.comparisons.values()
    ]


def recipe_summary(folder: Path, name: str) -> RecipeSummary:
    """pipelines/recipes/<name>/summary.json; empty for a recipe without an evaluate step."""
    file = folder / ROOT / name / "summary.json"
    return read_recipe_summary(file) if file.exists() else {}
