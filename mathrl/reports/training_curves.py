"""Metrics over steps as pictures."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from mathrl.core.files import write_jsonl
from mathrl.core.metrics import without_timings

COLOURS = ("#1f5fa8", "#c2571a", "#3c8031", "#7b3fa0")


def draw_curves(rows: Sequence[Mapping[str, Any]], panels: Sequence[Mapping[str, str]], path: Path, title: str) -> None:
    """One panel each of `panels`, side by side: metric name → label; metrics without a value are left out.

    The same rows give the same bytes.
    """
    known = {name for row in rows for name in row}
    shown = [{name: label for name, label in panel.items() if name in known} for panel in panels]
    shown = [panel for panel in shown if panel]
    count = max(1, len(shown))
    figure, axes = pyplot.subplots(1, count, figsize=(4.6 * count, 3.4), squeeze=False)
    for axis, panel in zip(axes[0], shown, strict=False):
        for colour, (name, label) in zip(COLOURS, panel.items(), strict=False):
            points = [(row["step"], row[name]) for row in rows if name in row]
            style = {"marker": "o", "markersize": 4} if len(points) <= 20 else {}
            axis.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.6, **style)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def report_curves(
    metrics: Path, folder: Path, copy: Path, panels: Sequence[Mapping[str, str]], title: str
) -> list[dict[str, Any]]:
    """The rows of `metrics` without timings into `folder`, as metrics.jsonl and as curve.png, which is copied
    to `copy` too; returns the rows.
    """
    rows = without_timings(metrics)
    write_jsonl(folder / "metrics.jsonl", rows)
    draw_curves(rows, panels, folder / "curve.png", title)
    shutil.copy(folder / "curve.png", copy)
    return rows
