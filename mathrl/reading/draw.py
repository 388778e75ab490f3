"""A seeded choice of rows out of a stream, which decodes few of the others and holds none of them."""

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


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

    def wanted(self) -> bool:
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

    def chosen(self) -> Iterator[Any]:
        """The rows that stay, in the order of the stream."""
        return (item for _, _, item in sorted(self._kept, key=lambda kept: kept[1]))
