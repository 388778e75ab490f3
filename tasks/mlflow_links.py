"""Where a stage's record is shown in MLflow, and the keys of artifacts."""

import json
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact

from mathrl.core.paths import home, shown, tracking_uri

TRAINING = "?workflowType=machine_learning"  # MLflow's pages for training, not for GenAI
LINKED: set[Path] = set()  # records to whose runs this process has made a link


def artifact_key(name: str) -> str:
    """Prefect takes lower-case letters, digits and dashes.

    >>> artifact_key("online_rft-s0-progress")
    'online-rft-s0-progress'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def run_page(record: Path, which: str = "run_id") -> str | None:
    """The address of a record's MLflow run, or of its parent's (`which`: parent); None where no server is, or
    where the mirror has not sent it yet."""
    uri = shown(tracking_uri())
    known = read(record / "mirror.json")
    if not uri.startswith("http") or which not in known:
        return None
    return f"{uri}/#/experiments/{known['experiment']}/runs/{known[which]}"


def compare_page(record: Path) -> str | None:
    """The curves of all runs of the record's stage in its experiment, best on dev first.

    In MLflow's order by time runs hide under their parent, which has no curves; by a metric they do not.
    """
    page, stage = run_page(record), read(record / "run.json").get("stage")
    if page is None:
        return None
    shown_as = {
        "compareRunsMode": "CHART",
        "orderByAsc": "false",
        "orderByKey": "metrics.`final/dev/accuracy`",
        "searchFilter": f"tags.`mlflow.source.name` = 'mathrl.stages.{stage}'",
    }
    words = urllib.parse.urlencode(shown_as, quote_via=urllib.parse.quote)
    return f"{page.rpartition('/')[0]}{TRAINING}&{words}"


def link_run(record: Path, step: str) -> None:
    """The artifact `<step>-mlflow`, once, as soon as the run is in MLflow."""
    page = None if record in LINKED else run_page(record)
    if page:
        key = artifact_key(f"{step}-mlflow")
        create_link_artifact(page + TRAINING, key=key, link_text=f"{step} in MLflow")
        LINKED.add(record)


def records_of(flow_run: str) -> Iterator[tuple[str, Path]]:
    """Stage or step and record of every stage that the flow run ran."""
    for file in sorted((home() / "records").glob("*/run.json"), key=lambda f: f.stat().st_mtime_ns):
        facts = read(file)
        if flow_run and facts.get("prefect_flow_run") == flow_run:
            yield facts["name"].rpartition("/")[2], file.parent


def newest_record(folder: Path, pattern: str = "*") -> Path | None:
    """The record of the stage that was run last in the workspace `folder`."""
    files = sorted((home() / "records").glob(f"{pattern}/run.json"), key=lambda f: f.stat().st_mtime_ns)
    of_folder = (file.parent for file in reversed(files) if read(file).get("workspace") == str(folder))
    return next(of_folder, None)


def read(file: Path) -> dict[str, Any]:
    """A JSON file; empty where it is not there, or half written."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
