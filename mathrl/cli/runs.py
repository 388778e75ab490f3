"""List all runs with their figures; look at one: its health, report, responses and verdicts; run its controls."""

import os
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mathrl.cli.output import AsJson, print_document, print_lines, print_result, print_table
from mathrl.cli.recipe import controls
from mathrl.cli.ui import running_servers
from mathrl.compose import load_params
from mathrl.compose.changes import differences, edit_yaml
from mathrl.core.errors import EXIT_NO, EXIT_TERMINATED, UserError
from mathrl.core.files import write_text
from mathrl.core.paths import RECIPES, checkout_or_here, main_checkout
from mathrl.core.records import IMPORTED, RUN, records_folder
from mathrl.evaluation.audit import Label
from mathrl.evaluation.forecast import forecast_sentences
from mathrl.health.watch import sentence
from mathrl.params.load import read_yaml
from mathrl.params.messages import did_you_mean
from mathrl.recipes.recipe import recipe_files
from mathrl.reports.audit import Audit, add_cases, find_responses, open_audit, row_to_show
from mathrl.reports.find_run import find_rollouts, find_training_run, mlflow_record, near_run, project_params
from mathrl.reports.html import Material, pipeline_material, record_material, step_material, write_report
from mathrl.reports.rollout_server import HOST, Library, make_server
from mathrl.rewards.cascade import MathVerifyJudge
from mathrl.tasks import workspace
from mathrl.tracking import mirror
from mathrl.tracking.client import connect
from mathrl.tracking.run_list import RunRow, list_runs

runs = typer.Typer(name="runs", add_completion=False, help=__doc__)

Sort = Annotated[
    Literal["started", "rl", "dev"], typer.Option(help="started: newest first; rl, dev: highest accuracy first.")
]

SORTS = {"rl": "rl/pass_at_1", "dev": "dev/best"}


@runs.callback(invoke_without_command=True)
def list_all(
    context: typer.Context,
    sort: Sort = "started",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 30,
    as_json: AsJson = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    notes = _notes(main_checkout())
    if as_json:
        here = [{"folder": name, **note} for name, (_, note) in notes.items()]
        print_document({"runs": [row.to_row() for row in _sorted_runs(sort)][:limit], "worktrees": here})
    else:
        _print_runs(notes, sort, limit)


@runs.command()
def remove(
    names: Annotated[list[str], typer.Argument(help="Runs under runs/, by name; all removes every run.")],
    as_json: AsJson = False,
) -> None:
    """Remove the worktrees of runs under runs/; MLflow keeps the runs, DVC's cache their results."""
    root = main_checkout()
    notes = _notes(root)
    names = list(notes) if "all" in names else names
    _check_names(names, notes)
    busy = []
    for name in names:
        if workspace.prune(root, notes[name][0]):
            print(f"removed {name}", file=sys.stderr if as_json else sys.stdout)
        else:
            busy.append(name)
    if busy:
        verb, pronoun = ("is", "it") if len(busy) == 1 else ("are", "them")
        raise UserError(f"{', '.join(busy)} {verb} running: cancel {pronoun} first")
    if as_json:
        print_document({"removed": names})


@runs.command()
def adopt(name: Annotated[str, typer.Argument(help="Run under runs/, by name.")], as_json: AsJson = False) -> None:
    """Write the parameters of a run under runs/ into params/, for a commit."""
    root = main_checkout()
    notes = _notes(root)
    _check_names([name], notes)
    diff = _adopt(root, *notes[name])
    if as_json:
        print_document({"diff": diff})


def _notes(root: Path) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """The folders under runs/ and what they note of their runs, by name."""
    return {folder.name: (folder, note) for folder, note in workspace.runs(root)}


def _check_names(names: Sequence[str], notes: Mapping[str, Any]) -> None:
    for name in names:
        if name not in notes:
            hint = did_you_mean(name, notes)
            raise UserError(f"no run {name!r} under runs/{hint}; runs: {', '.join(notes) or 'none'}")


def _print_runs(notes: Mapping[str, tuple[Path, Mapping[str, Any]]], sort: str, limit: int) -> None:
    """The runs that MLflow has, then the worktrees of which it has none."""
    rows = _sorted_runs(sort)
    title = (
        f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}; dev and test (sft, rl) are pass@1, sampled counts tokens"
    )
    print_table(title, [row.cells() for row in rows[:limit]], left=("run, what is different, folder", "health"))
    if len(rows) > limit:
        print_lines([f"and {len(rows) - limit} more: --limit {len(rows)}"])
    listed = {row.folder for row in rows}
    for name, (_, note) in notes.items():
        if name in listed:
            continue
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(note["made"]))))
        print_lines([f"also under runs/: {name} of {created}, {', '.join(map(str, note['overrides']))}"])


def _sorted_runs(sort: str) -> list[RunRow]:
    for variable, url in running_servers().items():
        os.environ.setdefault(variable, url)
    rows = list_runs(connect())
    if sort in SORTS:
        rows.sort(key=lambda row: row.figures.get(SORTS[sort], -1.0), reverse=True)
    return rows


def _adopt(root: Path, folder: Path, note: Mapping[str, Any]) -> str:
    """Write the parameters that a run changed into the checkout's params/, and print how to commit them.

    Returns what was changed.

    Raises:
        UserError: params/ has changed since the run started, so that other results would follow.
    """
    from mathrl.sweeps.winner import promote  # optuna

    os.chdir(root)
    diff_command = ["git", "diff", "--name-only", str(note["commit"]), "HEAD", "--", "params"]
    changed = subprocess.run(diff_command, capture_output=True, text=True, check=True).stdout.split()
    changed += [name for name in workspace.uncommitted_files(root) if name.startswith("params/")]
    if changed:
        raise UserError(
            f"{', '.join(changed)} changed after {folder.name} started, so params/ with its overrides would give other "
            f"results: start it again with {' '.join(map(str, note['overrides']))}"
        )
    before, after = (load_params(at / "params").model_dump(mode="json", by_alias=True) for at in (root, folder))
    diff = promote(differences(before, after))
    recipe = Path("params") / "recipes" / f"{note['run']}.yaml"
    verb = "recipe" if note["run"] in (files := recipe_files()) else "run"
    if (folder / recipe).exists() and (overrides := read_yaml(folder / recipe).get("overrides")):
        text = files[note["run"]].read_text(encoding="utf-8")
        write_text(recipe, edit_yaml(text, {"overrides": overrides}, str(recipe)))
        diff += f"{recipe}: overrides {', '.join(overrides)}\n"
    print(diff.rstrip())
    print(f"to restore its results from DVC's cache: mathrl {verb} {note['run']}")
    print(f'to keep it: git add params dvc.lock && git commit -m "As in {folder.name}"')
    return diff


@runs.command()
def health(
    run: Annotated[str, typer.Argument(help="Stage, recipe's step, folder with metrics, or MLflow run.")],
    as_json: AsJson = False,
) -> None:
    """Report the health of a run from its metrics: evidence, cause and remedy; exit status 1 if red, 2 if unknown."""
    folder = Path(run).absolute()
    os.chdir(checkout_or_here())
    training = find_training_run(str(folder) if folder.exists() else run)
    report, rules = training.health()
    missing = report["not_judged"]
    if report["colour"] == "unknown":
        raise UserError(
            f"{training.name}: nothing could be judged: none of the {rules} rules has its metrics, such as "
            f"reward/accuracy, kl, entropy (docs/how_to/health.md); found "
            f"{', '.join(_names(training.rows)) or 'no rows'}"
        )
    if as_json:
        print_document(report)
    else:
        judged = f"{rules - len(missing)} of {rules} rules had their metrics"
        print(f"{training.name}: {report['colour']} after {report['steps']} steps; {judged}")
        for finding in report["findings"]:
            print(f"- to step {finding['last']}, {sentence(finding)}")
        if missing:
            print(f"not judged, since metrics are missing or the run is too short: {', '.join(missing)}")
        for line in forecast_sentences(training.record, training.rows) if training.record else ():
            print(f"forecast {line}")
    if report["colour"] == "red":
        raise SystemExit(EXIT_NO)


def _names(rows: Sequence[Mapping[str, float]], most: int = 5) -> list[str]:
    """Some metrics of the last row."""
    names = [name for name in rows[-1] if name != "step"] if rows else []
    return names[:most] + ["…"] * (len(names) > most)


PIPELINE = ("pipeline", "sft", "rl", "evaluate", "register")


@runs.command()
def report(
    run: Annotated[str, typer.Argument(help="Stage, recipe's step, run under runs/, or MLflow run.")] = "pipeline",
    output: Annotated[Path | None, typer.Option(help="HTML file to write; default: in reports/html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file: verdict, curves, examples before and after, health, lineage, how to reproduce."""
    here, target = Path(run).absolute(), output.absolute() if output else None
    os.chdir(checkout_or_here())
    material = _material(run, here)
    target = target or Path("reports") / "html" / f"{material.title.replace('/', '-').replace(' ', '-')}.html"
    colour = write_report(material, target, project_params())
    line = f"{target}  (health {colour}); open it in a browser: {target.absolute().as_uri()}"
    print_result(as_json, {"file": str(target.absolute()), "health": colour}, line)


def _material(run: str, here: Path) -> Material:
    root = Path.cwd()
    if run in PIPELINE or here == root:
        return pipeline_material(root)
    for folder in (here, root / "runs" / run):
        if (folder / "reports").is_dir():
            return pipeline_material(folder)
    for step in (here, root / RECIPES / run):
        if step.is_dir() and step.parent.parent.name == "recipes":
            return step_material(step.parents[3], step.parent.name, step.name)
    if here.is_dir() and here.parent.name == "reports":
        return pipeline_material(here.parents[1])
    if (records_folder() / run / RUN).is_file() and run.startswith(IMPORTED):
        return record_material(records_folder() / run)
    record = mlflow_record(run)
    if record is None:
        raise UserError(
            f"{run}: no such run{near_run(run)}; give a stage (rl), a recipe's step (NAME/STEP), a run under runs/, a "
            "folder, or the name or id of an MLflow run"
        )
    name, workspace = record.name, Path(record.workspace)
    if not workspace.is_dir():
        raise UserError(f"{run}: its folder {workspace} no longer exists; its MLflow run may have its report")
    return step_material(workspace, *name.split("/", 1)) if "/" in name else pipeline_material(workspace)


@runs.command()
def rollouts(
    run: Annotated[
        str | None, typer.Argument(help="Stage rl, a recipe's step, a record, a parquet file, or an MLflow run.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0: a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Look at kept rollouts in a browser: by step, verdict, rule, reward; two steps of a problem; search.

    A run keeps rollouts with rl.keep_rollouts.which=all, share or odd. Without RUN the page lists the runs.
    """
    here = Path(run).absolute() if run else None
    os.chdir(checkout_or_here())
    name, files = find_rollouts(str(here) if here and here.exists() else run) if run else ("", {})
    library = Library(files)
    if name:
        library.open(name)  # before the address is printed: the page then opens at once
    try:
        server = make_server(library, port)
    except OSError as error:
        raise UserError(f"port {port} cannot be used ({error.strerror}): choose another --port") from None
    address = f"http://{HOST}:{server.server_address[1]}/{name and name + '/'}"
    print(f"{address}   Ctrl-C ends it", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    if browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("ended")
    finally:
        server.server_close()


KEYS: dict[str, Label] = {"y": "y", "n": "n", "u": "unsure"}

SHOWN = 2000  # characters at the end of a response


@runs.command()
def audit(
    run: Annotated[
        str, typer.Argument(help="Graded responses: evaluate, rl (kept rollouts), a recipe's step, a folder or file.")
    ],
    size: Annotated[int, typer.Option(min=2, help="Number of responses to label, about.")] = 200,
    model: Annotated[str | None, typer.Option(help="Model whose responses are audited; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample; another one is another audit.")] = 0,
    math_verify: Annotated[
        bool, typer.Option("--math-verify", help="Ask Math-Verify first; its disagreement makes strata.")
    ] = False,
    labels: Annotated[Path | None, typer.Option(help="Labels that the audit's page saved, instead of asking.")] = None,
    cases: Annotated[Path | None, typer.Option(help="File of cases to which wrong verdicts are added.")] = None,
    annotator_error: Annotated[
        float, typer.Option(min=0, max=0.49, help="Share of wrong labels, if known; rates are corrected for it.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Label a sample of verdicts (y, n, unsure) and estimate how often the grader is wrong; resumes."""
    start = Path.cwd()
    run = str(start / run) if (start / run).exists() else run
    files = [path and path.absolute() for path in (labels, cases)]
    os.chdir(checkout_or_here())
    started = open_audit(find_responses(run), model, size, seed, _disagrees() if math_verify else None)
    started.write(annotator_error)
    print(f"page: {started.folder / 'audit.html'}")
    if files[0] is not None:
        print(f"{started.take(files[0])} labels read")
    else:
        _ask(started)
    rates = started.write(annotator_error)
    added = add_cases(files[1], started.cases()) if files[1] is not None else 0
    folder = started.folder.absolute()
    document = asdict(rates) | {"open": len(started.open), "folder": str(folder), "cases": added}
    print_result(as_json, document, *rates.lines(), *([f"{added} new cases in {files[1]}"] if files[1] else []))


def _ask(started: Audit) -> None:
    """Ask in the terminal until all are labelled, q, or the end of the input."""
    open_items = started.open
    for number, item in enumerate(open_items, len(started.sample) - len(open_items) + 1):
        text = row_to_show(item.row)
        response = text["response"]
        print(f"\n--- {number} of {len(started.sample)}\n{text['question']}")
        print(("… " if len(response) > SHOWN else "") + response[-SHOWN:])
        print(f"accepted: {text['truth']}    extracted: {text['extracted']}")
        while (answer := _read()) not in (*KEYS, "q"):
            print("y: the final answer is right; n: it is wrong; u: unsure; q: go on another time")
        if answer == "q":
            return
        started.add(item.key, KEYS[answer])


def _read() -> str:
    try:
        return input("right? [y/n/u/q] ").strip().lower()[:1]
    except EOFError:
        return "q"


def _disagrees() -> Any:
    judge = MathVerifyJudge()
    if not judge.engine.warm_up():
        raise UserError("Math-Verify does not start: `mathrl doctor` says what is missing")

    def disagrees(row: Mapping[str, Any]) -> bool:
        verdict = judge.judge(str(row.get("question", "")), str(row["response"]), row["truths"])
        return verdict is not None and verdict != row["correct"]

    return disagrees


runs.command()(controls)


@runs.command()
def sync(as_json: AsJson = False) -> None:
    """Upload to MLflow and the other trackers the metrics and files that could not be uploaded during the runs."""
    complete = mirror.sync()
    print_result(as_json, {"complete": complete}, f"{complete} runs are complete in MLflow")
