"""What curation reads and makes: the rows of all sources, disjoint splits, and an account of every row not in them."""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.files import from_fields, to_fields
from mathrl.curation.decisions import Hit
from mathrl.curation.deduplicate import Dropped, Reason, Variants
from mathrl.curation.processes import in_order
from mathrl.curation.quality import Broken
from mathrl.curation.row_shards import Item as RowItem
from mathrl.curation.row_shards import Numbers, Summary, write_shard
from mathrl.curation.row_store import RowStore, StoredProblems, shard_tasks
from mathrl.reading.reading import Read, Reader, Rejected, input_row, read_source, reject_repeated, rows_of
from mathrl.reading.row_files import Row
from mathrl.reading.sources import ResolvedSource

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

    def __init__(self, store: RowStore, alike: frozenset[str]) -> None:
        self.store, self.alike = store, alike  # sources whose problems are not compared with their own
        self.splits: dict[str, StoredProblems] = {}
        self.dropped = Spill(store.folder / "dropped.jsonl", Dropped)
        self.hits: Spill[Hit] = Spill(store.folder / "hits.jsonl", Hit)
        # Rows that break rules of curate.quality.
        self.broken: Spill[Broken] = Spill(store.folder / "broken.jsonl", Broken)
        self.rejected: list[Rejected] = []
        self.steps: list[CurationStep] = []
        self.too_short: list[str] = []
        self.evaluation_sizes: dict[str, int] = {}
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


class Spill(Generic[Item]):
    """Flat dataclasses in a file of JSON lines, each made again when it is looked at."""

    def __init__(self, file: Path, kind: type[Item]) -> None:
        self._kind = kind
        self._ends = array("q")
        self._writer, self._reader = file.open("wb"), file.open("rb")

    def append(self, item: Item) -> None:
        line = json.dumps(to_fields(item)).encode() + b"\n"
        self._writer.write(line)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(line))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Item:
        at = range(len(self))[index]
        self._writer.flush()
        self._reader.seek(self._ends[at - 1] if at else 0)
        return from_fields(self._kind, json.loads(self._reader.readline()))

    def __iter__(self) -> Iterator[Item]:
        return (self[index] for index in range(len(self)))


def read_sources(sources: Iterable[ResolvedSource], seed: int, remedy: str | None, curated: Curated) -> StoredProblems:
    """The problems of all sources; bad rows, counts and digests go into the account.

    Raises:
        UserError: a source cannot be read or is empty, or has a bad row for which there is a `remedy`.
    """
    store = curated.store
    numbers = [np.empty(0, np.int64)]
    for resolved in sources:
        read, first = Read(), len(store)
        good, bad, cut = _read(resolved, seed, read, remedy, store)
        if not len(good) and not bad and not resolved.generated:
            raise UserError(f"{resolved.describe()}: no row in it")
        curated.inputs.append(input_row(resolved, read))
        if cut:
            curated.cut_turns[resolved.name] = curated.cut_turns.get(resolved.name, 0) + cut
        store.rename(store.in_earlier(first), resolved.name)  # rows that two sources share get distinct ids
        numbers.append(good)
        curated.rejected += bad
        name = f"read {resolved.name}" + (f" ({resolved.split})" if resolved.split else "")
        reasons = +Counter({"bad row": len(bad), **read.left_out})
        curated.steps.append(CurationStep(name, len(good) + reasons.total(), len(good), reasons))
    return StoredProblems(store, np.concatenate(numbers))


def _read(
    resolved: ResolvedSource, seed: int, read: Read, remedy: str | None, store: RowStore
) -> tuple[Numbers, list[Rejected], int]:
    """The numbers of a source's good rows, its bad rows in order, and the assistant turns cut off its prompts."""
    items, reader = _items(resolved, seed, read)
    tasks = shard_tasks(store.folder, len(store.shards), items, reader)
    first, summaries, failure = len(store), list[Summary](), None
    try:
        for summary in in_order(write_shard, store.digesting, tasks):
            summaries.append(summary)
            if remedy and summary.rejected:
                break
    except UserError as error:  # unless a row before it is bad
        failure = error
    starts = store.add([summary.stem for summary in summaries], resolved.name)
    repeats = _repeats(store, first, resolved.name)
    bad = _bad_rows(summaries, starts, repeats)
    if remedy and bad:
        raise UserError(f"{bad[0].where}: {bad[0].reason}; {remedy}")
    if failure:
        raise failure
    numbers = np.fromiter(repeats, np.int64, len(repeats))
    store.drop(numbers)
    read.left_out.update({"left out by keep": sum(summary.left_out for summary in summaries)})
    good = np.ones(len(store) - first, bool)
    good[numbers - first] = False
    return first + np.flatnonzero(good), bad, sum(summary.cut_turns for summary in summaries)


def _items(resolved: ResolvedSource, seed: int, read: Read) -> tuple[Iterator[RowItem], Reader | None]:
    """The rows, and what makes problems of them; or problems, where rows are drawn or generated in order."""
    if resolved.generated or resolved.limit is not None:
        return iter(read_source(resolved, seed, read)), None
    rows, reader, unread = rows_of(resolved, read), Reader(resolved, seed), list[Row]()
    for row in rows:
        unread.append(row)
        if not row.problem:
            reader.fit(row)  # every shard begins with the shape of the source's first row
            break
    return chain(unread, rows), reader


def _repeats(store: RowStore, since: int, source: str) -> dict[int, Rejected]:
    """The rows from the number `since` on that have the id of an earlier one, by number."""
    numbers, groups = store.alike("id", since=since)
    repeats = {}
    for number in np.sort(numbers[numbers != groups]).tolist():  # a group has the number of its first row
        shard, at = store.place(number)
        repeats[number] = reject_repeated(store.problem(number).id, *store.shards[shard].places(at), source)
    return repeats


def _bad_rows(summaries: Iterable[Summary], starts: Iterable[int], repeats: dict[int, Rejected]) -> list[Rejected]:
    """All bad rows in the order of the source."""
    placed = [
        ((start + before, 0), row)
        for summary, start in zip(summaries, starts, strict=True)
        for before, row in summary.rejected
    ]
    placed += [((number, 1), row) for number, row in repeats.items()]
    return [row for _, row in sorted(placed, key=lambda pair: pair[0])]
