"""`mathrl lineage`: the runs and data behind a registered model, or the models made from a dataset."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.core.code_values import code_text
from mathrl.core.errors import UserError
from mathrl.core.hashing import digest_path
from mathrl.reports.model_card import default_texts
from mathrl.tracking.client import connect
from mathrl.tracking.lineage import REMEDY, Back, way_back, way_forward


def lineage(
    model: Annotated[str | None, typer.Argument(help="Registered model: NAME, NAME:VERSION or NAME@ALIAS.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Path or digest of a dataset: list its models.")] = None,
    as_json: AsJson = False,
) -> None:
    """Trace a registered model back to its sources, or a dataset forward to every model made from it."""
    if (model is None) == (dataset is None):
        raise UserError("give a registered model NAME[:VERSION|@ALIAS], or --dataset DIGEST_OR_PATH")
    if dataset is not None:
        _forward(dataset, as_json)
        return
    back = way_back(connect(), str(model))
    if as_json:
        print_document(asdict(back) | {"gaps": back.gaps()})
    else:
        print(lineage_text(back))


def lineage_text(back: Back) -> str:
    """The lineage as text, the step nearest to the model first, with the parameters that differ from the defaults."""
    lines = [f"{back.name} version {back.version}, digest {back.digest}"]
    if "gate.decision" in back.tags:
        on, against = (back.tags.get(f"gate.{key}", "") for key in ("benchmark", "champion"))
        lines.append(f"gate: {back.tags['gate.decision']}; benchmark {on or 'none'}, champion then: {against}")
    shown = default_texts()
    for step in sorted(back.steps, key=lambda step: step.depth):
        dirty = ", uncommitted changes" if step.dirty else ""
        lines += ["", f"{step.stage}  run {step.run}  commit {step.commit[:12] or 'unknown'}{dirty}"]
        lines += [f"  {code_text(step.code)}"]
        lines += [f"  made  {path}  {digest}" for path, digest in step.outputs.items()]
        lines += [f"  read  {path}  {digest}" for path, digest in step.inputs.items()]
        lines += [f"  source {name}  {digest}" for name, digest in step.sources.items()]
        changed = {key: value for key, value in step.params.items() if shown.get(key) != value}
        lines += [f"  param {key} = {value}" for key, value in sorted(changed.items())]
        shown |= changed
    lines += ["", "parameters that differ from the defaults, shown at the first run that has them"]
    missing = back.gaps()
    complete = f"complete: {len(back.steps)} runs, every input made by one of them"
    lines.append(f"not complete: no run in MLflow made {', '.join(missing)}; {REMEDY}" if missing else complete)
    return "\n".join(lines)


def _forward(dataset: str, as_json: bool) -> None:
    path = Path(dataset)
    digest = digest_path(path) if path.exists() else dataset
    steps, models = way_forward(connect(), digest)
    if as_json:
        print_document({"digest": digest, "steps": steps, "models": models})
        return
    print(f"{dataset}, digest {digest}" if path.exists() else f"digest {digest}")
    for depth in sorted({step.depth for step in steps}):
        print("read by" if depth == 1 else "read the outputs of these" if depth == 2 else "read the outputs of those")
        for step in (step for step in steps if step.depth == depth):
            print(f"  {step.stage}  run {step.run}  commit {step.commit[:12] or 'unknown'}")
    print("registered models" if models else "no registered model was made from it")
    for model in models:
        relation = "made from it" if model.made else "measured with it, not made from it"
        print(f"  {model.name} version {model.version}: {relation}")
