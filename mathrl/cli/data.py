"""List problem sets, drop training rows that overlap with evaluation rows, write rows for other frameworks."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from mathrl.cli.output import AsJson, print_document, print_result
from mathrl.core.types import read_problems
from mathrl.curation.decisions import Doubt, Verdict, doubtful, read_decisions
from mathrl.curation.decontaminate_files import Keys, decontaminate_files
from mathrl.data import export as rows
from mathrl.params.data import Decontaminate, Embedding
from mathrl.reading.registry import REGISTRY

data = typer.Typer(name="data", add_completion=False, no_args_is_help=True, help=__doc__)


@data.command()
def sources(as_json: AsJson = False) -> None:
    """List the named problem sets: hub id, splits, month of release, licence."""
    if as_json:
        fields = ("name", "title", "hub", "subset", "splits", "released", "licence", "evaluation", "prompt", "examples")
        print_document(
            {"sources": [{field: getattr(REGISTRY[name], field) for field in fields} for name in sorted(REGISTRY)]}
        )
        return
    print(f"{'name':<22} {'hub set':<44} {'splits':<18} {'released':<8} licence; published prompt")
    for name, source in sorted(REGISTRY.items()):
        prompt = source.prompt.get("instruction") or ""
        prompt = f"{source.prompt['few_shot']} worked examples" if "few_shot" in source.prompt else prompt
        where = source.hub + (f":{source.subset}" if source.subset else "")
        print(
            f"{name:<22} {where:<44} {', '.join(source.splits):<18} {source.released:<8} {source.licence}"
            + (f"; {prompt}" if prompt else "")
        )


@data.command()
def decontaminate(
    train: Annotated[Path, typer.Option(help="File of training rows.")],
    against: Annotated[list[Path], typer.Option(help="File of evaluation rows; more files may follow.")],
    output: Annotated[Path, typer.Option(help="File for the clean rows: .jsonl, .jsonl.gz or .parquet.")],
    report: Annotated[Path, typer.Option(help="File for the hits, the strongest first.")],
    ngram: Annotated[int, typer.Option(min=3, help="Length of a shared n-gram that counts as a hit, in words.")] = 10,
    share: Annotated[
        Literal["coverage", "words"],
        typer.Option(help="Share of a hit: the part of either text in shared n-grams, or distinct words in common."),
    ] = "coverage",
    min_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share from which a hit is dropped; 0: any shared n-gram.")
    ] = 0.5,
    embedding: Annotated[
        str | None,
        typer.Option(help="Also drop questions similar by this model: a folder in model2vec's format, or its hub id."),
    ] = None,
    min_similarity: Annotated[
        float, typer.Option(min=0, max=1, help="With --embedding: cosine from which a question is dropped.")
    ] = 0.95,
    prompt_key: Annotated[str | None, typer.Option(help="Field with the question; a dot descends into one.")] = None,
    solution_key: Annotated[str | None, typer.Option(help="Field with the worked solution.")] = None,
    answer_key: Annotated[str | None, typer.Option(help="Field with the answer.")] = None,
    id_key: Annotated[str | None, typer.Option(help="Field with the row's id.")] = None,
    decisions: Annotated[
        Path | None, typer.Option(help="A person's decisions on doubtful hits, written by mathrl data decide.")
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(help="More files of evaluation rows.")] = None,
    as_json: AsJson = False,
) -> None:
    """Drop the training rows that share n-grams with evaluation rows, and report each hit."""
    obeyed = str(decisions.absolute()) if decisions else None
    similar = Embedding(model=_model(embedding), min_similarity=min_similarity) if embedding else None
    clean = Decontaminate(ngram=ngram, share=share, min_share=min_share, embedding=similar, decisions=obeyed)
    keys = Keys(prompt_key, solution_key, answer_key, id_key)
    files = [*against, *(more or [])]
    figures = decontaminate_files(train, files, rule=clean, output=output, report=report, keys=keys)
    lines = [f"{figures['rows']} rows, {figures['kept']} kept, {figures['dropped']} dropped"]
    lines += [f"  {file}: {hits}" for file, hits in sorted(figures["hits_by_file"].items())]
    print_result(as_json, {**figures, "output": str(output), "report": str(report)}, *lines)


def _model(model: str) -> str:
    """The absolute path of a folder; a hub id as it is."""
    return str(Path(model).absolute()) if Path(model).is_dir() else model


KEYS: dict[str, Verdict] = {"k": "keep", "d": "drop"}


@data.command()
def decide(
    hits: Annotated[Path, typer.Argument(help="data/curated/hits.jsonl, or a report of mathrl data decontaminate.")],
    decisions: Annotated[Path, typer.Option(help="File of decisions; new ones are added.")] = Path("decisions.jsonl"),
    low: Annotated[float, typer.Option(min=0, max=1, help="Lowest share that is doubtful.")] = 0.2,
    high: Annotated[float, typer.Option(min=0, max=1, help="Highest share that is doubtful.")] = 0.8,
    as_json: AsJson = False,
) -> None:
    """Read doubtful hits and keep (k) or drop (d) each training row; s skips it, q ends, and a later call goes on."""
    decided = read_decisions(decisions) if decisions.exists() else {}
    doubts = doubtful(hits, decided, low, high)
    print(
        f"{len(doubts)} undecided hits with a share from {low:g} to {high:g}; {len(decided)} decisions in {decisions}"
    )
    added = 0
    for number, doubt in enumerate(doubts, 1):
        _show(doubt, f"{number} of {len(doubts)}")
        while (answer := _read()) not in (*KEYS, "s", "q"):
            print("k: keep the training row; d: drop it; s: skip; q: go on another time")
        if answer == "q":
            break
        if answer in KEYS:
            with decisions.open("a", encoding="utf-8") as stream:  # each at once: nothing is lost on Ctrl-C
                stream.write(json.dumps(doubt.decision_row(KEYS[answer]), ensure_ascii=False) + "\n")
            added += 1
    if as_json:
        print_document({"undecided": len(doubts) - added, "added": added, "decisions": str(decisions)})
    elif added:
        print(f"{added} decisions added; use them with curate.decontaminate.decisions or --decisions {decisions}")


def _show(doubt: Doubt, place: str) -> None:
    row = doubt.row
    shared = f"{row.get('ngrams_shared', '?')} shared n-grams: {row.get('ngram')}"
    print(f"\n--- {place}: share {row['share']:.2f}, {'similar by embeddings' if row.get('semantic') else shared}")
    print(f"training {row.get('train_id')}:\n{row.get('train_text', '')}")
    print(f"evaluation {row.get('eval_id')} ({row.get('part')}):\n{row.get('eval_text', '')}")


def _read() -> str:
    try:
        return input("keep the training row? [k/d/s/q] ").strip().lower()[:1]
    except EOFError:
        return "q"


@data.command()
def export(
    file: Annotated[Path, typer.Argument(help="File of curated problems, e.g. data/curated/rl.jsonl.")],
    output: Annotated[Path, typer.Option(help="File for the rows: .parquet or .jsonl.")],
    format: Annotated[Literal["verl", "rlinf"], typer.Option(help="Framework that will read the rows.")] = "verl",
    as_json: AsJson = False,
) -> None:
    """Write curated problems as veRL or RLinf rows."""
    count = rows.export(read_problems(file), format, output)
    print_result(as_json, {"rows": count, "output": str(output), "format": format}, f"{count} rows in {output}")
