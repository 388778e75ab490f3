"""Where a stage's record is shown in MLflow, and the keys of artifacts."""

import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from prefect.artifacts import create_link_artifact

from mathrl.core.mirroring import CURVES_VIEW, TRAINING, mlflow_page, results_address
from mathrl.core.paths import rollouts_page, tracking_uri, without_password
from mathrl.core.records import RunRecord, all_records, newest_record

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
    return results_address(without_password(tracking_uri()), experiment) if run_page(record) else None


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
