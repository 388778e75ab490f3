"""`mathrl export`: curated problems as the rows of other frameworks."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mathrl.core.problems import read_problems
from mathrl.data import export as rows


def export(
    file: Annotated[Path, typer.Argument(help="Curated problems, e.g. data/curated/rl.jsonl.")],
    output: Annotated[Path, typer.Option(help="File for the rows: .parquet or .jsonl.")],
    format: Annotated[Literal["verl", "rlinf"], typer.Option(help="The framework that reads them.")] = "verl",
) -> None:
    """Write curated problems as veRL or RLinf rows."""
    print(f"{rows.export(read_problems(file), format, output)} rows in {output}")
