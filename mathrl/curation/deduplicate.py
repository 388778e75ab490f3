"""Rows with the same question: equal after normalisation, or near-duplicates by shared shingles; one of each stays.

Held-out rows win over training rows (test, dev, then the order of the sources), so that no training row
equals a test row. Test rows are never dropped: a benchmark stays as it was published. When the answers to one
question contradict each other, none of the training rows stays. Similar questions with different answers, numbers or
operators are different problems: they stay, and are reported as variants.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mathrl.core.types import Problem
from mathrl.curation.question_digests import question_tokens
from mathrl.curation.row_shards import SPLITS
from mathrl.curation.row_store import RowStore, StoredProblems
from mathrl.curation.similar_pairs import similar_pairs
from mathrl.grading import compare
from mathrl.params.data import Deduplicate, NearDuplicates

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Lists of row numbers, each made when it is looked at.

    Example:
        Clusters(numbers=[3, 17, 5, 6, 9], starts=[0, 2])  # [3, 17] and [5, 6, 9]
    """

    numbers: Numbers
    starts: Numbers

    @classmethod
    def of(cls, numbers: Numbers, groups: Numbers) -> "Clusters":
        """The numbers whose groups are equal; those of one group are neighbours."""
        return cls(numbers, np.flatnonzero(np.diff(groups, prepend=-1)))

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[list[int]]:
        return (self.numbers[start:end].tolist() for start, end in zip(self.starts, self._ends, strict=True))

    @property
    def _ends(self) -> Numbers:
        return np.append(self.starts, len(self.numbers))[1:]

    def where(self, chosen: npt.NDArray[np.bool_]) -> "Clusters":
        """The chosen clusters, by a mask."""
        sizes = self._ends - self.starts
        return Clusters(self.numbers[np.repeat(chosen, sizes)], np.cumsum(np.concatenate([[0], sizes[chosen]]))[:-1])


def near_clusters(store: RowStore, params: NearDuplicates) -> tuple[Clusters, Clusters]:
    """Clusters of two or more row numbers: of near-duplicates, and of rows that are as similar but differ in a sign.

    The first are of the same numbers and operators in the same order (unless `same_numbers` is false: then every
    similar row is one of them). The second, the variants, hold rows of which at least two differ there.
    """
    pairs, same = similar_pairs(store, params.threshold)
    similar = _clusters(pairs)
    if not params.same_numbers:
        return similar, similar.where(np.zeros(len(similar), bool))
    if not len(similar):
        return similar, similar
    salts = store.values("salt", similar.numbers)
    several = np.minimum.reduceat(salts, similar.starts) < np.maximum.reduceat(salts, similar.starts)
    return _clusters(pairs[same]), similar.where(several)


def _clusters(pairs: Numbers) -> Clusters:
    """The rows that `pairs`, shape (pairs, 2), connect, directly or by others."""
    rows, ends = np.unique(pairs, return_inverse=True)
    graph = coo_array((np.ones(len(pairs), bool), ends.reshape(pairs.shape).T), shape=(len(rows), len(rows)))
    labels = connected_components(graph, directed=False)[1]
    order = np.argsort(labels, kind="stable")
    return Clusters.of(rows[order], labels[order].astype(np.int64))


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


@dataclass(frozen=True)
class Losses:
    """The numbers of rows that go, ascending, and why; rows of a cluster share their reason."""

    numbers: Numbers
    reasons: list[Reason]

    @classmethod
    def of(cls, store: RowStore, pairs: Iterable[tuple[int, Reason]]) -> "Losses":
        """The pairs, each of another row; the store drops the rows."""
        numbers, reasons = array("q"), list[Reason]()
        for number, reason in pairs:
            numbers.append(number)
            reasons.append(reason)
        order = np.argsort(np.array(numbers, np.int64))
        losses = cls(np.array(numbers, np.int64)[order], [reasons[at] for at in order])
        store.drop(losses.numbers)
        return losses

    def __iter__(self) -> Iterator[tuple[int, Reason]]:
        return zip(self.numbers.tolist(), self.reasons, strict=True)


class Deduplicated(NamedTuple):
    """Why rows go, by number, and groups of similar rows that stay."""

    dropped: Iterable[tuple[int, Reason]]
    variants: list[Variants]


def deduplicate(store: RowStore, params: Deduplicate) -> Deduplicated:
    """Find the duplicates. No row of the test split is dropped."""
    dropped: list[Losses] = []
    variants: list[Variants] = []
    if params.exact:
        clusters = Clusters.of(*store.alike("high", "low"))  # equal after normalisation
        variants += _twins(store, clusters)
        dropped.append(Losses.of(store, _settle(store, _with_answers(store, clusters), "exact")))
    if params.near:
        near, similar = near_clusters(store, params.near)
        parts = (part for rows in _with_answers(store, near) for part in _same_questions(store, rows))
        detail = f"jaccard >= {params.near.threshold}"
        dropped.append(Losses.of(store, _settle(store, (part for part in parts if len(part.numbers) > 1), detail)))
        stays = np.ones(len(store), bool)
        stays[dropped[-1].numbers] = False
        variants += [
            Variants.of(store, left, difference)
            for groups, difference in ((near, "answers"), (similar, "numbers or operators"))
            for group in groups
            if len(left := [number for number in group if stays[number]]) > 1
        ]
    return Deduplicated(chain.from_iterable(dropped), variants)


def _twins(store: RowStore, clusters: Iterable[Sequence[int]]) -> Iterator[Variants]:
    """The rows of the test split that ask the same question."""
    for cluster in clusters:
        rows = [number for number in cluster if SPLITS[store.splits[number]] == BENCHMARK]
        if len(rows) > 1:
            yield Variants.of(store, rows, "nothing: a benchmark asks it twice")


class Alike(NamedTuple):
    """The numbers of rows that ask one question, and the hash of the answers that each accepts.

    Example:
        Alike(numbers=[3, 17], answers=[8167355210, 8167355210])
    """

    numbers: list[int]
    answers: list[int]

    @property
    def same_answers(self) -> bool:
        """Whether all rows accept the same answers: then none has to be read."""
        return len({*self.answers}) == 1


def _with_answers(store: RowStore, clusters: Clusters) -> Iterator[Alike]:
    answers = store.values("answers", clusters.numbers)
    return map(Alike, clusters, Clusters(answers, clusters.starts))


def _same_questions(store: RowStore, rows: Alike) -> list[Alike]:
    """The near-duplicates among similar rows: those that share an answer, or all tokens."""
    if rows.same_answers:
        return [rows]
    parts: list[list[int]] = []
    problems = {number: store.problem(number) for number in rows.numbers}
    tokens = {number: question_tokens(problem.question) for number, problem in problems.items()}
    for number, problem in problems.items():
        same = (p for p in parts if agree(problems[p[0]], problem) or any(tokens[number] == tokens[i] for i in p))
        part = next(same, None)
        if part is None:
            parts.append([number])
        else:
            part.append(number)
    answers = dict(zip(*rows, strict=True))
    return [Alike(part, [answers[number] for number in part]) for part in parts]


def _settle(store: RowStore, clusters: Iterable[Alike], detail: str) -> Iterator[tuple[int, Reason]]:
    """The numbers of the rows of the clusters that go, and why."""
    for cluster in clusters:
        ranked = sorted(cluster.numbers, key=lambda number: (HELD_OUT.get(store.split(number), 2), number))
        if cluster.same_answers:
            reason = Reason("duplicate", store.id(ranked[0]), detail)
            yield from ((number, reason) for number in ranked[1:] if store.split(number) != BENCHMARK)
            continue
        problems = {number: store.problem(number) for number in cluster.numbers}
        winner = problems[ranked[0]]
        conflict = next((problems[i] for i in ranked[1:] if not agree(winner, problems[i])), None)
        for number in ranked:
            problem = problems[number]
            if problem.split == BENCHMARK:
                continue
            if conflict is not None and problem.split not in HELD_OUT:
                against = conflict if problem is winner or agree(winner, problem) else winner
                both = f"{detail}; answers {list(problem.answers)} and {list(against.answers)}"
                yield number, Reason("conflicting answers", against.id, both)
            elif problem is not winner:
                yield number, Reason("duplicate", winner.id, detail)


def agree(first: Problem, second: Problem) -> bool:
    r"""Whether the problems share an accepted answer, by the grader without its engine (1/3 is \frac13)."""
    return any(a == b or compare(a, b).equal is True for a in first.answers for b in second.answers)
