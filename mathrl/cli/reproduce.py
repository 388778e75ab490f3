"""`mathrl reproduce MODEL`: run everything behind a registered model again, and certify whether it is the same."""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.core.errors import UserError
from mathrl.core.exit_status import EXIT_NO
from mathrl.core.files import read_json, write_json
from mathrl.core.paths import home, main_checkout
from mathrl.tasks.reproduction import FreshClone
from mathrl.tracking.client import connect
from mathrl.tracking.lineage import way_back

if TYPE_CHECKING:
    from mathrl.registry.reproduction import Certificate


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
    # MLflow: 1.4 s
    from mathrl.registry.reproduction import PAGE, plan_reproduction, publish

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
    if as_json:
        print_document(certificate.to_row() | {"page": str(place / PAGE)})
    else:
        print(f"{certificate.verdict}\n{place / PAGE}")
    if not certificate.same:
        sys.exit(EXIT_NO)


def _again(certificate: "Certificate", clone: Any, place: Path, first: int) -> "Certificate":
    """Run the stages from number `first` again, the ones before fetched, up to the first that differs."""
    from mathrl.registry.reproduction import JSON, read_check

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
            if check.differing:
                raise UserError(
                    f"dvc.lock here is of other bytes of {', '.join(check.differing)} than the model's: check out the "
                    "commit that has the lock of its run"
                )
        else:
            seconds = clone.run(check.stage)
            check = replace(check, found=clone.digests(paths) or {"": ""}, seconds=seconds)
        certificate.stages[number] = check
        write_json(file, certificate.to_row())
        print(f"{check.stage}: {check.outcome}" + (f" ({', '.join(check.differing)})" if check.differing else ""))
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
