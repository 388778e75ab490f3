"""Rows with the same question: equal after normalisation, or near-duplicates by MinHash LSH; one of each stays.

Held-out rows win over training rows (test, dev, then the order of the sources), so that no training row
equals a test row. Test rows are never dropped: a benchmark stays as it was published. When the answers to one
question contradict each other, none of the training rows stays. Similar questions with different answers, numbers or
operators are different problems: they stay, and are reported as variants.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from mathrl.core.types import Problem
from mathrl.curation.question_tokens import question_tokens
from mathrl.curation.row_shards import SPLITS
from mathrl.curation.row_store import RowStore, StoredProblems
from mathrl.curation.shingles import Hashes, Rows
from mathrl.grading import compare
from mathrl.params.data import Deduplicate, NearDuplicates

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Clusters(Sequence[list[int]]):
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

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        end = self.starts[at + 1] if at + 1 < len(self) else len(self.numbers)
        cluster: list[int] = self.numbers[self.starts[at] : end].tolist()
        return cluster

    def where(self, chosen: npt.NDArray[np.bool_]) -> "Clusters":
        """The chosen clusters, by a mask."""
        sizes = np.diff(self.starts, append=len(self.numbers))
        return Clusters(self.numbers[np.repeat(chosen, sizes)], np.cumsum(np.concatenate([[0], sizes[chosen]]))[:-1])


# The most cluster heads that a row is compared with in a bucket: boilerplate would make it quadratic.
_HEADS = 64
BATCH = 100_000  # rows whose shingles are in memory at a time
PAIRS = 4096  # compared at a time
EDGES = 1 << 20  # pairs that are joined at a time


def near_clusters(store: RowStore, params: NearDuplicates) -> tuple[Clusters, Clusters]:
    """Clusters of two or more row numbers: of near-duplicates, and of rows that are as similar but differ in a sign.

    The first are of the same numbers and operators in the same order (unless `same_numbers` is false: then every
    similar row is one of them). The second, the variants, hold rows of which at least two differ there.
    """
    similar = _clusters(store, salted=False, threshold=params.threshold)
    if not params.same_numbers:
        return similar, similar.where(np.zeros(len(similar), bool))
    same = _clusters(store, salted=True, threshold=params.threshold)
    if not len(similar):
        return same, similar
    salts = store.column("salt")[similar.numbers]
    several = np.minimum.reduceat(salts, similar.starts) < np.maximum.reduceat(salts, similar.starts)
    return same, similar.where(several)


def _clusters(store: RowStore, *, salted: bool, threshold: float) -> Clusters:
    """The connected rows whose similarity reaches the threshold, among rows of equal salt or among all."""
    labels = np.arange(len(store), dtype=np.int32)
    for band in store.bands:
        labels = _joined(labels, _pairs_of_band(store, band, salted=salted, threshold=threshold))
    linked = np.flatnonzero(np.bincount(labels)[labels] > 1)
    linked = linked[np.argsort(labels[linked], kind="stable")]
    return Clusters.of(linked, labels[linked].astype(np.int64))


def _joined(labels: npt.NDArray[np.int32], pairs: Numbers) -> npt.NDArray[np.int32]:
    """Labels of all rows after rows are joined by `pairs`, shape (pairs, 2): the smallest number in a row's cluster."""
    for start in range(0, len(pairs), EDGES):
        ends = labels[pairs[start : start + EDGES]]
        linked, at = np.unique(ends[ends[:, 0] != ends[:, 1]], return_inverse=True)
        if not len(linked):
            continue
        links = at.reshape(-1, 2).T
        graph = coo_array((np.ones(links.shape[1], np.int32), links), shape=(len(linked),) * 2)
        components = connected_components(graph, directed=False)[1]
        smallest = linked[np.unique(components, return_index=True)[1]]
        label_of = np.arange(len(labels), dtype=np.int32)
        label_of[linked] = smallest[components]
        labels = label_of[labels]
    return labels


def _pairs_of_band(store: RowStore, band: str, *, salted: bool, threshold: float) -> Numbers:
    file = store.folder / f"{'same' if salted else 'similar'}-{band}.npy"
    if file.exists():
        pairs: Numbers = np.load(file)
        return pairs
    numbers, groups = store.alike(band, *(("salt",) if salted else ()))
    pieces = [_similar_pairs(store, numbers[at], groups[at], threshold) for at in _batches(groups)]
    pairs = np.concatenate([np.empty((0, 2), np.int64), *pieces])
    partial = file.with_suffix(".partial")
    with partial.open("wb") as stream:
        np.save(stream, pairs)
    partial.replace(file)
    return pairs


def _similar_pairs(store: RowStore, numbers: Numbers, groups: Numbers, threshold: float) -> Numbers:
    """Every row with the first head of its group that it is similar to, shape (pairs, 2); one without becomes a head.

    All groups take their next head at once, and their other rows are compared with it in arrays.
    """
    listed, at = np.unique(numbers, return_inverse=True)
    matrix = as_matrix(store.hashes("shingles", listed))
    sizes = np.diff(matrix.indptr)
    pairs = [np.empty((0, 2), np.int64)]
    left = np.arange(len(numbers))
    for _ in range(_HEADS):
        may_lead = left[sizes[at[left]] > 0]
        first = may_lead[np.flatnonzero(np.diff(groups[may_lead], prepend=-1))]  # the next head of each group
        if not len(first):
            break
        head = first[np.minimum(np.searchsorted(groups[first], groups[left]), len(first) - 1)]
        compared = (groups[head] == groups[left]) & (head < left)
        head, left = head[compared], left[compared]
        near = jaccard(matrix, at[head], at[left]) >= threshold
        pairs.append(np.stack([numbers[head[near]], numbers[left[near]]], axis=1))
        left = left[~near]
    return np.concatenate(pairs)


def as_matrix(shingled: Rows) -> csr_array:
    """The shingles of each row as the columns of a sparse matrix in which it has ones."""
    # One bit less: columns are numbered without a sign.
    columns, shape = (shingled.flat >> np.uint64(1)).astype(np.int64), (len(shingled), np.iinfo(np.int64).max)
    return csr_array((np.ones(len(columns), np.int8), columns, shingled.starts), shape=shape)


def jaccard(matrix: csr_array, first: Numbers, second: Numbers) -> npt.NDArray[np.float64]:
    """Shared shingles over all shingles, of each of the rows `first` with its partner in `second`."""
    sizes, shared = np.diff(matrix.indptr), np.zeros(len(first))
    for start in range(0, len(first), PAIRS):
        part = slice(start, start + PAIRS)
        common = matrix[first[part]].multiply(matrix[second[part]])
        shared[part] = np.diff(common.indptr)
    return np.asarray(shared / np.maximum(1, sizes[first] + sizes[second] - shared), np.float64)


def _batches(groups: Numbers) -> Iterator[slice]:
    """Whole groups, of about BATCH rows together."""
    start = 0
    while start < len(groups):
        end = int(np.searchsorted(groups, groups[min(start + BATCH, len(groups)) - 1], side="right"))
        yield slice(start, end)
        start = end


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
    answers = store.column("answers")
    variants: list[Variants] = []
    if params.exact:
        clusters = exact_clusters(store)
        variants += _twins(store, clusters, "nothing: a benchmark asks it twice")
        dropped.append(Losses.of(store, _settle(store, clusters, answers, "exact")))
    if params.near:
        near, similar = near_clusters(store, params.near)
        parts = (part for cluster in near for part in _same_questions(store, cluster, answers))
        detail = f"jaccard >= {params.near.threshold}"
        dropped.append(Losses.of(store, _settle(store, (part for part in parts if len(part) > 1), answers, detail)))
        stays = np.ones(len(store), bool)
        stays[dropped[-1].numbers] = False
        variants += [
            Variants.of(store, left, difference)
            for groups, difference in ((near, "answers"), (similar, "numbers or operators"))
            for group in groups
            if len(left := [number for number in group if stays[number]]) > 1
        ]
    return Deduplicated(chain.from_iterable(dropped), variants)


def exact_clusters(store: RowStore) -> Clusters:
    """Clusters of two or more numbers of rows whose questions are equal after normalisation."""
    return Clusters.of(*store.alike("high", "low"))


def _twins(store: RowStore, clusters: Iterable[Sequence[int]], difference: str) -> Iterator[Variants]:
    """The rows of the test split that ask the same question."""
    for cluster in clusters:
        rows = [number for number in cluster if SPLITS[store.splits[number]] == BENCHMARK]
        if len(rows) > 1:
            yield Variants.of(store, rows, difference)


def _equal_answers(cluster: Sequence[int], answers: Hashes) -> bool:
    """Whether all rows accept the same answers, by the hashes of all rows' answers: then none has to be read."""
    first = answers[cluster[0]]
    return all(answers[number] == first for number in cluster)


def _same_questions(store: RowStore, cluster: Sequence[int], answers: Hashes) -> list[Sequence[int]]:
    """The near-duplicates among similar rows: those that share an answer, or all tokens."""
    if _equal_answers(cluster, answers):
        return [cluster]
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
    return [*parts]


def _settle(
    store: RowStore, clusters: Iterable[Sequence[int]], answers: Hashes, detail: str
) -> Iterator[tuple[int, Reason]]:
    """The numbers of the rows of the clusters that go, and why."""
    for cluster in clusters:
        ranked = sorted(cluster, key=lambda number: (HELD_OUT.get(store.split(number), 2), number))
        if _equal_answers(cluster, answers):
            reason = Reason("duplicate", store.id(ranked[0]), detail)
            yield from ((number, reason) for number in ranked[1:] if store.split(number) != BENCHMARK)
            continue
        problems = {number: store.problem(number) for number in cluster}
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
