"""Rows of local files: which files a path names, and their rows with their locations.

A seeded choice of rows out of a stream, which decodes few of the others and holds none of them.
"""

import glob
import heapq
import os
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.params.messages import near_path
from mathrl.reading.file_formats import PACKED, SUFFIXES, TEXT, Wanted, decode, kind_of

KNOWN = f"{', '.join(SUFFIXES)}; {', '.join(PACKED)} of {', '.join(TEXT)}"
# What `datasets` and the hub put beside the rows.
NOT_ROWS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its location; `problem` says why it cannot be read.

    Example:
        Row(where="/data/gsm8k_test.jsonl, line 12", name="gsm8k_test:12", values={"question": …},
            shown="gsm8k_test.jsonl, line 12")
    """

    where: str
    name: str
    values: dict[str, Any]
    problem: str | None = None
    shown: str = ""


def list_files(path: Path) -> list[Path]:
    """The file, the files that a pattern such as shards/*.parquet matches, or the data files of a folder, by name.

    Raises:
        UserError: there is no such file or folder, or no file of a known format.
    """
    if path.is_file():
        if not kind_of(path):
            raise UserError(f"{path}: unknown format; known: {KNOWN}")
        return [path]
    if path.is_dir():
        inside, top, what = path.rglob("*"), path, "in this folder"
    elif glob.has_magic(str(path)):
        top = Path(path.anchor)
        inside, what = top.glob(str(path.relative_to(path.anchor))), "matches this pattern"
    else:
        raise UserError(f"{path}: no such file or folder{near_path(path)}")
    files = sorted(file for file in inside if file.is_file() and kind_of(file) and not _beside(file, top))
    if not files:
        raise UserError(f"{path}: no {', '.join(SUFFIXES)} file {what}")
    return files


def _beside(file: Path, top: Path) -> bool:
    """Whether the file is a note about the data, or stands in a hidden folder such as .cache below `top`."""
    return file.name in NOT_ROWS or any(part.startswith(".") for part in file.relative_to(top).parts)


def labels(files: Iterable[Path]) -> dict[Path, str]:
    """The label of each file in outputs without paths: its name, with folders if names repeat."""
    files = list(files)
    if len({file.name for file in files}) == len(files):
        return {file: file.name for file in files}
    top = os.path.commonpath([file.parent for file in files])
    return {file: file.relative_to(top).as_posix() for file in files}


def read_rows(file: Path, label: str | None = None, wanted: Wanted | None = None) -> Iterator[Row]:
    """Yield the rows of one file in order; a row that is not an object has its `problem` set.

    `label` names the file in outputs without paths; by default it is the file name. `wanted` is asked once per row,
    before the row is decoded; a row that it does not want is skipped.

    Raises:
        UserError: the file as a whole cannot be read.
    """
    kind = kind_of(file)
    label = label or file.name
    name = next((label.removesuffix(packed) for packed in PACKED if label.endswith(packed)), label).removesuffix(kind)
    place = "line" if kind in (".jsonl", ".ndjson", ".csv", ".tsv") else "row"
    for number, values in decode(file, wanted):
        row_name, at = f"{name}:{number}", f"{place} {number}"
        if isinstance(values, list):  # Open-Reasoner-Zero's turns: keys 0, 1, …
            values = {str(index): value for index, value in enumerate(values)}
        if isinstance(values, dict):
            yield Row(f"{file}, {at}", row_name, values, shown=f"{label}, {at}")
        else:
            yield Row(f"{file}, {at}", row_name, {}, str(values), shown=f"{label}, {at}")


@dataclass
class Draw:
    """A seeded choice of `limit` rows out of a stream of unknown length, in memory for `limit` rows.

    Each row gets a random number when `wanted` is called for it, and the rows with the `limit` smallest numbers stay.
    A row whose number is too large is not wanted, so that it is never decoded: of a million rows about 8,000 are
    decoded for a limit of 1,000.
    """

    limit: int
    random: random.Random
    rows: int = 0
    _pending: deque[tuple[float, int]] = field(default_factory=deque)  # of rows that were wanted and not yet added
    _kept: list[tuple[float, int, Any]] = field(default_factory=list)  # a heap, the largest number first

    def wants_more(self) -> bool:
        self.rows += 1
        number = self.random.random()
        if len(self._kept) == self.limit and number >= -self._kept[0][0]:
            return False
        self._pending.append((number, self.rows))
        return True

    def skip(self) -> None:
        """The next wanted row is none of those to choose from."""
        self._pending.popleft()

    def add(self, item: Any) -> None:
        """The next wanted row is `item`."""
        number, row = self._pending.popleft()
        if len(self._kept) < self.limit:
            heapq.heappush(self._kept, (-number, row, item))
        elif number < -self._kept[0][0]:
            heapq.heapreplace(self._kept, (-number, row, item))

    def chosen_rows(self) -> Iterator[Any]:
        """The rows that stay, in the order of the stream."""
        return (item for _, _, item in sorted(self._kept, key=lambda kept: kept[1]))
