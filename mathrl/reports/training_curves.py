"""Metrics over steps as pictures."""

import math
import shutil
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from mathrl.core.figures import LINES, panels
from mathrl.core.files import write_jsonl
from mathrl.core.metrics import without_timings

FEW = 20  # points that are marked one by one


def draw_curves(rows: Sequence[Mapping[str, Any]], labels: Sequence[Mapping[str, str]], path: Path, title: str) -> None:
    """One panel per entry of `labels`, side by side: metric name → label; metrics without a value are left out.

    The same rows give the same bytes.
    """
    logged = {name for row in rows for name in row}
    shown = [{name: label for name, label in panel.items() if name in logged} for panel in labels]
    shown = [panel for panel in shown if panel]
    count = max(1, len(shown))
    with panels(path, count, 4.6 * count, 3.4) as all_axes:
        for axes, panel in zip(all_axes, shown, strict=False):
            draw_metrics(axes, rows, panel)
            axes.legend(fontsize=9)
        all_axes[0].figure.suptitle(title, fontsize=11)


def draw_metrics(axes: Any, rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> None:
    """A line per metric; values that are not finite are left out, few points are marked one by one."""
    for colour, (name, label) in zip(cycle(LINES), labels.items(), strict=False):
        points = [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
        style = {"marker": "o", "markersize": 4} if len(points) <= FEW else {}
        axes.plot(*zip(*points, strict=True) if points else ([], []), color=colour, label=label, linewidth=1.6, **style)
    axes.set_xlabel("step")


def report_curves(
    metrics: Path, folder: Path, copy: Path, labels: Sequence[Mapping[str, str]], title: str
) -> list[dict[str, Any]]:
    """Write the rows of `metrics` without timings into `folder`, as metrics.jsonl and as curve.png.

    The picture is copied to `copy`. Returns the rows.
    """
    rows = without_timings(metrics)
    write_jsonl(folder / "metrics.jsonl", rows)
    draw_curves(rows, labels, folder / "curve.png", title)
    shutil.copy(folder / "curve.png", copy)
    return rows
