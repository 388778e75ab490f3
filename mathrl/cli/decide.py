"""`mathrl decide HITS`: a person decides on doubtful hits of decontamination; later runs obey the file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.data.decisions import Doubt, Verdict, doubtful, read_decisions

KEYS: dict[str, Verdict] = {"k": "keep", "d": "drop"}


def decide(
    hits: Annotated[Path, typer.Argument(help="Hits: data/curated/hits.jsonl, or a report of mathrl decontaminate.")],
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
                stream.write(json.dumps(doubt.decided(KEYS[answer]), ensure_ascii=False) + "\n")
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
