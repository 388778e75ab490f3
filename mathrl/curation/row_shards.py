"""Shards: some thousand rows on disk, with everything that later steps ask of a row, computed once.

A shard is two files. NAME.jsonl has the rows as curated files have them. NAME.arrow has numbers per row: its place in
NAME.jsonl, the key of its question, the hashes of its grams, and the shingles for near-duplicates. It is
written last, so a shard that has it is complete: a run that was killed goes on after its last complete shard.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from mathrl.core.files import ESCAPE, written_aside
from mathrl.core.types import Problem
from mathrl.curation.question_digests import digest
from mathrl.curation.token_windows import Rows, TokenHashes, hash_tokens
from mathrl.data.grams import compared_grams, exact_key
from mathrl.params.data import NearDuplicates
from mathrl.reading.reading import Reader, Rejected
from mathrl.reading.row_files import Row

ROWS = 1 << 14  # per shard
CHUNK = 1 << 12  # rows whose tokens are in memory at a time
SPLITS = ("sft", "rl", "dev", "test")
Numbers = npt.NDArray[np.int64]
Item = Row | Problem | Rejected
_LINE = json.JSONEncoder(ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True)
class Digesting:
    """What is computed of every row: for near-duplicates, and the grams of questions and of some splits' solutions."""

    near: NearDuplicates | None = None
    grams: bool = False
    solutions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ShardTask:
    """The rows of a shard, in order; none where the shard is complete. `reader` makes problems of rows."""

    stem: Path
    items: Sequence[Item]
    reader: Reader | None = None


@dataclass(frozen=True)
class Summary:
    """What a shard's rows became. `rejected` has the number of good rows before each bad row."""

    stem: Path
    left_out: int
    cut_turns: int
    rejected: list[tuple[int, Rejected]]


def write_shard(digesting: Digesting, task: ShardTask) -> Summary:
    """Write the shard, unless it is complete, and say what became of its rows."""
    if is_complete(task.stem):
        return _summary(task.stem)
    rejected, places, problems = list[tuple[int, Rejected]](), [], []
    left_out = cut_turns = 0
    for item in task.items:
        made = task.reader.problem(item) if isinstance(item, Row) and task.reader else item
        if isinstance(made, Problem):
            problems.append(made)
            places.append((item.where, item.shown) if isinstance(item, Row) else ("", ""))
            cut_turns += made.control.cut_turns
        elif isinstance(made, Rejected):
            rejected.append((len(problems), made))
        else:
            left_out += 1
    lines = [encode(problem) for problem in problems]
    with written_aside(task.stem.with_suffix(".jsonl")) as aside:
        aside.write_bytes(b"".join(lines))
    account = {
        "left_out": left_out,
        "cut_turns": cut_turns,
        "rejected": [[at, bad.where, bad.shown, bad.source, bad.reason] for at, bad in rejected],
    }
    table = pa.table(_columns(problems, lines, places, digesting)).replace_schema_metadata({"": json.dumps(account)})
    with (
        written_aside(task.stem.with_suffix(".arrow")) as aside,
        aside.open("wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    return Summary(task.stem, left_out, cut_turns, rejected)


def is_complete(stem: Path) -> bool:
    return stem.with_suffix(".arrow").exists()


def encode(problem: Problem) -> bytes:
    """The problem's line in a curated file."""
    return (_LINE.encode(problem.to_row()) + "\n").encode("utf-8", errors=ESCAPE)


def as_bytes(text: str) -> bytes:
    """Any text, with lone surrogates and the undecodable bytes of a path, for a column of bytes."""
    return text.encode("utf-8", errors="surrogatepass")


def _summary(stem: Path) -> Summary:
    account = json.loads(Shard(stem).table.schema.metadata[b""])
    rejected = [(at, Rejected(*fields)) for at, *fields in account["rejected"]]
    return Summary(stem, account["left_out"], account["cut_turns"], rejected)


class Shard:
    """A complete shard, read on demand; its numbers are mapped into memory and its lines are read from the file."""

    def __init__(self, stem: Path) -> None:
        self.stem = stem

    @cached_property
    def _memory_map(self) -> mmap:
        with self.stem.with_suffix(".arrow").open("rb") as stream:  # Arrow opens no path of another encoding
            return mmap(stream.fileno(), 0, access=ACCESS_READ)

    @cached_property
    def table(self) -> Any:
        return pa.ipc.open_file(pa.py_buffer(self._memory_map)).read_all()

    def release(self) -> None:
        """Let the system have back the memory of what was read; it is read again on demand."""
        self._memory_map.madvise(MADV_DONTNEED)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        column = self.table.column(name)
        return np.asarray(column.chunk(0).to_numpy()) if column.num_chunks else np.empty(0, np.int64)

    def rows(self, name: str, at: Numbers) -> Rows:
        """The lists of hashes in a column, of the rows `at`."""
        if not len(at):  # a shard of bad rows alone has no chunk
            return Rows(np.empty(0, np.uint64), np.zeros(1, np.int64))
        lists = self.table.column(name).chunk(0).take(pa.array(at))
        lengths = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), np.int64)
        return Rows(np.asarray(lists.flatten().to_numpy(), np.uint64), np.concatenate([[0], np.cumsum(lengths)]))

    def id_and_split(self, at: int) -> tuple[str, str]:
        """The id and the split that a row had when it was read."""
        id: str = self.table.column("id")[at].as_py().decode("utf-8", "surrogatepass")
        return id, SPLITS[self.column("split")[at]]

    def places(self, at: int) -> tuple[str, str]:
        """Where a row stands: with the path of its file, and as reports show it."""
        texts = (self.table.column(name)[at].as_py().decode("utf-8", "surrogatepass") for name in ("where", "shown"))
        where, shown = (f"{text}{self.table.column('line')[at].as_py()}" for text in texts)
        return where, shown

    def lines(self, at: Numbers) -> Iterator[bytes]:
        """The lines of the rows `at`, read at once."""
        text, ends = self.stem.with_suffix(".jsonl").read_bytes(), self.column("end")
        for number in at.tolist():
            yield text[ends[number - 1] if number else 0 : ends[number]]

    def line(self, at: int) -> bytes:
        ends = self.column("end")
        start = int(ends[at - 1]) if at else 0
        with self.stem.with_suffix(".jsonl").open("rb") as stream:
            stream.seek(start)
            return stream.read(int(ends[at]) - start)


def _columns(
    problems: Sequence[Problem], lines: Sequence[bytes], places: Sequence[tuple[str, str]], digesting: Digesting
) -> dict[str, Any]:
    keys = [exact_key(problem.question) for problem in problems]
    answers = [xxhash.xxh3_64_intdigest(as_bytes(repr(problem.answers))) for problem in problems]
    ends = np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
    levels = (problem.level if problem.level is not None else -1 for problem in problems)
    columns: dict[str, Any] = {
        "id": pa.array([as_bytes(problem.id) for problem in problems], pa.binary()),
        "split": np.array([SPLITS.index(problem.split) for problem in problems], np.uint8),
        "level": np.fromiter(levels, np.int32, len(problems)),
        "end": ends,
        "high": np.array([key >> 64 for key in keys], np.uint64),
        "low": np.array([key & (1 << 64) - 1 for key in keys], np.uint64),
        "answers": np.array(answers, np.uint64),
        **_place_columns(places),
    }
    if digesting.grams:
        questions = [problem.question for problem in problems]
        solutions = [p.solution if p.split in digesting.solutions and p.solution else "" for p in problems]
        columns |= {"question_grams": _gram_hashes(questions), "solution_grams": _gram_hashes(solutions)}
    if digesting.near:
        digests = digest([problem.question for problem in problems], digesting.near.ngram)
        columns |= {"salt": digests.salt, "shingles": _lists(digests.shingles)}
    return columns


def _place_columns(places: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A row's place as "FILE, line " and a number: the texts stand once per file."""
    cut = [[text.rpartition(" ") for text in both] for both in places]
    texts = {
        name: pa.array([as_bytes(f"{parts[i][0]}{parts[i][1]}") for parts in cut], pa.binary()).dictionary_encode()
        for i, name in enumerate(("where", "shown"))
    }
    return {**texts, "line": pa.array([parts[0][2] for parts in cut], pa.string())}


def _gram_hashes(texts: Sequence[str]) -> Any:
    parts = []
    cache = TokenHashes()
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        parts.append(hash_tokens([compared_grams(text) if text else [] for text in chunk], cache))
    return _lists(Rows.join(parts))


def _lists(rows: Rows) -> Any:
    return pa.ListArray.from_arrays(pa.array(rows.starts.astype(np.int32)), pa.array(rows.flat))
