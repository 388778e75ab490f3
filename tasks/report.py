"""What came out, as Prefect artifacts: the table, the verdict, pictures, examples, links."""

import base64
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from mathrl.core.places import home, shown, tracking_uri

# What each stage leaves that is worth a look.
PICTURES = {
    "curate": "reports/curate/*.png",
    "sft": "reports/sft/*.png",
    "difficulty": "reports/difficulty/*.png",
    "rl": "reports/rl/*.png",
    "evaluate": "reports/evaluate/*.png",
}
BESIDE = {"pages": "reports/pages/*.png"}  # no part of the pipeline
TEXTS = {
    "curate": "reports/curate/report.md",
    "evaluate": "reports/evaluate/examples.md",
    "pages": "reports/pages/report.md",
}
LONGEST_TEXT = 60_000


def artifact_key(name: str) -> str:
    """Prefect takes lower-case letters, digits and dashes.

    >>> artifact_key("online_rft-s0-progress")
    'online-rft-s0-progress'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def health_markdown(told: Mapping[str, Any]) -> str:
    """The findings of `mathrl.trainers.health` as a table."""
    text = f"# Health: {told['colour']}\n\nafter {told['steps']} steps\n"
    if told["findings"]:
        text += "\n| | rule | steps | evidence | cause | remedy |\n|---|---|---|---|---|---|\n"
    for each in told["findings"]:
        cells = [each["colour"], each["rule"], f"{each['first']} to {each['last']}",
                 *(each[name].replace("|", "\\|") for name in ("evidence", "cause", "remedy"))]  # fmt: skip
        text += f"| {' | '.join(cells)} |\n"
    return text


def report(folder: Path, last: str) -> None:
    """Artifacts of the stages up to `last` that the folder holds.

    Keys are the same for every run, so that the UI shows their history.
    """
    reached = list(PICTURES)[: list(PICTURES).index(last) + 1] if last in PICTURES else list(PICTURES)
    for stage in [last] if last in BESIDE else reached:
        for picture in sorted(folder.glob((PICTURES | BESIDE)[stage])):
            data = base64.b64encode(picture.read_bytes()).decode()
            key = artifact_key(f"{stage}-{picture.stem}")
            create_image_artifact(f"data:image/png;base64,{data}", key=key, description=picture.name)
        if stage in TEXTS and (folder / TEXTS[stage]).exists():
            text = (folder / TEXTS[stage]).read_text(encoding="utf-8")[:LONGEST_TEXT]
            create_markdown_artifact(text, key=f"{stage}-report", description=TEXTS[stage])
    if last in ("evaluate", "register"):
        _results(folder)
        _page(folder)
    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        create_link_artifact(shown(tracking_uri()), key="mlflow", link_text="Runs in MLflow")


def _page(folder: Path) -> None:
    """A link to the newest report of the workspace: in MLflow where there is a server, else the file."""
    files = sorted(
        (home() / "records").glob("register-*/artifacts/report.html"), key=lambda f: f.stat().st_mtime
    )
    for file in reversed(files):
        record = file.parents[1]
        if json.loads((record / "run.json").read_text())["workspace"] != str(folder):
            continue
        uri = shown(tracking_uri())
        sent = record / "mirror.json"
        link = file.as_uri()
        if uri.startswith("http") and sent.exists():
            known = json.loads(sent.read_text())
            link = f"{uri}/#/experiments/{known['experiment']}/runs/{known['run_id']}/artifacts/{file.name}"
        create_link_artifact(link, key="report", link_text="Report of the run", description=str(file))
        return


def _results(folder: Path) -> None:
    summary: dict[str, Any] = json.loads((folder / "reports" / "summary.json").read_text(encoding="utf-8"))
    ks = sorted(int(key[8:]) for key in next(iter(summary["models"].values())) if key[8:].isdigit())
    k = ks[-1]
    rows = [
        {
            "model": name,
            "pass@1": f"{each['pass_at_1']:.3f}",
            "interval": f"{each['pass_at_1_low']:.3f} to {each['pass_at_1_high']:.3f}",
            f"pass@{k}": f"{each[f'pass_at_{k}']:.3f}",
            f"maj@{k}": f"{each.get(f'maj_at_{k}', each['pass_at_1']):.3f}",
            "mean response length": f"{each['response_length']:.1f}",
        }
        for name, each in summary["models"].items()
    ]
    create_table_artifact(rows, key="results", description=summary["verdict"])
