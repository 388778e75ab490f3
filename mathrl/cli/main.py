"""`mathrl run`, `recipe`, `evaluate`, `compare`, `grade` and the smaller commands."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from mathrl.cli.sweep import sweep
from mathrl.core.errors import UserError, without_logins
from mathrl.core.exit_status import EXIT_USER_ERROR

app = typer.Typer(
    name="mathrl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train language models to reason about mathematics with reinforcement learning.",
)
app.add_typer(sweep)

Preset = Annotated[str | None, typer.Option(help="A file of params/presets, by its name.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="An override such as rl.lr=2e-4; repeatable.")]


@app.command()
def run(
    stage: Annotated[str, typer.Argument(help="curate, sft, difficulty, mix, rl, evaluate, register, pipeline; pages")],
    preset: Preset = None,
    set_: Set = None,
    controls: Annotated[bool, typer.Option("--controls", help="Also the demo's three controls.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Resolve everything but weights; run nothing.")] = False,
    allow_dirty: Annotated[bool, typer.Option("--allow-dirty", help="Overrides despite uncommitted code.")] = False,
) -> None:
    """Bring a stage, or the whole pipeline, up to date.

    Without --preset and --set this is `dvc repro` in the checkout; with them, in a worktree under runs/.
    """
    from mathrl.cli.run import dry, start

    if dry_run:
        dry(stage, preset, set_ or [])
    else:
        start(stage, preset, set_ or [], controls=controls, allow_dirty=allow_dirty)


@app.command()
def recipe(
    name: Annotated[str | None, typer.Argument(help="A file of params/recipes, by its name.")] = None,
    preset: Preset = None,
    set_: Set = None,
    list_: Annotated[bool, typer.Option("--list", help="Say what recipes there are.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps; run nothing.")] = False,
    allow_dirty: Annotated[bool, typer.Option("--allow-dirty", help="Overrides despite uncommitted code.")] = False,
) -> None:
    """Bring a recipe up to date: ordered steps, each starting from others' models and data.

    Without --preset and --set this is `dvc repro pipelines/recipes/NAME/dvc.yaml` in the checkout; with them, in a
    worktree under runs/.
    """
    from mathrl.cli.recipe import dry, run, show

    if list_ or name is None:
        show()
    elif dry_run:
        dry(name, preset, set_ or [])
    else:
        run(name, preset, set_ or [], allow_dirty=allow_dirty)


@app.command()
def evaluate(
    model: Annotated[str, typer.Option(help="A Hugging Face model folder, or a hub id.")],
    benchmark: Annotated[str, typer.Option(help="test, or a named set such as gsm8k, math500.")],
    preset: Preset = None,
    set_: Set = None,
    limit: Annotated[int | None, typer.Option(help="Only so many problems.")] = None,
    samples: Annotated[int | None, typer.Option(help="Responses a problem.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for figures, responses and pictures.")] = None,
) -> None:
    """Evaluate any model on a benchmark: pass@1 with its interval, pass@k, maj@k."""
    from mathrl.cli.evaluate import evaluate_model

    evaluate_model(model, benchmark, preset, set_ or [], limit, samples, output)


@app.command()
def alignment(
    model: Annotated[str, typer.Argument(help="A Hugging Face model folder, or a hub id.")],
    problems: Annotated[Path | None, typer.Option(help="Curated problems; data/curated/dev.jsonl otherwise.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many of them, two responses each.")] = 16,
    preset: Preset = None,
    set_: Set = None,
) -> None:
    """Compare log-probs of the sampling engine, the trainer and a plain Hugging Face forward in float32.

    On the same sampled responses; exit status 1 where two of them differ by more than their limits.
    """
    from mathrl.cli.alignment import alignment as align

    if not align(model, problems, limit, preset, set_ or []):
        raise typer.Exit(1)


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="Responses, a model, or a recipe's step.")],
    after: Annotated[str, typer.Argument(metavar="B", help="As A; several seeds are joined by commas.")],
    benchmark: Annotated[str | None, typer.Option(help="Which, where there are several.")] = None,
    metric: Annotated[str, typer.Option(help="pass_at_1, pass_at_K or maj_at_K.")] = "pass_at_1",
    preset: Preset = None,
    set_: Set = None,
    common: Annotated[bool, typer.Option("--common", help="On the problems that all have.")] = False,
    json: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
) -> None:
    """Say whether B is better than A, by how much, and what difference the set could show at all.

    A and B are responses.jsonl files or folders with one (:MODEL chooses a model in it), model folders, which
    are evaluated on the spot, recipe steps (NAME/STEP), or models of reports/evaluate by their names.
    """
    from mathrl.cli.compare import compare as compare_models

    compare_models(before, after, benchmark, metric, preset, set_ or [], common=common, as_json=json)


@app.command()
def grade(
    file: Annotated[Path, typer.Argument(help="Rows with a response and its true answer, as JSON lines.")],
    output: Annotated[Path, typer.Option(help="Where the graded rows go.")],
    response_key: Annotated[str, typer.Option(help="Field with the response.")] = "response",
    answer_key: Annotated[str, typer.Option(help="Field with the true answer, or a list of them.")] = "ground_truth",
    extraction: Annotated[
        Literal["strict", "lenient"], typer.Option(help="strict: a marked answer only; lenient.")
    ] = "lenient",
) -> None:
    """Grade responses: adds `correct`, `extracted` and `rule` to every row."""
    from mathrl.cli.grade import grade_file

    grade_file(file, response_key, answer_key, output, extraction)


@app.command()
def sources() -> None:
    """List the named problem sets: hub id, splits, licence."""
    from mathrl.data.registry import REGISTRY

    for name, named in sorted(REGISTRY.items()):
        typer.echo(f"{name:<22} {named.hub:<44} {', '.join(named.splits):<18} {named.licence}")


@app.command()
def decontaminate(
    train: Annotated[Path, typer.Option(help="Training rows.")],
    against: Annotated[list[Path], typer.Option(help="Evaluation rows; further files may follow.")],
    output: Annotated[Path, typer.Option(help="Where the clean rows go.")],
    report: Annotated[Path, typer.Option(help="Where every hit goes, strongest first.")],
    ngram: Annotated[int, typer.Option(min=3, help="Grams in a row that count as a hit.")] = 10,
    min_share: Annotated[
        float, typer.Option(min=0, max=1, help="Shared grams over the smaller text's, at least.")
    ] = 0.0,
    more: Annotated[list[Path] | None, typer.Argument(help="Further files after --against.")] = None,
) -> None:
    """Drop the training rows that share n-grams with evaluation rows; every hit is reported."""
    from mathrl.data.decontaminate_files import decontaminate_files

    figures = decontaminate_files(
        train, [*against, *(more or [])], ngram=ngram, min_share=min_share, output=output, report=report
    )
    typer.echo(f"{figures['rows']} rows, {figures['kept']} kept, {figures['dropped']} dropped")
    for file, hits in sorted(figures["hits_by_file"].items()):
        typer.echo(f"  {file}: {hits}")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="Curated problems, such as data/curated/rl.jsonl.")],
    output: Annotated[Path, typer.Option(help="Where the rows go; .parquet or .jsonl.")],
    format: Annotated[Literal["verl", "rlinf"], typer.Option(help="Whose rows.")] = "verl",
) -> None:
    """Write curated problems as veRL or RLinf rows."""
    from mathrl.core.problems import read_problems
    from mathrl.data.export import export as write

    typer.echo(f"{write(read_problems(file), format, output)} rows in {output}")


@app.command()
def runs(
    prune: Annotated[list[str] | None, typer.Option(help="Remove the run of this name; all removes every one.")] = None,
    promote: Annotated[
        str | None, typer.Option(help="Write the parameters of the run of this name into params/.")
    ] = None,
) -> None:
    """List the worktrees under runs/, remove some, or take one's parameters over, to commit them."""
    from mathrl.cli.runs import list_runs

    list_runs(prune or [], promote)


@app.command()
def plan(
    preset: Preset = None,
    set_: Set = None,
    gpus: Annotated[int | None, typer.Option(help="Processes, one a GPU.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Of one GPU, such as 24GB; else CPUs.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Typical, not the longest.")] = None,
    response_tokens: Annotated[int | None, typer.Option(help="Typical, not the longest.")] = None,
    simulate: Annotated[str | None, typer.Option(help="Instead: a file of params/simulate, by name or path.")] = None,
) -> None:
    """Memory of a run by part, and what to change where it does not fit; exit status 1 then.

    With --simulate: seconds a step at any size, colocated, one step ahead and asynchronous.
    """
    from mathrl.cli.plan import plan as plan_run
    from mathrl.cli.simulate import show_simulation

    if simulate is not None:
        return show_simulation(simulate)

    if not plan_run(preset, set_ or [], gpus, gpu_memory, prompt_tokens, response_tokens):
        raise typer.Exit(1)


@app.command()
def health(
    run: Annotated[str, typer.Argument(help="A stage, a recipe's step, a folder with metrics, an MLflow run.")],
    json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> None:
    """Say what the metrics of a run tell of its health: evidence, cause, remedy; exit status 1 if red."""
    from mathrl.cli.health import health as examine

    raise typer.Exit(examine(run, as_json=json))


@app.command()
def report(
    run: Annotated[
        str, typer.Argument(help="A stage, a recipe's step, a run under runs/, an MLflow run.")
    ] = "pipeline",
    output: Annotated[Path | None, typer.Option(help="Where the HTML file goes.")] = None,
) -> None:
    """Write one HTML file: verdict, curves, examples before and after, health, lineage, how to reproduce."""
    from mathrl.cli.report import report as write

    write(run, output)


@app.command()
def lineage(
    model: Annotated[str | None, typer.Argument(help="NAME, NAME:VERSION or NAME@ALIAS.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Forward instead, from a path or a digest.")] = None,
    output: Annotated[Path | None, typer.Option(help="Draw it into this HTML file.")] = None,
) -> None:
    """A registered model's way back to its sources, or a dataset's way forward to every model."""
    from mathrl.cli.lineage import lineage as walk

    walk(model, dataset, output)


@app.command()
def promote(
    model: Annotated[str, typer.Argument(help="NAME (its candidate), NAME:VERSION or NAME@ALIAS.")],
    benchmark: Annotated[str | None, typer.Option(help="Where it must beat the champion.")] = None,
    preset: Preset = None,
    set_: Set = None,
) -> None:
    """Make a registered version the champion, if the gate lets it; exit status 1 if not."""
    from mathrl.cli.promote import promote as through_gate

    through_gate(model, benchmark, preset, set_ or [])


@app.command()
def rollback(model: Annotated[str, typer.Argument(help="A registered model's name.")]) -> None:
    """Make the champion before the present one champion again."""
    from mathrl.cli.promote import rollback as back

    back(model)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A Hugging Face model folder, or a hub id.")],
    port: Annotated[int, typer.Option(help="Its port; a run names it in rollout.servers.urls.")] = 8001,
    host: Annotated[str, typer.Option(help="Another address than loopback lets others in.")] = "127.0.0.1",
    preset: Preset = None,
    set_: Set = None,
) -> None:
    """Serve a model with vLLM, for runs with rollout.engine=vllm_server; Ctrl-C ends it."""
    from mathrl.cli.serve import serve as become_server

    become_server(model, host, port, preset, set_ or [])


@app.command()
def sync() -> None:
    """Upload to MLflow what could not be uploaded while a run went on."""
    from mathrl.tracking.mirror import sync as upload

    typer.echo(f"{upload()} runs are complete in MLflow")


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing, and the command that mends it."""
    from mathrl.cli.doctor import examine

    raise typer.Exit(examine())


@app.command()
def ui(
    prefect_port: Annotated[int, typer.Option(help="Port of Prefect's server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of MLflow's server.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need --open.")] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open", help="Let other machines in; both servers need a login.")] = False,
    slots: Annotated[int | None, typer.Option(min=1, help="Flows that compute at a time; 2 at first.")] = None,
) -> None:
    """Start Prefect and MLflow on this machine with the flows deployed; Ctrl-C ends them."""
    from mathrl.cli.ui import serve

    serve(prefect_port, mlflow_port, host, open_=open_, slots=slots)


def main() -> None:
    """A user's mistake is one line on stderr and exit status 2."""
    try:
        app()
    except UserError as error:
        print(f"error: {without_logins(str(error))}", file=sys.stderr)
        raise SystemExit(EXIT_USER_ERROR) from None
