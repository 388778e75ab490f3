"""`mathrl promote`: make a registered version the champion if it passes the gate."""

import os
from typing import Annotated

import typer

from mathrl.cli.options import Overrides, Presets, joined
from mathrl.cli.output import AsJson, print_document
from mathrl.core.exit_status import EXIT_NO
from mathrl.core.paths import main_checkout
from mathrl.registry import promote as gate
from mathrl.tracking.client import connect


def promote(
    model: Annotated[str, typer.Argument(help="Registered model: NAME (its candidate), NAME:VERSION or NAME@ALIAS.")],
    benchmark: Annotated[str | None, typer.Option(help="Benchmark on which it must beat the champion.")] = None,
    presets: Presets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Make a registered version the champion if it passes the gate; exit status 1 if not."""
    os.chdir(main_checkout())
    promoted, message = gate.promote(connect(), model, benchmark, joined(presets), overrides or ())
    if as_json:
        print_document({"promoted": promoted, "decision": message})
    else:
        print(message)
    if not promoted:
        raise SystemExit(EXIT_NO)
