"""Rows with the same question: equal after normalisation, or near-duplicates by MinHash LSH; one of each stays.

Held-out rows win over training rows (test, dev, then the order of the sources), so that no training row
equals a test row. Test rows are never dropped: a benchmark stays as it was published. When the answers to one
question contradict each other, none of the training rows stays. Similar questions with different answers, numbers or
operators are different problems: they stay, and are reported as variants.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mathrl.core.types import Problem
from mathrl.data.question_tokens import question_tokens
from mathrl.data.row_shards import SPLITS
from mathrl.data.row_store import RowStore, StoredProblems
from mathrl.grading.matching import compare
from mathrl.params.data import Deduplicate

HELD_OUT = {"test": 0, "dev": 1}  # the splits whose rows win, and their ranks
BENCHMARK = "test"  # the split that is measured and never changed


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropped row, the reason, and the row kept in its favour.

    Example:
        Dropped(id="dapo/00012", source="dapo", split="rl", reason="duplicate", other="math/test/00734",
                detail="exact", question="What is …", answers=("9",))
    """

    id: str
    source: str
    split: str
    reason: str
    other: str | None
    detail: str
    question: str
    answers: tuple[str, ...]

    @classmethod
    def of(cls, problem: Problem, why: "Reason") -> "Dropped":
        return cls(problem.id, problem.source, problem.split, *why, problem.question, problem.answers)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Dropped":
        return cls(**row | {"answers": tuple(row["answers"])})

    def to_row(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return row | {"answers": list(self.answers)}


@dataclass(frozen=True, slots=True)
class Variants:
    """Similar rows that all stay, the splits that they had then, and how they differ.

    Example:
        Variants(problems=[Problem(id="math/train/6", …), Problem(id="math/train/61", …)], splits=("rl", "rl"),
                 difference="numbers or operators")
    """

    problems: StoredProblems
    splits: tuple[str, ...]
    difference: str

    @classmethod
    def of(cls, store: RowStore, numbers: Sequence[int], difference: str) -> "Variants":
        rows = StoredProblems(store, np.array(numbers))
        return cls(rows, tuple(SPLITS[code] for code in store.splits[rows.numbers]), difference)

    def to_row(self) -> dict[str, Any]:
        rows = [
            {"id": p.id, "source": p.source, "split": split, "question": p.question, "answers": list(p.answers)}
            for p, split in zip(self.problems, self.splits, strict=True)
        ]
        return {"difference": self.difference, "rows": rows}


class Reason(NamedTuple):
    """Why a row goes: the reason, the id of the row or text that it goes for, a detail."""

    reason: str
    other: str | None
    detail: str


class Deduplicated(NamedTuple):
    """The rows that stay, in their order, why the others go, by number, and groups of similar rows that stay."""

    kept: StoredProblems
    dropped: dict[int, Reason]
    variants: list[Variants]


def deduplicate(problems: StoredProblems, params: Deduplicate) -> Deduplicated:
    """Drop the duplicates. No row of the test split is dropped."""
    store = problems.store
    dropped: dict[int, Reason] = {}
    variants: list[Variants] = []
    if params.exact:
        clusters = exact_clusters(store)
        variants += _twins(store, clusters, "nothing: a benchmark asks it twice")
        dropped |= _drop(store, _settle(store, clusters, "exact"))
    if params.near:
        from mathrl.data.near_duplicates import near_clusters  # scipy; only near-duplicates need it

        near, similar = near_clusters(store, params.near)
        parts = [part for cluster in near for part in _same_questions(store, cluster)]
        detail = f"jaccard >= {params.near.threshold}"
        removed = _drop(store, _settle(store, (part for part in parts if len(part) > 1), detail))
        dropped |= removed
        variants += [
            Variants.of(store, left, difference)
            for groups, difference in ((near, "answers"), (similar, "numbers or operators"))
            for group in groups
            if len(left := [number for number in group if number not in removed]) > 1
        ]
    return Deduplicated(problems.without(dropped), dropped, variants)


def exact_clusters(store: RowStore) -> list[list[int]]:
    """Clusters of two or more numbers of rows whose questions are equal after normalisation."""
    numbers, groups = store.alike("high", "low")
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    return [cluster.tolist() for cluster in np.split(numbers, starts[1:])] if len(numbers) else []


def _drop(store: RowStore, reasons: dict[int, Reason]) -> dict[int, Reason]:
    reasons = dict(sorted(reasons.items()))
    store.drop(np.fromiter(reasons, np.int64, len(reasons)))
    return reasons


def _twins(store: RowStore, clusters: Iterable[Sequence[int]], difference: str) -> Iterator[Variants]:
    """The rows of the test split that ask the same question."""
    for cluster in clusters:
        rows = [number for number in cluster if SPLITS[store.splits[number]] == BENCHMARK]
        if len(rows) > 1:
            yield Variants.of(store, rows, difference)


def _same_questions(store: RowStore, cluster: Sequence[int]) -> list[list[int]]:
    """The near-duplicates among similar rows: those that share an answer, or all tokens."""
    parts: list[list[int]] = []
    problems = {number: store.problem(number) for number in cluster}
    tokens = {number: question_tokens(problem.question) for number, problem in problems.items()}
    for number, problem in problems.items():
        same = (p for p in parts if agree(problems[p[0]], problem) or any(tokens[number] == tokens[i] for i in p))
        part = next(same, None)
        if part is None:
            parts.append([number])
        else:
            part.append(number)
    return parts


def _settle(store: RowStore, clusters: Iterable[Sequence[int]], detail: str) -> dict[int, Reason]:
    """Why rows of the clusters go, by their number."""
    dropped: dict[int, Reason] = {}
    for cluster in clusters:
        problems = {number: store.problem(number) for number in cluster}
        ranked = sorted(cluster, key=lambda number: (HELD_OUT.get(problems[number].split, 2), number))
        winner = problems[ranked[0]]
        conflict = next((problems[i] for i in ranked[1:] if not agree(winner, problems[i])), None)
        for number in ranked:
            problem = problems[number]
            if problem.split == BENCHMARK:
                continue
            if conflict is not None and problem.split not in HELD_OUT:
                against = conflict if problem is winner or agree(winner, problem) else winner
                answers = f"{detail}; answers {list(problem.answers)} and {list(against.answers)}"
                dropped[number] = Reason("conflicting answers", against.id, answers)
            elif problem is not winner:
                dropped[number] = Reason("duplicate", winner.id, detail)
    return dropped


def agree(first: Problem, second: Problem) -> bool:
    r"""Whether the problems share an accepted answer, by the grader without its engine (1/3 is \frac13)."""
    return any(a == b or compare(a, b).equal is True for a in first.answers for b in second.answers)
