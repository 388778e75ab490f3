"""`mathrl decontaminate`: drop training rows that share n-grams with evaluation rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from mathrl.cli.options import grouped
from mathrl.cli.output import AsJson, print_document
from mathrl.data.decontaminate_files import Keys, decontaminate_files
from mathrl.params.data import Decontaminate, Embedding


@dataclass(frozen=True)
class DropRule:
    """Which rows are dropped."""

    ngram: Annotated[int, typer.Option(min=3, help="Length of a shared n-gram that counts as a hit, in words.")] = 10
    share: Annotated[
        Literal["coverage", "words"],
        typer.Option(help="Share of a hit: the part of either text in shared n-grams, or distinct words in common."),
    ] = "coverage"
    min_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share from which a hit is dropped; 0: any shared n-gram.")
    ] = 0.5
    embedding: Annotated[
        str | None,
        typer.Option(help="Also drop questions similar by this model: a folder in model2vec's format, or its hub id."),
    ] = None
    min_similarity: Annotated[
        float, typer.Option(min=0, max=1, help="With --embedding: cosine from which a question is dropped.")
    ] = 0.95


@dataclass(frozen=True)
class Fields:
    """The fields of the rows."""

    prompt_key: Annotated[str | None, typer.Option(help="Field with the question; a dot descends into one.")] = None
    solution_key: Annotated[str | None, typer.Option(help="Field with the worked solution.")] = None
    answer_key: Annotated[str | None, typer.Option(help="Field with the answer.")] = None
    id_key: Annotated[str | None, typer.Option(help="Field with the row's id.")] = None


@grouped
def decontaminate(
    train: Annotated[Path, typer.Option(help="File of training rows.")],
    against: Annotated[list[Path], typer.Option(help="File of evaluation rows; more files may follow.")],
    output: Annotated[Path, typer.Option(help="File for the clean rows: .jsonl, .jsonl.gz or .parquet.")],
    report: Annotated[Path, typer.Option(help="File for the hits, the strongest first.")],
    rule: DropRule,
    fields: Fields,
    decisions: Annotated[
        Path | None, typer.Option(help="A person's decisions on doubtful hits, written by mathrl decide.")
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(help="More files of evaluation rows.")] = None,
    as_json: AsJson = False,
) -> None:
    """Drop the training rows that share n-grams with evaluation rows, and report each hit."""
    obeyed = str(decisions.absolute()) if decisions else None
    similar = Embedding(model=_model(rule.embedding), min_similarity=rule.min_similarity) if rule.embedding else None
    clean = Decontaminate(
        ngram=rule.ngram, share=rule.share, min_share=rule.min_share, embedding=similar, decisions=obeyed
    )
    keys = Keys(fields.prompt_key, fields.solution_key, fields.answer_key, fields.id_key)
    files = [*against, *(more or [])]
    figures = decontaminate_files(train, files, rule=clean, output=output, report=report, keys=keys)
    if as_json:
        print_document({**figures, "output": str(output), "report": str(report)})
        return
    print(f"{figures['rows']} rows, {figures['kept']} kept, {figures['dropped']} dropped")
    for file, hits in sorted(figures["hits_by_file"].items()):
        print(f"  {file}: {hits}")


def _model(model: str) -> str:
    """The absolute path of a folder; a hub id as it is."""
    return str(Path(model).absolute()) if Path(model).is_dir() else model
