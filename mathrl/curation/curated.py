"""What curation makes: disjoint splits, and an account of every row that is not in them."""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

import numpy as np

from mathrl.core.files import from_fields
from mathrl.curation.decontaminate import Hit
from mathrl.curation.deduplicate import Dropped, Reason, Variants
from mathrl.curation.quality import Broken
from mathrl.curation.row_store import RowStore, StoredProblems
from mathrl.reading.reading import Rejected

TRAINED = ("sft", "rl")
CHUNK = 1 << 14  # dropped rows that are in memory at a time


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
        self.dropped = Spill(store.folder / "dropped.jsonl", Dropped)
        self.hits: Spill[Hit] = Spill(store.folder / "hits.jsonl", Hit)
        # Rows that break rules of curate.quality.
        self.broken: Spill[Broken] = Spill(store.folder / "broken.jsonl", Broken)
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

    def drop(self, name: str, problems: StoredProblems, dropped: Iterable[tuple[int, Reason]]) -> StoredProblems:
        """Add a step that drops rows, given by number with the reason, and return the others."""
        reasons: Counter[str] = Counter()
        gone = array("q")
        stream = iter(dropped)
        while chunk := list(islice(stream, CHUNK)):
            numbers = np.array([number for number, _ in chunk])
            ascending = np.split(numbers, np.flatnonzero(np.diff(numbers) < 0) + 1)
            of_chunk = chain.from_iterable(map(self.store.problems, ascending))
            for problem, (number, why) in zip(of_chunk, chunk, strict=True):
                self.dropped.append(Dropped.of(problem, why))
                reasons[why.reason] += 1
                gone.append(number)
        numbers = np.array(gone, np.int64)
        self.store.drop(numbers)
        kept = problems.without(numbers)
        self.steps.append(CurationStep(name, len(problems), len(kept), reasons))
        return kept


Item = TypeVar("Item")  # a flat dataclass


class Spill(Sequence[Item], Generic[Item]):
    """Flat dataclasses in a file of JSON lines, each made again when it is looked at."""

    def __init__(self, file: Path, kind: type[Item]) -> None:
        self._kind = kind
        self._ends = array("q")
        self._file = file.open("w+b")
        self._at_end = True  # of the file: a seek would flush what is not yet written

    def append(self, item: Item) -> None:
        line = json.dumps(asdict(cast("Any", item))).encode() + b"\n"
        start = self._ends[-1] if self._ends else 0
        if not self._at_end:
            self._file.seek(start)
            self._at_end = True
        self._file.write(line)
        self._ends.append(start + len(line))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        self._file.seek(self._ends[at - 1] if at else 0)
        self._at_end = False
        return from_fields(self._kind, json.loads(self._file.readline()))

    def __iter__(self) -> Iterator[Item]:
        return (self[index] for index in range(len(self)))
