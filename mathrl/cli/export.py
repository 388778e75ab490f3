"""`mathrl export`: write curated problems in the row formats of other frameworks."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.core.problems import read_problems
from mathrl.data import export as rows


def export(
    file: Annotated[Path, typer.Argument(help="File of curated problems, e.g. data/curated/rl.jsonl.")],
    output: Annotated[Path, typer.Option(help="File for the rows: .parquet or .jsonl.")],
    format: Annotated[Literal["verl", "rlinf"], typer.Option(help="Framework that will read the rows.")] = "verl",
    as_json: AsJson = False,
) -> None:
    """Write curated problems as veRL or RLinf rows."""
    count = rows.export(read_problems(file), format, output)
    if as_json:
        print_document({"rows": count, "output": str(output), "format": format})
    else:
        print(f"{count} rows in {output}")
