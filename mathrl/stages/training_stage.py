"""What the stages that train have in common: the exchange with other ranks, and the report at the end."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathrl.core.environment import rank
from mathrl.core.files import write_json, written_aside
from mathrl.health.watch import HealthMonitor, examine
from mathrl.params.run import Model
from mathrl.reports.html_figures import report_curves
from mathrl.stages.stage_run import StageRun

if TYPE_CHECKING:
    from mathrl.trainers.training_run import TrainingRun


def open_training(
    run: StageRun, health: HealthMonitor | None = None, rollouts: Path | None = None, device: str | None = None
) -> TrainingRun:
    """Join the stage's ranks, of which this process is one, on `device` (default: `run.device`). Imports torch: check
    the inputs before."""
    from mathrl.learners.distributed import Ranks
    from mathrl.models.device import choose_device
    from mathrl.trainers.training_run import TrainingRun

    params = run.params
    ranks = Ranks(choose_device(device or params.run.device), params.training)
    return TrainingRun(ranks, run.state, params.run.seed, run.open_metrics, health, rollouts, run.record.events)


def load_start(folder: Path, model: Model, training: TrainingRun) -> tuple[Any, Any]:
    """The model of a folder as the backend trains it, and its tokenizer."""
    from mathrl.learners.sharding import load_to_train
    from mathrl.models.load import load_model, load_tokenizer

    return load_to_train(load_model, folder, model, training.ranks), load_tokenizer(folder, model)


def write_model(network: Any, tokenizer: Any, folder: Path, card: str) -> None:
    """Export a trained model, with its card; every rank calls it."""
    from mathrl.models.load import export_model

    export_model(network, tokenizer, folder, card)


def write_report(
    run: StageRun,
    report: Path,
    title: str,
    panels: Sequence[Mapping[str, str]],
    datasets: Mapping[str, Sequence[Path]],
    summary: Mapping[str, float],
    health: HealthMonitor | None = None,
    files: Sequence[Path] = (),
) -> None:
    """Rank 0 writes the folder `report` (metrics.jsonl, curve.png, with `health` health.json, and copies of `files`)
    and the run's last facts; the other ranks do nothing."""
    if rank() != 0:
        return
    with written_aside(report) as folder:
        folder.mkdir(parents=True)
        picture = run.artifacts / f"{run.name}_curve.png"
        rows = report_curves(run.metrics_file, folder, picture, panels, title)
        for file in files:
            shutil.copy(file, folder)
        if health is not None:
            findings = examine(rows, health.watch.health, health.watch.rl).report()
            write_json(folder / "health.json", findings)
            run.health(findings)
    for name, data in datasets.items():
        run.datasets(name, data)
    if summary:
        run.summary(summary)
