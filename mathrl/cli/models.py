"""Promote a registered model, trace it to its data, reproduce it; compare the log-probs of sampler and trainer."""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mathrl.cli.options import Overrides, Presets, join_presets
from mathrl.cli.output import AsJson, print_document, print_result
from mathrl.compose import load_params
from mathrl.core.code_values import code_text
from mathrl.core.errors import EXIT_NO, UserError
from mathrl.core.files import read_json, write_json
from mathrl.core.hashing import digest_path
from mathrl.core.paths import home, main_checkout
from mathrl.registry import promote as gate
from mathrl.registry.reproduction import JSON, PAGE, Certificate, plan_reproduction, publish, read_check
from mathrl.registry.versions import push as push_model
from mathrl.reports.html import default_texts
from mathrl.tasks.reproduction import FreshClone
from mathrl.tracking.client import connect
from mathrl.tracking.lineage import REMEDY, Back, way_back, way_forward

if TYPE_CHECKING:
    from mathrl.reports.alignment import ThreeForwards


models = typer.Typer(name="models", add_completion=False, no_args_is_help=True, help=__doc__)


@models.command()
def promote(
    model: Annotated[str, typer.Argument(help="Registered model: NAME (its candidate), NAME:VERSION or NAME@ALIAS.")],
    benchmark: Annotated[str | None, typer.Option(help="Benchmark on which it must beat the champion.")] = None,
    presets: Presets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Make a registered version the champion if it passes the gate; exit status 1 if not."""
    os.chdir(main_checkout())
    promoted, message = gate.promote(connect(), model, benchmark, join_presets(presets), overrides or ())
    print_result(as_json, {"promoted": promoted, "decision": message}, message)
    if not promoted:
        raise SystemExit(EXIT_NO)


@models.command()
def rollback(
    model: Annotated[str, typer.Argument(help="Name of a registered model.")], as_json: AsJson = False
) -> None:
    """Make the previous champion of a model its champion again."""
    decision = gate.rollback(connect(), model)
    print_result(as_json, {"decision": decision}, decision)


@models.command()
def push(
    model: Annotated[str, typer.Argument(help="Registered model NAME, NAME:VERSION, NAME@ALIAS, or a model folder.")],
    to: Annotated[str, typer.Option(help="Repository of the hub, OWNER/NAME; made where it is missing.")],
    public: Annotated[bool, typer.Option(help="Make a new repository for everybody to see.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a model with its card, evaluation, lineage and certificate to the Hugging Face hub."""
    folder = Path(model).absolute()
    client = None if folder.is_dir() else connect()
    pushed = push_model(client, str(folder) if folder.is_dir() else model, to, private=not public)
    line = f"{pushed.repository}: {len(pushed.files)} files, {', '.join(pushed.files)}"
    print_result(as_json, asdict(pushed), line, pushed.url)


@models.command()
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


@models.command()
def reproduce(
    model: Annotated[str, typer.Argument(help="Registered model: NAME, NAME:VERSION or NAME@ALIAS.")],
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the clone and the certificate; default: in .mathrl/reproduced.")
    ] = None,
    python: Annotated[
        str, typer.Option(help="Interpreter for the stages, such as python3.12; without packages it gets them.")
    ] = "",
    first: Annotated[
        str, typer.Option("--from", help="Fetch what the stages before this one made from the DVC remote.")
    ] = "curate",
    as_json: AsJson = False,
) -> None:
    """Run every stage behind a registered model again in a fresh clone and compare digests; exit 1 if one differs.

    Started again after an interruption, it goes on where it was. It stops at the first stage that differs.
    """
    start = Path.cwd()
    os.chdir(main_checkout())
    client = connect()
    certificate = plan_reproduction(way_back(client, model))
    names = [check.stage for check in certificate.stages]
    if first not in names:
        raise UserError(f"--from {first}: the stages of this lineage are {', '.join(names)}")
    place = start / folder if folder else home() / "reproduced" / f"{certificate.name}-{certificate.version}"
    interpreter = shutil.which(python) if python else ""
    if interpreter is None:
        raise UserError(f"--python {python}: there is no such program")
    clone = FreshClone(
        Path.cwd(), certificate.commit, place / "checkout", str(Path(interpreter).absolute()) if interpreter else ""
    )
    clone.open()
    certificate = replace(certificate, environment=clone.install())
    clone.write_sections(certificate.sections)
    certificate = _again(certificate, clone, place, names.index(first))
    publish(client, certificate, place)
    page = str(place / PAGE)
    print_result(as_json, certificate.to_row() | {"page": page}, certificate.verdict, page)
    if not certificate.same:
        sys.exit(EXIT_NO)


def _again(certificate: Certificate, clone: Any, place: Path, first: int) -> Certificate:
    """Run the stages from number `first` again, the ones before fetched, up to the first that differs."""
    file = place / JSON
    before = {row["stage"]: read_check(row) for row in read_json(file)["stages"]} if file.exists() else {}
    codes = clone.codes()
    checks = [replace(check, code_again=codes.get(check.stage, {})) for check in certificate.stages]
    certificate.stages[:] = checks
    for number, check in enumerate(checks):
        if number >= first and check.code_change():
            print(f"warning: {check.stage}: {check.code_change()}", file=sys.stderr)
    for number, check in enumerate(checks):
        done, paths = before.get(check.stage), list(check.expected)
        there = clone.digests(paths)
        if done is not None and done.outcome == "same" and done.found == there and done.fetched == (number < first):
            check = replace(done, code_again=check.code_again)  # by an earlier start of this command
        elif number < first:
            if there != check.expected:
                clone.pull([path for other in certificate.stages[:first] for path in _outermost(other.expected)])
            check = replace(check, found=clone.digests(paths), fetched=True)
            if check.differing_outputs:
                raise UserError(
                    f"dvc.lock here is of other bytes of {', '.join(check.differing_outputs)} than the model's: "
                    "check out the commit that has the lock of its run"
                )
        else:
            seconds = clone.run(check.stage)
            check = replace(check, found=clone.digests(paths) or {"": ""}, seconds=seconds)
        certificate.stages[number] = check
        write_json(file, certificate.to_row())
        print(
            f"{check.stage}: {check.outcome}"
            + (f" ({', '.join(check.differing_outputs)})" if check.differing_outputs else "")
        )
        if check.outcome == "differs":
            break
    return certificate


def _outermost(paths: Iterable[str]) -> list[str]:
    """The paths that lie in no other: DVC knows outputs, and not what is in a folder.

    >>> _outermost(["data/curated", "data/curated/rl.jsonl", "reports/curate"])
    ['data/curated', 'reports/curate']
    """
    every = list(paths)
    return [path for path in every if not any(path.startswith(f"{other}/") for other in every)]


DEV = Path("data/curated/dev.jsonl")


@models.command()
def alignment(
    model: Annotated[str, typer.Argument(help="Hugging Face model folder or hub id.")],
    problems: Annotated[Path | None, typer.Option(help="Curated problems; default: data/curated/dev.jsonl.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of problems to compare (two responses each).")] = 16,
    presets: Presets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare log-probs of the sampling engine, the trainer and a plain Hugging Face forward in float32.

    All three score the same sampled responses. The exit status is 1 if two of them differ by more than a limit.
    """
    local, rows = Path(model).absolute(), problems.absolute() if problems else DEV
    os.chdir(main_checkout())
    params = load_params(preset=join_presets(presets), overrides=overrides or ())
    if not rows.is_file():
        raise UserError(f"{rows}: no such file; run `mathrl run curate`, or give --problems FILE")
    from mathrl.reports.alignment import compare_forwards  # torch and transformers: after the checks

    measured = compare_forwards(local if local.exists() else model, rows, limit, params)
    if as_json:
        gaps = [asdict(gap) | {"fine": gap.fine} for gap in measured.gaps]
        print_document(asdict(measured) | {"gaps": gaps, "fine": all(gap.fine for gap in measured.gaps)})
    else:
        _print(measured, params.model.precision)
    if not all(gap.fine for gap in measured.gaps):
        raise SystemExit(EXIT_NO)


def _print(measured: "ThreeForwards", precision: str) -> None:
    print(
        f"{measured.tokens:,} tokens of {measured.responses} responses, sampled by {measured.engine} "
        f"({measured.dtype}); trainer {precision}"
    )
    print(measured.architecture)
    print(f"{'':<44}{'max |d log p|':>14}{'mean':>10}{'limit':>9}{'mean exp':>11}{'limit':>7}")
    for gap in measured.gaps:
        print(
            f"{f'{gap.first} and {gap.second}':<44}{gap.largest:>14.2g}{gap.mean:>10.2g}"
            f"{gap.tolerance:>9g}{gap.alignment:>11.6f}{gap.limit:>7g}{'' if gap.fine else '  too far'}"
        )
