"""What a flow runs: stages of the pipeline, a recipe, the controls of an RL run. Each is a graph in a workspace."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect import tags
from prefect.runtime import flow_run
from pydantic import BaseModel

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.mirroring import while_mirroring
from mathrl.core.paths import main_checkout
from mathrl.params.form import form_overrides
from mathrl.params.recipe_steps import DEFAULT
from mathrl.params.schema import stages_until
from mathrl.planning.final_values import ignored_settings
from mathrl.recipes.controls import write_control_recipe
from mathrl.recipes.graph import LINKED, graph_file, write_recipe_graph
from mathrl.recipes.recipe import recipe_is_judged, recipe_warnings, step_overrides
from mathrl.tasks.graph import PIPELINE, Graph
from mathrl.tasks.lengths import check_lengths, is_judged
from mathrl.tasks.live_progress import line_handler
from mathrl.tasks.report import report_recipe, report_stages, report_step
from mathrl.tasks.repro import environment
from mathrl.tasks.run_names import announce_model, name_run
from mathrl.tasks.runner import announce, run_graph
from mathrl.tasks.workspace import Workspace, hold_workspace, link_inputs, prepare, prepare_recipe

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
    env = environment(folder, str(flow_run.id or ""))
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
