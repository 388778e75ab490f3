"""What curation makes: disjoint splits, and an account of every row that is not in them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mathrl.core.types import Problem
from mathrl.data.decontaminate import Hit
from mathrl.data.deduplicate import Dropped, Variants
from mathrl.data.reading import Rejected
from mathrl.params.quality import Rule

SPLITS = ("sft", "rl", "dev", "test")
TRAINED = ("sft", "rl")


@dataclass
class CurationStep:
    """The number of rows before and after one step, and why rows went."""

    name: str
    rows_in: int
    rows_out: int
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class Curated:
    """Disjoint splits, and an account of every row that is not in them."""

    splits: dict[str, list[Problem]]
    dropped: list[Dropped]
    rejected: list[Rejected]
    hits: list[Hit]
    steps: list[CurationStep]
    too_short: list[str]
    evaluation_sizes: dict[str, int]
    generated: frozenset[str]
    variants: list[Variants] = field(default_factory=list)
    broken: list[tuple[Problem, list[Rule]]] = field(default_factory=list)  # rows that break rules of curate.quality
    solutions_barred: int = 0  # rl rows that sft_share left in rl: their solutions are contaminated
    cut_turns: dict[str, int] = field(default_factory=dict)  # assistant turns cut off prompts, by source
    evaluation_homes: dict[str, str] = field(default_factory=dict)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    evaluation_inputs: list[dict[str, Any]] = field(default_factory=list)


def account(curated: Curated, name: str, before: Sequence[Any], after: Sequence[Any], dropped: list[Dropped]) -> None:
    """Add a step, and the rows that it dropped."""
    curated.steps.append(CurationStep(name, len(before), len(after), Counter(row.reason for row in dropped)))
    curated.dropped += dropped
