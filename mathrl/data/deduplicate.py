"""Rows with the same question: equal after normalisation, or near-duplicates by MinHash LSH; one of each stays.

Held-out rows win over training rows (test, dev, then the order of the sources), so that no training row
equals a test row. When the answers in a cluster contradict each other, none of its training rows stays.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mathrl.core.types import Problem
from mathrl.data.grams import exact_key
from mathrl.grading.matching import compare
from mathrl.params.data import Deduplicate

HELD_OUT = {"test": 0, "dev": 1}  # the splits whose rows win, and their ranks


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


Settled = tuple[list[Problem], list[Dropped]]  # the rows that stay, in their order, and the dropped ones


def deduplicate(problems: Sequence[Problem], params: Deduplicate) -> Settled:
    """The rows that stay, in their order, and the dropped ones."""
    kept, dropped = list(problems), []
    if params.exact:
        clusters = exact_clusters(kept)
        kept, removed = _settle(kept, clusters, "exact")
        dropped += removed
    if params.near:
        from mathrl.data.minhash import near_clusters  # numpy; only near-duplicates need it

        kept, removed = _settle(kept, near_clusters(kept, params.near), f"jaccard >= {params.near.threshold}")
        dropped += removed
    return kept, dropped


def exact_clusters(problems: Sequence[Problem]) -> list[list[int]]:
    """Clusters of two or more indices of rows whose questions are equal after normalisation."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index, problem in enumerate(problems):
        groups[exact_key(problem.question)].append(index)
    return [group for group in groups.values() if len(group) > 1]


def _settle(problems: Sequence[Problem], clusters: Iterable[Sequence[int]], detail: str) -> Settled:
    dropped: dict[int, Dropped] = {}
    for cluster in clusters:
        ranked = sorted(cluster, key=lambda index: (HELD_OUT.get(problems[index].split, 2), index))
        winner = problems[ranked[0]]
        conflict = next((problems[i] for i in ranked[1:] if not agree(winner, problems[i])), None)
        for index in ranked:
            problem = problems[index]
            if conflict is not None and problem.split not in HELD_OUT:
                against = conflict if problem is winner or agree(winner, problem) else winner
                answers = f"{detail}; answers {list(problem.answers)} and {list(against.answers)}"
                dropped[index] = Dropped(problem, "conflicting answers", against.id, answers)
            elif problem is not winner:
                dropped[index] = Dropped(problem, "duplicate", winner.id, detail)
    return [p for i, p in enumerate(problems) if i not in dropped], [dropped[i] for i in sorted(dropped)]


def agree(first: Problem, second: Problem) -> bool:
    r"""Whether the problems share an accepted answer, by the grader without its engine (1/3 is \frac13)."""
    return any(a == b or compare(a, b).equal is True for a in first.answers for b in second.answers)
