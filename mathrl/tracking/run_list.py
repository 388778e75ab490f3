"""The list of runs as MLflow has it: a row per pipeline, recipe or sweep, with the figures of its parent run.

Imported runs that MLflow lacks are rows too.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.core.records import IMPORTED, RunRecord, all_records
from mathrl.tracking.client import experiments

PAGE = 1000


@dataclass(frozen=True)
class RunRow:
    """One run.

    Example:
        RunRow(name="pipeline lr=0.002", run="4f2c…", started=1.78e9, status="FINISHED", folder="rl-lr_2e-3-1f",
               health="green", figures={"dev/best": 0.97, "rl/pass_at_1": 0.98, …})

    `folder` is the name of its worktree under runs/; empty for a run in the checkout.
    """

    name: str
    run: str
    started: float
    status: str
    folder: str
    health: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """Its fields with the figures of the table by short names; None where it has none."""
        figure = self.figures.get
        return {
            "name": self.name,
            "run": self.run,
            "started": self.started,
            "status": self.status,
            "folder": self.folder,
            "health": self.health,
            "dev": figure("dev/best"),
            "sft": figure("sft/pass_at_1"),
            "rl": figure("rl/pass_at_1"),
            "rl_low": figure("rl/pass_at_1_low"),
            "rl_high": figure("rl/pass_at_1_high"),
            "sampled_tokens": figure("sampled_tokens"),
            "minutes": figure("minutes"),
        }

    def cells(self) -> dict[str, str]:
        """Its row of the table on the terminal; the second line has the interval, and the folder under runs/."""
        figure = self.figures.get
        low, high, tokens = (figure(name) for name in ("rl/pass_at_1_low", "rl/pass_at_1_high", "sampled_tokens"))
        interval = f"\n{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
        return {
            "started": time.strftime("%m-%d %H:%M", time.localtime(self.started)),
            "run, what is different, folder": self.name + (f"\nruns/{self.folder}" if self.folder else ""),
            "best dev": _share(figure("dev/best")),
            "sft": _share(figure("sft/pass_at_1")),
            "rl": _share(figure("rl/pass_at_1")) + interval,
            "sampled": "" if tokens is None else f"{tokens / 1e6:.2f} M" if tokens >= 1e5 else f"{tokens:,.0f}",
            "min": "" if figure("minutes") is None else f"{figure('minutes'):.1f}",
            "health": self.health,
        }


def list_runs(client: Any) -> list[RunRow]:
    """Every run, the newest first: those of MLflow, and the imported ones that it does not have."""
    tracked = list(_mlflow_rows(client))
    known = {row.name for row in tracked}
    imported = [_foreign_row(record) for record in all_records(IMPORTED) if record.name not in known]
    return sorted([*tracked, *imported], key=lambda row: row.started, reverse=True)


def _foreign_row(record: RunRecord) -> RunRow:
    health = record.health["colour"] if record.health else ""
    minutes = {"minutes": (record.ended - record.started) / 60} if record.ended else {}
    return RunRow(record.name, "", record.started, "FINISHED", "", health, record.summary | minutes)


def _mlflow_rows(client: Any) -> Iterator[RunRow]:
    where, token = experiments(client), None
    while True:
        page = client.search_runs(
            where, "tags.`mathrl.role` LIKE '%'", max_results=PAGE, order_by=["start_time DESC"], page_token=token
        )
        yield from map(_row, page)
        token = page.token
        if not token:
            return


def _row(run: Any) -> RunRow:
    workspace, imported = Path(run.data.tags.get("mathrl.workspace", "")), "mathrl.imported_from" in run.data.tags
    return RunRow(
        name=run.info.run_name,
        run=run.info.run_id,
        started=run.info.start_time / 1000,
        status=run.info.status,
        folder=workspace.name if workspace.parent.name == "runs" and not imported else "",
        health=run.data.tags.get("health", "") if run.info.status != "FAILED" else "failed",
        figures=run.data.metrics,
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
