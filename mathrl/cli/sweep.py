"""`mathrl sweep`: run a study, look at it, compare and promote its winner."""

import json
import os
from typing import Annotated, Any

import typer

from mathrl.core.errors import UserError

sweep = typer.Typer(name="sweep", no_args_is_help=True, help="Search for better parameters of RL runs.")
HOST = "127.0.0.1"

Study = Annotated[str | None, typer.Option(help="The study's name; else that of params/sweep.yaml.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="sweep.key=value, or any other parameter, for every trial; repeatable."),
]
Preset = Annotated[str | None, typer.Option(help="A file of params/presets: a sweep in its worktree under runs/.")]
Dirty = Annotated[bool, typer.Option("--allow-dirty", help="A preset despite uncommitted code.")]


@sweep.command()
def run(
    study: Study = None,
    trials: Annotated[int | None, typer.Option(help="Trials in all.")] = None,
    hours: Annotated[float | None, typer.Option(help="No trial is begun later than this.")] = None,
    workers: Annotated[int | None, typer.Option(help="Trials at a time on this machine.")] = None,
    preset: Preset = None,
    set_: Set = None,
    allow_dirty: Dirty = False,
) -> None:
    """Run a study, or go on with it; params/sweep.yaml says what is varied."""
    given = _overrides(study, set_, trials=trials, hours=hours, workers=workers)
    _flow(preset, given, compare=False, allow_dirty=allow_dirty)


@sweep.command()
def compare(study: Study = None, preset: Preset = None, set_: Set = None, allow_dirty: Dirty = False) -> None:
    """Run the winner and the present parameters anew on fresh seeds and compare them on test."""
    _flow(preset, _overrides(study, set_), compare=True, allow_dirty=allow_dirty)


@sweep.command()
def show(study: Study = None) -> None:
    """Print the trials, best first."""
    from mathrl.sweeps.report import markdown, row
    from mathrl.sweeps.study import best

    opened, name, folder = _existing(study)
    keys = list(opened.user_attrs["mathrl"]["present"])
    trials = opened.get_trials(deepcopy=False)
    rows = [row(each, keys) for each in trials]
    typer.echo(markdown({"study": name, "trials": rows}))
    typer.echo(f"pictures, each trial's metrics and log: {folder}")
    _say_comparison(folder, best(trials))


@sweep.command()
def promote(study: Study = None) -> None:
    """Write the winner into params/, print the diff; committing it is up to you."""
    from mathrl.sweeps.promote import promote as write
    from mathrl.sweeps.study import best

    opened, name, folder = _existing(study)
    winner = best(opened.get_trials(deepcopy=False))
    if winner is None:
        raise UserError(f"study {name} has no complete trial yet: mathrl sweep run")
    known = opened.user_attrs["mathrl"]
    typer.echo(f"trial {winner.number}: dev accuracy {winner.value:.4f}")
    preset = known.get("preset")
    diff = write(winner.user_attrs["values"], preset=preset or None)
    typer.echo(diff or "params/ has these values already; nothing to write")
    if known["facts"]["sweep.set"]:
        typer.echo(f"every trial also had, not written: {', '.join(known['facts']['sweep.set'])}")
    if diff:
        typer.echo(f'to keep it: git commit -m "Winner of study {name}" -- params')
        _say_comparison(folder, winner)


@sweep.command()
def dashboard(study: Study = None, port: Annotated[int, typer.Option(help="Its port on this machine.")] = 8080) -> None:
    """Serve Optuna's dashboard of the study on loopback until Ctrl-C."""
    try:
        from optuna_dashboard import run_server
    except ImportError:
        raise UserError("optuna-dashboard is missing: pip install -c constraints.txt -e '.[sweep]'") from None
    from mathrl.cli.ui import listens

    opened, name, _ = _existing(study)
    if listens(port):
        raise UserError(f"port {port} is in use: stop what listens there, or give --port another")
    typer.echo(f"study {name}: http://{HOST}:{port}/dashboard")
    run_server(opened._storage, host=HOST, port=port)


def _overrides(study: str | None, set_: list[str] | None, **given: float | None) -> list[str]:
    named = {"study": study, **given}
    return [*(set_ or []), *(f"sweep.{key}={value}" for key, value in named.items() if value is not None)]


def _flow(preset: str | None, overrides: list[str], *, compare: bool, allow_dirty: bool) -> None:
    from mathrl.cli.run import call_flow
    from mathrl.core.paths import main_checkout
    from mathrl.sweeps.study import open_study
    from mathrl.sweeps.worker import sweep_section
    from tasks.sweep_workspace import named, workspace

    root = main_checkout()
    os.chdir(root)
    given = named(preset, overrides, root)
    os.chdir(workspace(preset, allow_dirty=allow_dirty))
    open_study(sweep_section(given))  # before any server is started
    os.chdir(root)
    more: dict[str, Any] = {"compare": compare, "allow_dirty": allow_dirty}
    typer.echo(f"everything: {call_flow('sweep', preset=preset, overrides=overrides, **more)}")


def _existing(study: str | None) -> tuple[Any, str, Any]:
    from mathrl.core.paths import main_checkout
    from mathrl.params import load_params
    from mathrl.sweeps.storage import study_folder
    from mathrl.sweeps.study import read_study

    os.chdir(main_checkout())
    section = load_params().sweep
    name = study or section.study
    return read_study(name, section.storage), name, study_folder(name)


def _say_comparison(folder: Any, winner: Any) -> None:
    file = folder / "comparison.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    if found and winner is not None and found["winner"] == winner.number:
        typer.echo(f"on test: {found['verdict']}")
        return
    if found:
        typer.echo(f"on test, trial {found['winner']}, which is the best no more: {found['verdict']}")
    typer.echo("dev chose it, and chance has its share in that; try it on test: mathrl sweep compare")
