"""Runs of tokens that training texts share with evaluation texts, found and measured in arrays.

A window is a run of `longest` tokens of an evaluation text, or all tokens of a shorter one, known by its 64-bit hash
(shingles.py). The windows of thousands of training texts are looked up at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mathrl.data.shingles import Hashes, Rows, windows

MATCHES = 1 << 18  # windows of training texts in evaluation texts that are in memory at a time
_PLACE = np.int64(24)  # bits of a place in a text
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Postings:
    """The windows of one size: their hashes in ascending order, the evaluation text of each and its place there."""

    hashes: Hashes
    texts: Integers
    places: Integers


@dataclass(frozen=True)
class Pairs:
    """Training texts and evaluation texts that share windows, by training text, then evaluation text.

    `of_row` and `of_text` count the tokens of either text that lie in shared windows. `places` are those of the shared
    windows in the training text; a pair's are places[starts[pair] : starts[pair + 1]].
    """

    rows: Integers
    texts: Integers
    of_row: Integers
    of_text: Integers
    places: Integers
    starts: Integers


@dataclass(frozen=True)
class Skipped:
    """Which evaluation texts do not count: masks, shape (masks, evaluation texts), and each training text's mask."""

    masks: npt.NDArray[np.bool_]
    of_row: Integers


class WindowIndex:
    """The windows of evaluation texts, given as the hashes of their tokens."""

    def __init__(self, texts: Rows, longest: int) -> None:
        self.longest, self.lengths = longest, np.diff(texts.starts)
        self.sizes = np.minimum(self.lengths, longest)
        self.postings: dict[int, Postings] = {}
        for size, values, rows, at in windows(texts, longest):
            wanted = self.sizes[rows] == size
            if wanted.any():
                values, rows, at = values[wanted], rows[wanted], at[wanted]
                order = np.lexsort((at, rows, values))
                self.postings[size] = Postings(values[order], rows[order], (at - texts.starts[rows])[order])

    def contains(self, texts: Rows) -> npt.NDArray[np.bool_]:
        """Whether each training text has an indexed window."""
        hit = np.zeros(len(texts), dtype=bool)
        for size, values, rows, _ in windows(texts, self.longest):
            if size in self.postings:
                indexed = self.postings[size].hashes
                place = np.minimum(np.searchsorted(indexed, values), len(indexed) - 1)
                hit[rows[indexed[place] == values]] = True
        return hit

    def pairs(self, texts: Rows, skipped: Skipped | None = None) -> Iterator[Pairs]:
        """All pairs that count, some rows at a time."""
        matches = []
        for size, values, rows, at in windows(texts, self.longest):
            if size in self.postings:
                hashes = self.postings[size].hashes
                low, high = np.searchsorted(hashes, values), np.searchsorted(hashes, values, side="right")
                hit = high > low
                matches.append((size, rows[hit], (at - texts.starts[rows])[hit], low[hit], (high - low)[hit]))
        counts = np.zeros(len(texts))
        for _, rows, _, _, number in matches:
            counts += np.bincount(rows, number, len(texts))
        total, start = np.concatenate([[0], np.cumsum(counts)]), 0
        while start < len(texts):
            end = max(start + 1, int(np.searchsorted(total, total[start] + MATCHES, side="right")) - 1)
            if total[end] > total[start] and len((pairs := self._measured(matches, start, end, skipped)).rows):
                yield pairs
            start = end

    def _measured(
        self,
        matches: list[tuple[int, Integers, Integers, Integers, Integers]],
        start: int,
        end: int,
        skipped: Skipped | None,
    ) -> Pairs:
        """The pairs of the rows from `start` to `end`."""
        in_row, in_text = [], []
        for size, rows, places, low, number in matches:
            at = slice(*np.searchsorted(rows, (start, end)))
            posting, repeats = self.postings[size], number[at]
            within = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
            places_found = np.repeat(low[at], repeats) + within
            row, text = np.repeat(rows[at], repeats), posting.texts[places_found]
            pair = (row - start) * len(self.sizes) + text
            keys = pair << _PLACE | np.repeat(places[at], repeats), pair << _PLACE | posting.places[places_found]
            counted = ~skipped.masks[skipped.of_row[row], text] if skipped else np.ones(len(row), bool)
            in_row.append(keys[0][counted])
            in_text.append(keys[1][counted])
        pairs, of_row, places, starts = self._covered(np.concatenate(in_row))
        _, of_text, _, _ = self._covered(np.concatenate(in_text))
        rows, texts = np.divmod(pairs, len(self.sizes))
        return Pairs(rows + start, texts, of_row, of_text, places, starts)

    def _covered(self, keys: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """Of keys of pair and place: the pairs, the tokens that their windows cover, the places, each pair's first."""
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) > 0]
        pairs, places = keys >> _PLACE, keys & ((1 << _PLACE) - 1)
        first = np.flatnonzero(np.diff(pairs, prepend=-1))
        reach = self.sizes[pairs % len(self.sizes)]
        same = pairs[1:] == pairs[:-1]
        reach[:-1][same] = np.minimum(reach[:-1], np.diff(places))[same]
        covered = np.add.reduceat(reach, first) if len(first) else np.empty(0, np.int64)
        return pairs[first], covered, places, np.append(first, len(keys))
