"""Hits of decontamination, and a person's decisions on the doubtful ones, in a file that later runs obey.

A decision holds for a pair of texts, not for ids, so it survives renumbered rows and other files. A row that is written
later replaces an earlier one about the same pair.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mathrl.core.errors import UserError
from mathrl.core.files import read_numbered_jsonl, to_fields
from mathrl.core.paths import main_checkout
from mathrl.data.grams import exact_key
from mathrl.params.data import Decontaminate

Verdict = Literal["keep", "drop"]
Pair = tuple[str, str]  # keys of the training text and of the evaluation text
SHOWN = 2000  # characters of either text in a report
RANK: dict[Verdict | None, int] = {"drop": 2, None: 1, "keep": 0}  # the hit of the highest rank speaks for a text
NEEDED = ("train_key", "eval_key", "decision")


def text_key(text: str) -> str:
    """32 hexadecimal digits, equal for texts that differ only in case, white space and Unicode form."""
    return f"{exact_key(text):032x}"


@dataclass(frozen=True, slots=True)
class Hit:
    """One training text and the evaluation text that it shares the most with.

    Example:
        Hit(train_id="dapo/00012", eval_id="math/test/00734", part="question", ngram="what is the sum of",
            whole=False, share=0.91, ngrams_shared=14, train_text="What is …", eval_text="Find …",
            others=("math500/…",), decision="keep")

    `share` is the part of a text that is shared (0 to 1, see EvaluationIndex); `ngrams_shared` counts the
    shared n-grams; `others` are further evaluation texts hit (at most 20). A person's `decision` on the two texts
    overrules the share. A `semantic` hit shares no n-grams that count; its share is the cosine of the embeddings.
    """

    train_id: str
    eval_id: str
    part: str
    ngram: str
    whole: bool
    share: float
    ngrams_shared: int
    train_text: str
    eval_text: str
    others: tuple[str, ...] = ()
    decision: Verdict | None = None
    semantic: bool = False

    def is_dropped(self, min_share: float) -> bool:
        """Whether the training text goes: by a person's decision, else by its share."""
        return self.decision == "drop" or (self.decision is None and (self.semantic or self.share >= min_share))

    @property
    def strength(self) -> tuple[int, bool, float]:
        """Of the hits of one row, the strongest speaks for it."""
        return RANK[self.decision], self.semantic, self.share

    def to_row(self, min_share: float = 0.0) -> dict[str, Any]:
        """One line of a report, with the keys that `mathrl data decide` needs; long texts are cut."""
        row = {**to_fields(self), "share": round(self.share, 4), "others": list(self.others)}
        if not self.semantic:
            del row["semantic"]
        keys = {"train_key": text_key(self.train_text), "eval_key": text_key(self.eval_text)}
        cut = {name: row[name][:SHOWN] for name in ("train_text", "eval_text")}
        return {**row, **cut, **keys, "dropped": self.is_dropped(min_share)}


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
