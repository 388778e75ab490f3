"""`mathrl lineage`: a registered model's way back, or a dataset's way forward, printed and drawn."""

import html
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.hashing import digest_path
from mathrl.tracking.client import connect
from mathrl.tracking.lineage import Back, Step, way_back, way_forward

BOX, GAP, ROW = (230, 64), 90, 92
STYLE = (
    "body{font:14px sans-serif;margin:2em;color:#222}text{font:12px sans-serif}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3em .6em;text-align:left;"
    "vertical-align:top}code{font-size:12px;overflow-wrap:anywhere}"
)


def lineage(model: str | None, dataset: str | None, output: Path | None) -> None:
    """Print the way, and write `output` (HTML with the picture in it) for a model.

    Raises:
        UserError: neither or both of model and dataset, or nothing known of it.
    """
    if (model is None) == (dataset is None):
        raise UserError("give a registered model NAME[:VERSION|@ALIAS], or --dataset DIGEST_OR_PATH")
    if dataset is not None:
        if output is not None:
            raise UserError("--output draws a model's way back; with --dataset there is no picture")
        _forward(dataset)
        return
    back = way_back(*connect(), str(model))
    print(told(back))
    if output is not None:
        write_text(output, page(back))
        print(f"drawn in {output}")


def told(back: Back) -> str:
    """The way back as text: nearest to the model first."""
    lines = [f"{back.name} version {back.version}, digest {back.digest}"]
    for step in sorted(back.steps, key=lambda each: each.depth):
        dirty = ", uncommitted changes" if step.dirty else ""
        lines += ["", f"{step.stage}  run {step.run}  commit {step.commit[:12] or 'unknown'}{dirty}"]
        lines += [f"  made  {path}  {digest}" for path, digest in step.outputs.items()]
        lines += [f"  read  {path}  {digest}" for path, digest in step.inputs.items()]
        lines += [f"  source {name}  {digest}" for name, digest in step.sources.items()]
        lines += [f"  param {name} = {value}" for name, value in sorted(step.params.items())]
    lines += ["", _complete(back)]
    return "\n".join(lines)


def page(back: Back) -> str:
    """One HTML file with the picture and the tables; nothing is loaded."""
    title = html.escape(f"{back.name} version {back.version}")
    rows = "".join(_row(step) for step in back.steps)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><p>Digest <code>{html.escape(back.digest)}</code>."
        f" {html.escape(_complete(back))}</p>"
        f"<div style='overflow-x:auto'>{picture(back)}</div><table><tr><th>stage<th>run<th>commit<th>made"
        f"<th>read<th>parameters</tr>{rows}</table></html>\n"
    )


def picture(back: Back) -> str:
    """The steps as an SVG, sources at the left: a column is the longest way to the model."""
    column = _columns(back)
    last = max(column.values())
    rows: dict[int, int] = {}
    at: dict[str, tuple[int, int]] = {}
    for step in back.steps:
        place = last - column[step.run]
        at[step.run] = (10 + place * (BOX[0] + GAP), 10 + rows.get(place, 0) * ROW)
        rows[place] = rows.get(place, 0) + 1
    width, height = 20 + (last + 1) * (BOX[0] + GAP) - GAP, 20 + max(rows.values()) * ROW
    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'>"]
    for maker, reader in sorted({(maker, reader) for maker, _, reader in back.edges}):
        (x, y), (u, v) = at[maker], at[reader]
        x, y, v = x + BOX[0], y + BOX[1] // 2, v + BOX[1] // 2
        bend = (x + u) // 2
        parts.append(f"<path d='M{x} {y}C{bend} {y} {bend} {v} {u} {v}' fill='none' stroke='#888'/>")
    for step in back.steps:
        x, y = at[step.run]
        texts = (step.stage, f"run {step.run[:8]}, commit {step.commit[:8]}", ", ".join(step.outputs)[:36])
        parts.append(f"<rect x='{x}' y='{y}' width='{BOX[0]}' height='{BOX[1]}' rx='4' fill='#eef3fa' "
                     "stroke='#456'/>")  # fmt: skip
        parts += [f"<text x='{x + 8}' y='{y + 18 + 18 * n}'>{html.escape(text)}</text>"
                  for n, text in enumerate(texts)]  # fmt: skip
    return "".join([*parts, "</svg>"])


def _columns(back: Back) -> dict[str, int]:
    column = {step.run: 0 for step in back.steps}
    for _ in back.steps:  # no way is longer than there are steps
        for maker, _path, reader in back.edges:
            column[maker] = max(column[maker], min(column[reader] + 1, len(back.steps)))
    return column


def _row(step: Step) -> str:
    def listed(pairs: dict[str, str]) -> str:
        return "<br>".join(
            f"{html.escape(a)} <code>{html.escape(b)}</code>" for a, b in sorted(pairs.items())
        )

    params = f"<details><summary>{len(step.params)}</summary>{listed(dict(step.params))}</details>"
    dirty = " + uncommitted changes" if step.dirty else ""
    cells = (html.escape(step.stage), f"<code>{step.run}</code>", f"<code>{step.commit}</code>{dirty}",
             listed(dict(step.outputs)), listed({**step.inputs, **step.sources}), params)  # fmt: skip
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells) + "</tr>"


def _complete(back: Back) -> str:
    if not back.unexplained:
        return f"complete: {len(back.steps)} runs, every input made by one of them"
    missing = ", ".join(f"{path} ({digest[:12]})" for _, path, digest in back.unexplained)
    return f"not complete: no run in MLflow made {missing}; `mathrl sync` uploads what was kept back"


def _forward(dataset: str) -> None:
    path = Path(dataset)
    digest = digest_path(path) if path.exists() else dataset
    steps, models = way_forward(*connect(), digest)
    print(f"{dataset}, digest {digest}")
    for step in steps:
        print(f"  {'  ' * step.depth}{step.stage}  run {step.run}")
    for model in models:
        print(f"{model.name} version {model.version}: {'made from it' if model.made else 'measured with it'}")
    if not models:
        print("no registered model")
