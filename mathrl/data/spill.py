"""A list on disk: rows that are only counted and shown need no memory."""

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

Item = TypeVar("Item")


class Spill(Sequence[Item], Generic[Item]):
    """Items in a file of JSON lines, written with `write`, each made again with `read` when it is looked at."""

    def __init__(
        self, file: Path, write: Callable[[Item], dict[str, Any]], read: Callable[[dict[str, Any]], Item]
    ) -> None:
        self._write, self._read = write, read
        self._ends = array("q")
        self._file = file.open("w+b")
        self._at_end = True  # of the file: a seek would flush what is not yet written

    def append(self, item: Item) -> None:
        line = json.dumps(self._write(item)).encode() + b"\n"
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
        return self._read(json.loads(self._file.readline()))

    def __iter__(self) -> Iterator[Item]:
        return (self[index] for index in range(len(self)))
