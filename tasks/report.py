"""Results as Prefect artifacts: the table, the verdict, pictures, examples, and links to MLflow and the rollouts."""

import base64
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.runtime import flow_run

from mathrl.core.errors import without_logins
from mathrl.core.markdown import cell, table
from mathrl.core.metrics import complete_rows
from mathrl.core.mirroring import CURVES_VIEW, TRAINING, mlflow_page, results_address
from mathrl.core.paths import RECIPES, rollouts_page, tracking_uri
from mathrl.core.records import RunRecord, all_records, newest_record
from mathrl.core.results import (
    EvaluationSummary,
    RecipeSummary,
    read_recipe_summary,
    results_table,
    training_sentence,
    training_table,
)
from mathrl.evaluation.conclusion import conclusion
from mathrl.recipes.recipe import CLAIM
from mathrl.tasks.graph import Graph

LINKED: set[Path] = set()  # records, and their rollouts, to which this process has made a link


def artifact_key(name: str) -> str:
    """Prefect takes lower-case letters, digits and dashes.

    >>> artifact_key("online_rft-s0-progress")
    'online-rft-s0-progress'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def run_page(record: RunRecord) -> str | None:
    """The address of a record's MLflow run; None without a server, or before the mirror has sent it."""
    return mlflow_page(record.mirror_state(), record.mirror_state().run_id)


def parent_page(record: RunRecord) -> str | None:
    """As `run_page`, of the MLflow run that holds the record's."""
    return mlflow_page(record.mirror_state(), record.mirror_state().parent)


def compare_page(record: RunRecord) -> str | None:
    """The curves of all runs of the record's stage in its experiment, best on dev first; those of RL are a saved view.

    In MLflow's order by time runs hide under their parent, which has no curves; by a metric they do not.
    """
    page = run_page(record)
    if page is None:
        return None
    options = (
        {"compareRunsMode": "CHART", "viewStateShareKey": CURVES_VIEW}
        if record.stage == "rl"
        else {
            "compareRunsMode": "CHART",
            "orderByAsc": "false",
            "orderByKey": "metrics.`final/dev/accuracy`",
            "searchFilter": f"tags.`mlflow.source.name` = 'mathrl.stages.{record.stage}'",
        }
    )
    query = urllib.parse.urlencode(options, quote_via=urllib.parse.quote)
    return f"{page.rpartition('/')[0]}{TRAINING}&{query}"


def results_page(record: RunRecord) -> str | None:
    """The list of the runs of the record's experiment with their results, best first."""
    experiment = record.mirror_state().experiment
    return results_address(without_logins(tracking_uri()), experiment) if run_page(record) else None


def link_run(record: RunRecord, step: str) -> None:
    """The artifact `<step>-mlflow`, once, as soon as the run is in MLflow."""
    page = None if record.folder in LINKED else run_page(record)
    if page:
        key = artifact_key(f"{step}-mlflow")
        text = f"Curves, parameters and files of {step}"
        create_link_artifact(page + TRAINING, key=key, link_text=f"{step} in MLflow", description=text)
        LINKED.add(record.folder)


def link_rollouts(record: RunRecord, step: str) -> None:
    """The artifact `<step>-rollouts`, once, as soon as the run has started to keep rollouts."""
    if record.keeps_rollouts and record.rollouts.exists() and record.rollouts not in LINKED:
        key = artifact_key(f"{step}-rollouts")
        text = "`mathrl ui` serves the page; without it: `mathrl runs rollouts`"
        create_link_artifact(
            rollouts_page(record.folder.name), key=key, link_text=f"rollouts of {step}", description=text
        )
        LINKED.add(record.rollouts)


def records_of(flow_run: str) -> Iterator[RunRecord]:
    """The record of every stage that the flow run ran, oldest first."""
    return (record for record in all_records() if flow_run and record.prefect_flow_run == flow_run)


def newest_of(folder: Path, stage: str = "") -> RunRecord | None:
    """The record of the stage (by default of any) that ran last in the workspace `folder`."""
    return newest_record(lambda record: record.workspace == str(folder) and stage in ("", record.name))


LONGEST_TEXT = 60_000


def health_markdown(health: Mapping[str, Any]) -> str:
    """The findings of `mathrl.health.watch` as a table."""
    text = f"# Health: {health['colour']}\n\nafter {health['steps']} steps\n"
    rows = (
        (row["colour"], row["rule"], f"{row['first']} to {row['last']}", row["evidence"], row["cause"], row["remedy"])
        for row in health["findings"]
    )
    lines = table(("", "rule", "steps", "evidence", "cause", "remedy"), rows)
    return text + "\n" + "\n".join(lines) + "\n" if health["findings"] else text


def report_stages(folder: Path, stages: Sequence[str]) -> None:
    """Artifacts of a run of the pipeline: the table of results, then links, whose keys all begin with results.

    Prefect lists a flow run's own artifacts before those of its tasks, both by key. Keys are the same for every run, so
    that the UI shows their history.
    """
    if "evaluate" in stages:
        _results(folder)
        _page(folder)
    else:
        _stage_results(folder, stages[-1])
    link_to_mlflow(folder, stages[-1])


def report_recipe(folder: Path, name: str) -> None:
    """Artifacts of a recipe's run: links, the conclusion of its claim, what its tests show, the table of its models."""
    link_to_mlflow(folder, name)
    if not (summary := recipe_summary(folder, name)):
        return
    key = artifact_key(f"recipe-{name}")
    for benchmark, results in summary.get(CLAIM, {}).items():
        text = "\n".join(f"- {cell(line)}" for line in conclusion(results))
        about = f"What the controls of {name} leave of the gain: {benchmark}"
        create_markdown_artifact(text, key=artifact_key(f"{name}-{benchmark}"), description=about)
    text = "\n".join(f"- {cell(verdict)}" for verdict in verdicts(summary))
    about = f"Which models of recipe {name} are better"
    create_markdown_artifact(text or "One model: nothing to compare.", key=f"{key}-verdicts", description=about)
    # Last: Prefect shows the newest first.
    create_table_artifact(summary_rows(summary), key=key, description=f"Accuracy of the models of recipe {name}")


def recipe_summary(folder: Path, name: str) -> RecipeSummary:
    """pipelines/recipes/<name>/summary.json; empty for a recipe without an evaluate step."""
    file = folder / RECIPES / name / "summary.json"
    return read_recipe_summary(file) if file.exists() else {}


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


def report_step(graph: Graph, step: str) -> None:
    """Artifacts of what a step left: pictures and text of its report."""
    folder, reports = graph.folder, graph.place(step, "report")
    show_pictures(step, reports.glob("*.png"))
    for file in reports.glob("*.md"):
        text = file.read_text(encoding="utf-8")
        if len(text) > LONGEST_TEXT:  # cut between lines: half a code span would be HTML
            text = text[:LONGEST_TEXT].rpartition("\n")[0]
        about = f"What {step} did, from {file.relative_to(folder)}"
        create_markdown_artifact(text, key=artifact_key(f"{step}-{file.stem}"), description=about)


def show_pictures(step: str, files: Iterable[Path]) -> None:
    for picture in sorted(files):
        data = base64.b64encode(picture.read_bytes()).decode()
        key = artifact_key(f"{step}-{picture.stem}")
        about = f"{picture.stem.replace('_', ' ')} of {step}".replace(f"{step} of {step}", step)
        create_image_artifact(f"data:image/png;base64,{data}", key=key, description=about)


def link_to_mlflow(folder: Path, name: str) -> None:
    """Links to the MLflow runs of stages that ended before they had one, and to the run that holds all of them."""
    records = list(records_of(str(flow_run.id or "")))
    for record in records:
        # Others would be listed before `results`; the run that holds the stages links them.
        if record.recipe or artifact_key(record.step) > "results":
            link_run(record, record.step)
        link_rollouts(record, record.step)
    newest = newest_of(folder)
    page = parent_page(newest) if newest else None
    if page:
        about = f"The run of {name} with its stages, figures and changed parameters"
        create_link_artifact(page + TRAINING, key="results-mlflow", link_text="Run in MLflow", description=about)
    results = results_page(newest) if newest else None
    if results:
        about = "All runs of this experiment, the most accurate first"
        create_link_artifact(results, key="results-all-runs", link_text="Results of all runs", description=about)
    trained = [record for record in records if record.step in ("sft", "rl")]
    curves = compare_page(trained[-1]) if trained else None
    if curves:
        about = "Rewards, accuracy and length by step, beside those of the experiment's other runs"
        create_link_artifact(curves, key="results-curves", link_text="Compare curves", description=about)


def _page(folder: Path) -> None:
    """A link to the newest report of the workspace: in MLflow if there is a server, else on the page of `mathrl ui`."""
    record = newest_of(folder, "register")
    file = record.artifacts / "report.html" if record else None
    if record is None or file is None or not file.exists():
        return
    page = run_page(record)
    link = f"{page}/artifacts/{file.name}{TRAINING}" if page else f"{rollouts_page(record.folder.name)}{file.name}"
    create_link_artifact(
        link,
        key="results-report",
        link_text="Report of the run",
        description="All figures, curves and examples of the run on one page",
    )


def _stage_results(folder: Path, stage: str) -> None:
    """The table of a run that ends before the evaluation: the last stage's figures, first and last."""
    record = newest_of(folder, stage)
    if record is None:  # its outputs came from DVC's cache
        return
    rows = training_table(complete_rows(record.metrics_file), record.summary)
    colour = record.health["colour"] if record.health else ""
    create_table_artifact(rows, key="results", description=training_sentence(stage, rows, colour))


def _results(folder: Path) -> None:
    summary = EvaluationSummary.read(folder / "reports" / "summary.json")
    create_table_artifact(results_table(summary.models), key="results", description=summary.verdict)
