"""Search for better parameters of RL runs: run a study, show it, compare and promote its winner."""

import os
import time
from pathlib import Path
from typing import Annotated, Any
from wsgiref.simple_server import make_server

import typer

from mathrl.cli.options import AllowDirty, Choices, Presets, join_presets, with_choices
from mathrl.cli.output import AsJson, print_document, print_table
from mathrl.cli.recipe import print_recipe
from mathrl.cli.run import call_flow
from mathrl.cli.ui import HOST, listens
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.paths import main_checkout
from mathrl.core.request_origin import OwnPages
from mathrl.sweeps.report import best_first, cells, row
from mathrl.sweeps.run import sweep_section
from mathrl.sweeps.study import best, open_study, read_study, study_folder
from mathrl.sweeps.winner import promote as write_winner
from mathrl.tasks.workspace import with_study, workspace

sweep = typer.Typer(name="sweep", add_completion=False, no_args_is_help=True, help=__doc__)

COMPARISON = "comparison.json"

Study = Annotated[str | None, typer.Option(help="Name of the study; default: sweep.study of params/sweep.yaml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override of the sweep (sweep.key=value) or of every trial (rl.key=value); repeatable."),
]


@sweep.command()
def run(
    study: Study = None,
    trials: Annotated[int | None, typer.Option(help="Total number of trials.")] = None,
    hours: Annotated[float | None, typer.Option(help="Stop starting trials after this many hours.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of concurrent trials on this machine.")] = None,
    choices: Choices = None,
    presets: Presets = None,
    overrides: Overrides = None,
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
) -> None:
    """Run a study, or continue it; params/sweep.yaml has its search space."""
    settings = _settings(study, with_choices(choices, overrides), trials=trials, hours=hours, workers=workers)
    folder, storage, _ = _call_flow(join_presets(presets), settings, compare=False, allow_dirty=allow_dirty)
    opened = read_study(folder.name, storage)
    if as_json:
        print_document(_study_document(opened, folder))
    else:
        _print_study(opened, folder)
        print(f"outputs: {folder}")


@sweep.command()
def compare(
    choices: Choices = None,
    study: Study = None,
    presets: Presets = None,
    overrides: Overrides = None,
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
) -> None:
    """Rerun the winner and the present parameters on fresh seeds and compare them on test."""
    settings = _settings(study, with_choices(choices, overrides))
    began = time.time()
    folder, _, place = _call_flow(join_presets(presets), settings, compare=True, allow_dirty=allow_dirty)
    found = read_json(folder / COMPARISON)
    if as_json:
        print_document(found | {"folder": str(folder)})
        return
    if "recipe" in found:
        print_recipe(place, found["recipe"], time.time() - began)
    print(f"on test: {found['verdict']}")
    print(f"outputs: {folder}")


@sweep.command()
def show(study: Study = None, as_json: AsJson = False) -> None:
    """Print the trials, the best first."""
    opened, folder = _open_existing(study)
    if as_json:
        print_document(_study_document(opened, folder))
    else:
        _print_study(opened, folder)


@sweep.command()
def promote(study: Study = None, as_json: AsJson = False) -> None:
    """Write the winner's parameters into params/ and print the diff, for you to commit."""
    opened, folder = _open_existing(study)
    winner = best(opened.get_trials(deepcopy=False))
    if winner is None:
        raise UserError(f"study {folder.name} has no complete trial yet: mathrl sweep run")
    attributes = opened.user_attrs["mathrl"]
    unwritten = attributes["facts"]["sweep.set"]
    diff = write_winner(winner.user_attrs["values"], preset=attributes.get("preset") or None)
    if as_json:
        print_document(
            {"study": folder.name, "trial": winner.number, "dev": winner.value, "diff": diff, "not_written": unwritten}
        )
        return
    print(f"trial {winner.number}: dev accuracy {winner.value:.4f}")
    print(diff or "params/ has these values already; nothing to write")
    if unwritten:
        print(f"not written, although every trial used it: {', '.join(unwritten)}")
    if diff:
        print(f'to keep it: git add params && git commit -m "Winner of study {folder.name}" params')
        _print_comparison(folder, winner, promoted=True)


@sweep.command()
def dashboard(
    study: Study = None, port: Annotated[int, typer.Option(help="Port to listen on (loopback only).")] = 8080
) -> None:
    """Serve Optuna's dashboard of the study on loopback until Ctrl-C."""
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise UserError("optuna-dashboard is missing: pip install -c constraints.txt 'mathrl[sweep]'") from None
    opened, folder = _open_existing(study)
    if listens(port):
        raise UserError(f"port {port} is in use: stop that program, or choose another --port")
    print(f"study {folder.name}: http://{HOST}:{port}/dashboard")
    make_server(HOST, port, OwnPages(wsgi(opened._storage))).serve_forever()


def _study_document(opened: Any, folder: Path) -> dict[str, Any]:
    trials = opened.get_trials(deepcopy=False)
    keys, winner = list(opened.user_attrs["mathrl"]["present"]), best(trials)
    fixed = ("trial", "state", "dev", "seconds", "error")
    rows = best_first(row(trial, keys) for trial in trials)
    file = folder / COMPARISON
    return {
        "study": folder.name,
        "folder": str(folder),
        "trials": [{key: each[key] for key in fixed} | {"values": {k: each[k] for k in keys}} for each in rows],
        "best": winner.number if winner else None,
        "comparison": read_json(file) if file.exists() else None,
    }


def _print_study(opened: Any, folder: Path) -> None:
    """The trials as a table, the winner, and what comes next."""
    trials = opened.get_trials(deepcopy=False)
    rows = [row(trial, list(opened.user_attrs["mathrl"]["present"])) for trial in trials]
    print_table(f"study {folder.name}: trials, the best first", cells(rows), left=("state",))
    print("Trial 0 has the present parameters; dev is the accuracy on the dev problems.")
    for entry in rows:
        if entry["error"]:
            print(f"trial {entry['trial']} failed: {entry['error']}")
    print(f"pictures, metrics and log of every trial: {folder}")
    winner = best(trials)
    if winner is None:
        print("no trial is complete yet; this continues the study: mathrl sweep run")
        return
    values = ", ".join(f"{key}={value}" for key, value in winner.user_attrs.get("values", {}).items())
    print(f"winner: trial {winner.number}, dev accuracy {winner.value:.4f} ({values})")
    _print_comparison(folder, winner)


def _settings(study: str | None, overrides: list[str] | None, **options: float | None) -> list[str]:
    section = {"study": study, **options}
    return [*(overrides or []), *(f"sweep.{key}={value}" for key, value in section.items() if value is not None)]


def _call_flow(preset: str | None, overrides: list[str], *, compare: bool, allow_dirty: bool) -> tuple[Path, str, Path]:
    """The study's folder, the kind of its storage, and the checkout or worktree that it runs in."""
    root = main_checkout()
    os.chdir(root)
    named_overrides = with_study(preset, overrides, root)
    place = workspace(preset, overrides, allow_dirty=allow_dirty).absolute()
    os.chdir(place)
    section = sweep_section(named_overrides)
    open_study(section)  # before any server is started
    os.chdir(root)
    options: dict[str, Any] = {"preset": preset, "overrides": overrides, "compare": compare}
    folder = Path(call_flow("sweep", **options, allow_dirty=allow_dirty))
    return folder, section.storage, place


def _open_existing(study: str | None) -> tuple[Any, Path]:
    """The study and its folder, which has its name."""
    os.chdir(main_checkout())
    section = load_params().sweep
    name = study or section.study
    return read_study(name, section.storage), study_folder(name)


def _print_comparison(folder: Path, winner: Any, promoted: bool = False) -> None:
    file = folder / COMPARISON
    comparison = read_json(file) if file.exists() else {}
    if comparison and comparison["winner"] == winner.number:
        print(f"on test: {comparison['verdict']}")
        return
    if comparison:
        print(f"on test, trial {comparison['winner']}, which is no longer the best: {comparison['verdict']}")
    if promoted:
        print("The winner was selected on dev and may be lucky; it has not been compared on test.")
        return
    print("The winner was selected on dev and may be lucky; confirm it on test, then take it over:")
    print("next: mathrl sweep compare    (then mathrl sweep promote)")
