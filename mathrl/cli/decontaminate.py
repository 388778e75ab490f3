"""`mathrl decontaminate`: drop training rows that share n-grams with evaluation rows."""

from pathlib import Path
from typing import Annotated

import typer

from mathrl.data.decontaminate_files import decontaminate_files


def decontaminate(
    train: Annotated[Path, typer.Option(help="File of training rows.")],
    against: Annotated[list[Path], typer.Option(help="File of evaluation rows; more files may follow.")],
    output: Annotated[Path, typer.Option(help="File for the clean rows.")],
    report: Annotated[Path, typer.Option(help="File for the hits, the strongest first.")],
    ngram: Annotated[int, typer.Option(min=3, help="Length of a shared n-gram that counts as a hit, in words.")] = 10,
    min_share: Annotated[
        float, typer.Option(min=0, max=1, help="Minimum share of the shorter text's distinct words that both have.")
    ] = 0.0,
    more: Annotated[list[Path] | None, typer.Argument(help="More files of evaluation rows.")] = None,
) -> None:
    """Drop the training rows that share n-grams with evaluation rows, and report each hit."""
    figures = decontaminate_files(
        train, [*against, *(more or [])], ngram=ngram, min_share=min_share, output=output, report=report
    )
    print(f"{figures['rows']} rows, {figures['kept']} kept, {figures['dropped']} dropped")
    for file, hits in sorted(figures["hits_by_file"].items()):
        print(f"  {file}: {hits}")
