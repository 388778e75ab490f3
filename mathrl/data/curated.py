"""What curation makes: disjoint splits, and an account of every row that is not in them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from mathrl.data.decontaminate import Hit
from mathrl.data.deduplicate import Dropped, Reason, Variants
from mathrl.data.quality import Broken
from mathrl.data.reading import Rejected
from mathrl.data.row_store import RowStore, StoredProblems
from mathrl.data.spill import Spill

TRAINED = ("sft", "rl")


@dataclass
class CurationStep:
    """The number of rows before and after one step, and why rows went."""

    name: str
    rows_in: int
    rows_out: int
    reasons: Counter[str] = field(default_factory=Counter)


class Curated:
    """Disjoint splits, and an account of every row that is not in them; the rows are in `store`, on disk."""

    def __init__(self, store: RowStore, generated: frozenset[str]) -> None:
        self.store, self.generated = store, generated
        self.splits: dict[str, StoredProblems] = {}
        self.dropped = Spill(store.folder / "dropped.jsonl", Dropped.to_row, Dropped.from_row)
        self.hits: Spill[Hit] = Spill(store.folder / "hits.jsonl", Hit.fields, Hit.from_row)
        # Rows that break rules of curate.quality.
        self.broken: Spill[Broken] = Spill(store.folder / "broken.jsonl", asdict, Broken.from_row)
        self.rejected: list[Rejected] = []
        self.steps: list[CurationStep] = []
        self.too_short: list[str] = []
        self.evaluation_sizes: dict[str, int] = {}
        self.evaluation_homes: dict[str, str] = {}
        self.variants: list[Variants] = []
        self.solutions_barred = 0  # rl rows that sft_share left in rl: their solutions are contaminated
        self.cut_turns: dict[str, int] = {}  # assistant turns cut off prompts, by source
        self.overlap: Counter[tuple[str, str]] = Counter()  # dropped rows by their source and the evaluation set
        self.matched_whole: Counter[str] = Counter()  # rows dropped for a short evaluation text, by source
        self.inputs: list[dict[str, Any]] = []
        self.evaluation_inputs: list[dict[str, Any]] = []

    def account(self, name: str, before: StoredProblems, kept: StoredProblems, dropped: Mapping[int, Reason]) -> None:
        """Add a step, and the rows that it dropped: their numbers and why they went."""
        reasons = Counter(why.reason for why in dropped.values())
        self.steps.append(CurationStep(name, len(before), len(kept), reasons))
        numbers = np.fromiter(dropped, np.int64, len(dropped))
        ascending = np.split(numbers, np.flatnonzero(np.diff(numbers) < 0) + 1)
        problems = chain.from_iterable(map(self.store.problems, ascending))
        for problem, why in zip(problems, dropped.values(), strict=True):
            self.dropped.append(Dropped.of(problem, why))
        self.store.drop(numbers)
