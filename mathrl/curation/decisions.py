"""A person's decisions on doubtful hits of decontamination, in a file that later runs obey.

A decision holds for a pair of texts, not for ids, so it survives renumbered rows and other files. A row that is written
later replaces an earlier one about the same pair.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mathrl.core.errors import UserError
from mathrl.core.files import read_numbered_jsonl
from mathrl.core.paths import main_checkout
from mathrl.data.grams import exact_key
from mathrl.params.data import Decontaminate

Verdict = Literal["keep", "drop"]
Pair = tuple[str, str]  # keys of the training text and of the evaluation text
NEEDED = ("train_key", "eval_key", "decision")


def text_key(text: str) -> str:
    """32 hexadecimal digits, equal for texts that differ only in case, white space and Unicode form."""
    return f"{exact_key(text):032x}"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A hit of a report that a person can decide on.

    Example:
        Doubt(row={"train_id": "dapo/00012", "eval_id": "math/test/00734", "share": 0.48, …})
    """

    row: Mapping[str, Any]

    @property
    def pair(self) -> Pair:
        return self.row["train_key"], self.row["eval_key"]

    def decision_row(self, verdict: Verdict) -> dict[str, Any]:
        """The row of the decisions file."""
        shown = {name: self.row[name] for name in ("train_id", "eval_id", "share", "ngram") if name in self.row}
        return {"train_key": self.pair[0], "eval_key": self.pair[1], "decision": verdict, **shown}


def read_decisions(file: Path) -> dict[Pair, Verdict]:
    """The decisions of a file; rows may have further fields, so a hit with `decision` added by hand is one as well.

    Raises:
        UserError: the file cannot be read, or a row lacks a field or has another decision than keep or drop.
    """
    decisions: dict[Pair, Verdict] = {}
    for number, row in _rows(file):
        where = f"{file}, line {number}"
        for name in NEEDED:
            if not isinstance(row.get(name), str):
                raise UserError(f"{where}: no {name}; write the decisions with `mathrl data decide`")
        if row["decision"] not in get_args(Verdict):
            raise UserError(f"{where}: decision is {row['decision']!r}; write keep or drop")
        decisions[row["train_key"], row["eval_key"]] = row["decision"]
    return decisions


def decisions_file(params: Decontaminate) -> Path | None:
    """The file that the parameters name; a relative path starts at the top of the checkout."""
    if not params.decisions:
        return None
    path = Path(params.decisions)
    return path if path.is_absolute() else main_checkout() / path


def decisions_of(params: Decontaminate) -> dict[Pair, Verdict]:
    """The decisions that the parameters name, or none.

    Raises:
        UserError: see `read_decisions`.
    """
    file = decisions_file(params)
    return read_decisions(file) if file else {}


def doubtful(hits: Path, decided: Mapping[Pair, Verdict], low: float, high: float) -> list[Doubt]:
    """The undecided hits of a report whose share is from `low` to `high`, the most doubtful (middle shares) first.

    Raises:
        UserError: the file cannot be read, or a row is no hit.
    """
    doubts = []
    for number, row in _rows(hits):
        if not isinstance(row.get("train_key"), str) or not isinstance(row.get("share"), int | float):
            raise UserError(
                f"{hits}, line {number}: not a hit; name the hits.jsonl of curate or of mathrl data decontaminate"
            )
        if low <= row["share"] <= high and (row["train_key"], row["eval_key"]) not in decided:
            doubts.append(Doubt(row))
    middle = (low + high) / 2
    return sorted(doubts, key=lambda doubt: abs(doubt.row["share"] - middle))


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    yield from read_numbered_jsonl(file)
