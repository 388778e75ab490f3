"""The sources of a curation into its store: read in one stream, made problems and digested by several processes."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from mathrl.core.errors import UserError
from mathrl.data.curated import Curated, CurationStep
from mathrl.data.processes import in_order
from mathrl.data.reading import Read, Reader, Rejected, input_row, read_source, repeated, rows_of
from mathrl.data.row_files import Row
from mathrl.data.row_shards import Item, Numbers, Summary, write_shard
from mathrl.data.row_store import RowStore, StoredProblems, shard_tasks
from mathrl.data.sources import ResolvedSource


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
    good = np.setdiff1d(np.arange(first, len(store)), numbers, assume_unique=True)
    return good, bad, sum(summary.cut_turns for summary in summaries)


def _items(resolved: ResolvedSource, seed: int, read: Read) -> tuple[Iterator[Item], Reader | None]:
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
        repeats[number] = repeated(store.problem(number).id, *store.shards[shard].places(at), source)
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
