"""What the stages that train have in common: the exchange with other ranks, and the report at the end."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mathrl.core.environment import rank
from mathrl.core.files import write_json, written_aside
from mathrl.params import Params
from mathrl.stages.stage_run import StageRun

if TYPE_CHECKING:
    from mathrl.health.watch import HealthMonitor
    from mathrl.learners.distributed import Ranks


def open_ranks(params: Params) -> Ranks:
    """The stage's ranks, of which this process is one."""
    from mathrl.learners.distributed import Ranks
    from mathrl.models.device import choose_device

    return Ranks(choose_device(params.run.device), params.training)


def write_report(
    run: StageRun,
    report: Path,
    title: str,
    panels: Sequence[Mapping[str, str]],
    datasets: Mapping[str, Sequence[Path]],
    summary: Mapping[str, float],
    health: HealthMonitor | None = None,
    rollouts: Path | None = None,
) -> None:
    """Rank 0 writes the folder `report` (metrics.jsonl, curve.png and, with `health`, health.json, with `rollouts` a
    copy of that file) and the run's last facts; the other ranks do nothing."""
    if rank() != 0:
        return
    from mathrl.health.watch import examine
    from mathrl.reports.training_curves import report_curves

    with written_aside(report) as folder:
        folder.mkdir(parents=True)
        picture = run.artifacts / f"{run.name}_curve.png"
        rows = report_curves(run.metrics_file, folder, picture, panels, title)
        if rollouts is not None:
            shutil.copy(rollouts, folder)
        if health is not None:
            findings = examine(rows, health.watch.health, health.watch.rl).report()
            write_json(folder / "health.json", findings)
            run.health(findings)
    for name, files in datasets.items():
        for file in files:
            run.dataset(name, file)
    if summary:
        run.summary(summary)
