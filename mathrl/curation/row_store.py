"""The rows of a curation, on disk: lines and digests in shards, ids and keys in DuckDB, one number per row in memory.

DuckDB groups rows by what they share and writes to disk what does not fit into memory; a `Problem` is made of a line
when it is looked at.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from mathrl.core.types import Problem
from mathrl.curation.processes import cores
from mathrl.curation.row_shards import (
    ROWS,
    SPLITS,
    Digesting,
    Item,
    Numbers,
    Shard,
    ShardTask,
    as_bytes,
    encode,
    is_complete,
    write_shard,
)
from mathrl.reading.reading import Reader

MEMORY = "300MB"  # that DuckDB may take before it writes to disk
THREADS = 4  # of DuckDB at most: each needs memory that it cannot write to disk
COLUMNS = ("id", "high", "low")


class RowStore:
    """The rows of all sources, in order; their numbers are 0, 1, …

    `splits` has the index in SPLITS of each row's split; steps move rows between splits there. The table `rows` in
    DuckDB has the rows that no step has dropped.
    """

    def __init__(self, folder: Path | None, digesting: Digesting) -> None:
        self._temporary = None if folder else TemporaryDirectory(prefix="mathrl-rows-")
        self.folder = folder or Path(self._temporary.name)  # type: ignore[union-attr]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.digesting = digesting
        self.shards: list[Shard] = []
        self.starts = np.zeros(1, np.int64)  # number of each shard's first row, and of all rows
        self.sources: list[str] = []  # per shard
        self.splits = np.empty(0, np.uint8)
        self._renamed = np.empty(0, bool)  # rows with the id SOURCE/SPLIT/ID
        self.stays = np.empty(0, bool)  # rows that no step has dropped
        for left in self.folder.glob("*.duckdb*"):  # of a run that was killed
            left.unlink()
        self._duckdb = self.connect("rows")

    def connect(self, name: str) -> duckdb.DuckDBPyConnection:
        """A DuckDB database in the folder, which takes MEMORY and writes the rest to disk."""
        place = os.fsencode(self.folder).decode("utf-8", "surrogateescape")  # DuckDB's paths are UTF-8 in any locale
        settings: dict[str, str | int | float | list[str]] = {
            "memory_limit": MEMORY,
            "threads": min(cores(), THREADS),
            "temp_directory": f"{place}/{name}-spilled",
            "preserve_insertion_order": "false",
        }
        return duckdb.connect(f"{place}/{name}.duckdb", config=settings)

    def release(self) -> None:
        """Write to disk what DuckDB holds in memory: other steps need the memory."""
        self._duckdb.close()
        self._duckdb = self.connect("rows")

    def __len__(self) -> int:
        return int(self.starts[-1])

    @classmethod
    def of(cls, problems: Sequence[Problem], digesting: Digesting) -> "RowStore":
        """A store in a temporary folder with these problems, which have one source."""
        store = cls(None, digesting)
        for task in shard_tasks(store.folder, 0, problems):
            write_shard(digesting, task)
            store.add([task.stem], task.items[0].source)  # type: ignore[union-attr]
        return store

    def add(self, stems: Sequence[Path], source: str) -> list[int]:
        """Add the rows of complete shards of one source, and return the number of each shard's first row."""
        shards = [Shard(stem) for stem in stems]
        ends = len(self) + np.cumsum([len(shard) for shard in shards], dtype=np.int64)
        for shard, end in zip(shards, ends.tolist(), strict=True):
            self._insert(shard, end - len(shard))
        self.shards += shards
        self.sources += [source] * len(shards)
        self.starts = np.concatenate([self.starts, ends]).astype(np.int64)
        self.splits = np.concatenate([self.splits, *(shard.column("split").astype(np.uint8) for shard in shards)])
        self._renamed = np.concatenate([self._renamed, np.zeros(len(self.splits) - len(self._renamed), bool)])
        self.stays = np.concatenate([self.stays, np.ones(len(self.splits) - len(self.stays), bool)])
        return [int(start) for start in self.starts[-len(shards) - 1 : -1]]

    def _insert(self, shard: Shard, first: int) -> None:
        batch = shard.table.select(COLUMNS).append_column("number", pa.array(np.arange(first, first + len(shard))))
        self._duckdb.register("batch", batch)
        self._duckdb.execute("CREATE TABLE IF NOT EXISTS rows AS FROM batch LIMIT 0")
        self._duckdb.execute("INSERT INTO rows FROM batch")
        self._duckdb.unregister("batch")
        shard.release()

    def alike(self, *columns: str, since: int = 0) -> tuple[Numbers, Numbers]:
        """Rows that share their values in all the columns with another row, and the number of each one's group.

        Of the rows that no step has dropped, from the number `since` on; groups are together, their rows in order.
        """
        if not self.shards:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        listed = ", ".join(columns)
        table = self._duckdb.execute(
            f"WITH several AS (SELECT {listed}, min(number) AS of_group FROM rows WHERE number >= {since} GROUP BY ALL "
            f"HAVING count(*) > 1) SELECT number, of_group FROM rows JOIN several USING ({listed}) "
            f"WHERE number >= {since} ORDER BY of_group, number"
        ).fetchnumpy()
        return np.asarray(table["number"], np.int64), np.asarray(table["of_group"], np.int64)

    def in_earlier(self, since: int) -> Numbers:
        """The rows from the number `since` on whose id an earlier row has."""
        if not self.shards or not since:
            return np.empty(0, np.int64)
        table = self._duckdb.execute(
            "SELECT number FROM rows SEMI JOIN (SELECT id FROM rows WHERE number < $1) USING (id) WHERE number >= $1 "
            "ORDER BY number",
            [since],
        ).fetchnumpy()
        return np.asarray(table["number"], np.int64)

    def rename(self, numbers: Numbers, source: str) -> None:
        """Give rows of one source the id SOURCE/SPLIT/ID."""
        self._renamed[numbers] = True
        prefixes = [as_bytes(f"{source}/{split}/") for split in SPLITS]
        chosen = pa.table({
            "number": numbers,
            "prefix": pa.array([prefixes[split] for split in self.splits[numbers]], pa.binary()),
        })  # fmt: skip
        self._duckdb.register("chosen", chosen)
        self._duckdb.execute("UPDATE rows SET id = prefix || id FROM chosen WHERE rows.number = chosen.number")
        self._duckdb.unregister("chosen")

    def drop(self, numbers: Numbers) -> None:
        """Take rows out of what `alike` and `similar_pairs` look at."""
        self.stays[numbers] = False
        if len(numbers):
            self._duckdb.register("chosen", pa.table({"number": numbers}))
            self._duckdb.execute("DELETE FROM rows USING chosen WHERE rows.number = chosen.number")
            self._duckdb.unregister("chosen")

    def by_shard(self, numbers: Numbers) -> Iterator[tuple[int, Numbers]]:
        """Ascending numbers as shards with the places in them."""
        ends = np.searchsorted(numbers, self.starts)
        for shard in range(len(self.shards)):
            if ends[shard] < ends[shard + 1]:
                yield shard, numbers[ends[shard] : ends[shard + 1]] - self.starts[shard]

    def place(self, number: int) -> tuple[int, int]:
        """The shard of a row, and its place in it."""
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        return shard, number - int(self.starts[shard])

    def source(self, number: int) -> str:
        return self.sources[self.place(number)[0]]

    def split(self, number: int) -> str:
        return SPLITS[self.splits[number]]

    def id(self, number: int) -> str:
        """The id of a row's problem, which is not read for it."""
        shard, at = self.place(number)
        id, split = self.shards[shard].id_and_split(at)
        return f"{self.sources[shard]}/{split}/{id}" if self._renamed[number] else id

    def problem(self, number: int) -> Problem:
        shard, at = self.place(number)
        return self._make_problem(number, self.shards[shard].line(at))

    def problems(self, numbers: Numbers) -> Iterator[Problem]:
        """Problems of ascending numbers, read a shard at a time."""
        for shard, at in self.by_shard(numbers):
            for place, line in zip(at.tolist(), self.shards[shard].lines(at), strict=True):
                yield self._make_problem(int(self.starts[shard]) + place, line)

    def lines(self, numbers: Numbers) -> Iterator[bytes]:
        """The rows as lines of a curated file."""
        for shard, at in self.by_shard(numbers):
            start, read = int(self.starts[shard]), self.shards[shard].column("split")
            changed = (self.splits[start + at] != read[at]) | self._renamed[start + at]
            lines = self.shards[shard].lines(at)
            for place, line, other in zip(at.tolist(), lines, changed.tolist(), strict=True):
                yield encode(self._make_problem(start + place, line)) if other else line

    def values(self, column: str, numbers: Numbers) -> Any:
        """The values of the numbers, in any order, in a column of numbers."""
        order = np.argsort(numbers, kind="stable")
        parts = []
        for shard, at in self.by_shard(numbers[order]):
            parts.append(self.shards[shard].column(column)[at])
            self.shards[shard].release()
        if not parts:
            return np.empty(0, np.int64)
        ascending = np.concatenate(parts)
        values = np.empty_like(ascending)
        values[order] = ascending
        return values

    def count_by_source(self, numbers: Numbers) -> dict[str, int]:
        """The number of rows of each source among ascending numbers, in the order of the sources."""
        counts: dict[str, int] = {}
        for shard, at in self.by_shard(numbers):
            counts[self.sources[shard]] = counts.get(self.sources[shard], 0) + len(at)
        return counts

    def all(self) -> "StoredProblems":
        return StoredProblems(self, np.arange(len(self)))

    def piece(self, shard: int, at: Numbers) -> "ShardRows":
        first = int(self.starts[shard])
        return ShardRows(self.shards[shard].stem, first, at, self.splits[first + at], self._renamed[first + at])

    def _make_problem(self, number: int, line: bytes) -> Problem:
        return _problem(line, int(self.splits[number]), bool(self._renamed[number]))


@dataclass(frozen=True)
class ShardRows:
    """Rows of one shard for another process: the shard's first number, and the rows' places, splits and new ids."""

    stem: Path
    first: int
    at: Numbers
    splits: Any
    renamed: Any

    @property
    def shard(self) -> Shard:
        return Shard(self.stem)

    def problems(self) -> Iterator[tuple[int, Problem]]:
        """The rows with their numbers."""
        rows = zip(
            self.at.tolist(), self.splits.tolist(), self.renamed.tolist(), self.shard.lines(self.at), strict=True
        )
        for at, split, renamed, line in rows:
            yield self.first + at, _problem(line, split, renamed)

    def only(self, chosen: Any) -> "ShardRows":
        """The chosen rows, by place in the piece or by a mask."""
        return ShardRows(self.stem, self.first, self.at[chosen], self.splits[chosen], self.renamed[chosen])


def _problem(line: bytes, split: int, renamed: bool) -> Problem:
    """The problem of a line as it was read, with the split and the id that it has now."""
    problem = Problem.from_row(json.loads(line))
    if renamed:
        problem = problem.with_(id=f"{problem.source}/{problem.split}/{problem.id}")
    return problem if problem.split == SPLITS[split] else problem.with_(split=SPLITS[split])


@dataclass(frozen=True, eq=False)
class StoredProblems:
    """Problems of a store by ascending numbers, each made when it is looked at.

    Example:
        StoredProblems(store, np.array([3, 17]))[0]  # the problem of row 3
    """

    store: RowStore
    numbers: Numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Problem:
        return self.store.problem(int(self.numbers[index]))

    def __iter__(self) -> Iterator[Problem]:
        return self.store.problems(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence | StoredProblems) and list(self) == list(other)

    def of(self, *splits: str) -> "StoredProblems":
        """Those of some splits."""
        codes = [SPLITS.index(split) for split in splits]
        return StoredProblems(self.store, self.numbers[np.isin(self.store.splits[self.numbers], codes)])

    def without(self, numbers: Numbers) -> "StoredProblems":
        """Those with other numbers; the numbers are some of these."""
        kept = np.ones(len(self), bool)
        kept[np.searchsorted(self.numbers, numbers)] = False
        return StoredProblems(self.store, self.numbers[kept])

    def pieces(self) -> Iterator[ShardRows]:
        """The rows shard by shard, for `in_order`."""
        return (self.store.piece(shard, at) for shard, at in self.store.by_shard(self.numbers))

    def lines(self) -> Iterator[bytes]:
        return self.store.lines(self.numbers)

    def count_by_source(self) -> dict[str, int]:
        return self.store.count_by_source(self.numbers)

    def levels(self) -> Any:
        """The level of each, -1 for none."""
        return self.store.values("level", self.numbers)


def shard_tasks(folder: Path, first: int, items: Iterable[Item], reader: Reader | None = None) -> Iterator[ShardTask]:
    """The items as shards, whose files are numbered from `first`; none where the shard is complete."""
    stream = iter(items)
    for number in count(first):
        chunk = list(islice(stream, ROWS))
        if not chunk:
            return
        stem = folder / f"{number:06d}"
        yield ShardTask(stem, () if is_complete(stem) else chunk, reader)
