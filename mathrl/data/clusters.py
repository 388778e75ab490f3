"""Clusters of row numbers in two arrays: millions of them need no Python object each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Clusters(Sequence[list[int]]):
    """Lists of row numbers, each made when it is looked at.

    Example:
        Clusters(numbers=[3, 17, 5, 6, 9], starts=[0, 2])  # [3, 17] and [5, 6, 9]
    """

    numbers: Numbers
    starts: Numbers

    @classmethod
    def of(cls, numbers: Numbers, groups: Numbers) -> "Clusters":
        """The numbers whose groups are equal; those of one group are neighbours."""
        return cls(numbers, np.flatnonzero(np.diff(groups, prepend=-1)))

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        end = self.starts[at + 1] if at + 1 < len(self) else len(self.numbers)
        cluster: list[int] = self.numbers[self.starts[at] : end].tolist()
        return cluster

    def where(self, chosen: npt.NDArray[np.bool_]) -> "Clusters":
        """The chosen clusters, by a mask."""
        sizes = np.diff(self.starts, append=len(self.numbers))
        return Clusters(self.numbers[np.repeat(chosen, sizes)], np.cumsum(np.concatenate([[0], sizes[chosen]]))[:-1])
