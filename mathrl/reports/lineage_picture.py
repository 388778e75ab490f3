"""Pages from templates, and the way back of a model as an inline SVG for them."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mathrl.tracking.lineage import Step

BOX, GAP, ROW = (230, 64), 90, 92
Edges = Sequence[tuple[str, str, str]]  # maker's run, path, reader's run


def render(template: str, **values: Any) -> str:
    """A page from the template of this name beside this file; texts in `values` are escaped."""
    text = Path(__file__).with_name(template).read_text("utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(text).render(**values)


def picture(steps: Sequence[Step], edges: Edges) -> Markup:
    """The steps as an SVG, sources at the left: a column is the longest way to the model."""
    column = _columns(steps, edges)
    last = max(column.values())
    rows: dict[int, int] = {}
    at: dict[str, tuple[int, int]] = {}
    for step in steps:
        place = last - column[step.run]
        at[step.run] = (10 + place * (BOX[0] + GAP), 10 + rows.get(place, 0) * ROW)
        rows[place] = rows.get(place, 0) + 1
    width, height = 20 + (last + 1) * (BOX[0] + GAP) - GAP, 20 + max(rows.values()) * ROW
    size = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' {size}>"]
    for maker, reader in sorted({(maker, reader) for maker, _, reader in edges}):
        (x, y), (u, v) = at[maker], at[reader]
        x, y, v = x + BOX[0], y + BOX[1] // 2, v + BOX[1] // 2
        bend = (x + u) // 2
        parts.append(f"<path d='M{x} {y}C{bend} {y} {bend} {v} {u} {v}' fill='none' stroke='#888'/>")
    for step in steps:
        x, y = at[step.run]
        texts = (step.stage, f"run {step.run[:8]}, commit {step.commit[:8]}", ", ".join(step.outputs)[:36])
        parts.append(f"<rect x='{x}' y='{y}' width='{BOX[0]}' height='{BOX[1]}' rx='4' fill='#eef3fa' stroke='#456'/>")
        parts += [f"<text x='{x + 8}' y='{y + 18 + 18 * n}'>{html.escape(text)}</text>" for n, text in enumerate(texts)]
    return Markup("".join([*parts, "</svg>"]))


def _columns(steps: Sequence[Step], edges: Edges) -> dict[str, int]:
    column = {step.run: 0 for step in steps}
    for _ in steps:  # no way is longer than there are steps
        for maker, _path, reader in edges:
            column[maker] = max(column[maker], min(column[reader] + 1, len(steps)))
    return column
