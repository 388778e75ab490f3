"""Rows with the same question: equal after normalisation, or near-duplicates by MinHash LSH; one of each stays.

Held-out rows win over training rows (test, dev, then the order of the sources), so that no training row
equals a test row. Test rows are never dropped: a benchmark stays as it was published. When the answers to one
question contradict each other, none of the training rows stays. Similar questions with different answers, numbers or
operators are different problems: they stay, and are reported as variants.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mathrl.core.types import Problem
from mathrl.data.grams import exact_key
from mathrl.data.question_tokens import question_tokens
from mathrl.grading.matching import compare
from mathrl.params.data import Deduplicate

HELD_OUT = {"test": 0, "dev": 1}  # the splits whose rows win, and their ranks
BENCHMARK = "test"  # the split that is measured and never changed


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropped row, the reason, and the row kept in its favour.

    Example:
        Dropped(problem=Problem(...), reason="duplicate", other="math/test/00734", detail="exact")
    """

    problem: Problem
    reason: str
    other: str | None = None
    detail: str = ""

    def to_row(self) -> dict[str, Any]:
        return {
            "id": self.problem.id,
            "source": self.problem.source,
            "split": self.problem.split,
            "reason": self.reason,
            "other": self.other,
            "detail": self.detail,
            "question": self.problem.question,
            "answers": list(self.problem.answers),
        }


@dataclass(frozen=True, slots=True)
class Variants:
    """Similar rows that all stay, and how they differ.

    Example:
        Variants(problems=(Problem(id="math/train/6", …), Problem(id="math/train/61", …)),
                 difference="numbers or operators")
    """

    problems: tuple[Problem, ...]
    difference: str

    def to_row(self) -> dict[str, Any]:
        rows = [
            {"id": p.id, "source": p.source, "split": p.split, "question": p.question, "answers": list(p.answers)}
            for p in self.problems
        ]
        return {"difference": self.difference, "rows": rows}


class Deduplicated(NamedTuple):
    """The rows that stay, in their order, the dropped ones, and groups of similar rows among those that stay."""

    kept: list[Problem]
    dropped: list[Dropped]
    variants: list[Variants]


def deduplicate(problems: Sequence[Problem], params: Deduplicate) -> Deduplicated:
    """Drop the duplicates. No row of the test split is dropped."""
    kept, dropped, variants = list(problems), [], []
    if params.exact:
        clusters = exact_clusters(kept)
        variants += _twins(kept, clusters, "nothing: a benchmark asks it twice")
        kept, removed = _without(kept, _settle(kept, clusters, "exact"))
        dropped += removed
    if params.near:
        from mathrl.data.minhash import near_clusters  # numpy; only near-duplicates need it

        before, (near, similar) = kept, near_clusters(kept, params.near)
        parts = [part for cluster in near for part in _same_questions(before, cluster)]
        detail = f"jaccard >= {params.near.threshold}"
        kept, removed = _without(before, _settle(before, (part for part in parts if len(part) > 1), detail))
        dropped += removed
        gone = {row.problem.id for row in removed}
        variants += [
            Variants(left, difference)
            for groups, difference in ((near, "answers"), (similar, "numbers or operators"))
            for group in groups
            if len(left := tuple(before[i] for i in group if before[i].id not in gone)) > 1
        ]
    return Deduplicated(kept, dropped, variants)


def exact_clusters(problems: Sequence[Problem]) -> list[list[int]]:
    """Clusters of two or more indices of rows whose questions are equal after normalisation."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index, problem in enumerate(problems):
        groups[exact_key(problem.question)].append(index)
    return [group for group in groups.values() if len(group) > 1]


def _twins(problems: Sequence[Problem], clusters: Iterable[Sequence[int]], difference: str) -> list[Variants]:
    """The rows of the test split that ask the same question."""
    tests = (tuple(problems[i] for i in cluster if problems[i].split == BENCHMARK) for cluster in clusters)
    return [Variants(rows, difference) for rows in tests if len(rows) > 1]


def _same_questions(problems: Sequence[Problem], cluster: Sequence[int]) -> list[list[int]]:
    """The near-duplicates among similar rows: those that share an answer, or all tokens."""
    parts: list[list[int]] = []
    tokens = {index: question_tokens(problems[index].question) for index in cluster}
    for index in cluster:
        problem = problems[index]
        same = (p for p in parts if agree(problems[p[0]], problem) or any(tokens[index] == tokens[i] for i in p))
        part = next(same, None)
        if part is None:
            parts.append([index])
        else:
            part.append(index)
    return parts


def _without(problems: Sequence[Problem], dropped: Mapping[int, Dropped]) -> tuple[list[Problem], list[Dropped]]:
    return [p for i, p in enumerate(problems) if i not in dropped], [dropped[i] for i in sorted(dropped)]


def _settle(problems: Sequence[Problem], clusters: Iterable[Sequence[int]], detail: str) -> dict[int, Dropped]:
    """The dropped rows by their index."""
    dropped: dict[int, Dropped] = {}
    for cluster in clusters:
        ranked = sorted(cluster, key=lambda index: (HELD_OUT.get(problems[index].split, 2), index))
        winner = problems[ranked[0]]
        conflict = next((problems[i] for i in ranked[1:] if not agree(winner, problems[i])), None)
        for index in ranked:
            problem = problems[index]
            if problem.split == BENCHMARK:
                continue
            if conflict is not None and problem.split not in HELD_OUT:
                against = conflict if problem is winner or agree(winner, problem) else winner
                answers = f"{detail}; answers {list(problem.answers)} and {list(against.answers)}"
                dropped[index] = Dropped(problem, "conflicting answers", against.id, answers)
            elif problem is not winner:
                dropped[index] = Dropped(problem, "duplicate", winner.id, detail)
    return dropped


def agree(first: Problem, second: Problem) -> bool:
    r"""Whether the problems share an accepted answer, by the grader without its engine (1/3 is \frac13)."""
    return any(a == b or compare(a, b).equal is True for a in first.answers for b in second.answers)
