"""Texts as rows of 64-bit token hashes, in two arrays and not in an object per row, and the runs that texts share.

A window is a run of tokens. Its hash is a polynomial of the hashes of its tokens modulo 2^64, computed for thousands of
rows at once. The windows of an evaluation text are its runs of `longest` tokens, or all tokens of a shorter text; those
of thousands of training texts are looked up at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt
import xxhash

Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
CHUNK = 4096  # rows whose tokens are in memory at a time
MATCHES = 1 << 18  # windows of training texts in evaluation texts that are in memory at a time
MOST_BITS = 24  # of a window's hash that index a table of 16 MiB
_BASE = np.uint64(0x9E3779B97F4A7C15)
_PLACE = np.int64(24)  # bits of a place in a text


@dataclass(frozen=True)
class Rows:
    """Rows of different lengths in one array.

    Example:
        Rows(flat=[3, 7, 5], starts=[0, 2, 2, 3])  # [3, 7], [] and [5]
    """

    flat: Hashes
    starts: npt.NDArray[np.int64]  # (rows + 1,)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, number: int) -> Hashes:
        return self.flat[self.starts[number] : self.starts[number + 1]]

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        lengths = np.concatenate([np.diff(part.starts) for part in parts]) if parts else np.empty(0, np.int64)
        flat = np.concatenate([part.flat for part in parts]) if parts else np.empty(0, np.uint64)
        return cls(flat, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


class TokenHashes(dict[str, int]):
    """The hashes of tokens, each computed when it is first asked for."""

    def __missing__(self, token: str) -> int:
        value = self[token] = xxhash.xxh3_64_intdigest(token.encode("utf-8", errors="surrogatepass"))
        return value


def hash_tokens(tokens: Sequence[Sequence[str]], cache: TokenHashes) -> Rows:
    """The hashes of each row's tokens, in order; `cache` has those of tokens that were met before."""
    starts = np.concatenate([[0], np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)))])
    hashes = map(cache.__getitem__, chain.from_iterable(tokens))  # without a Python frame per token
    return Rows(np.fromiter(hashes, np.uint64, int(starts[-1])), starts)


def windows(tokens: Rows, longest: int) -> Iterator[tuple[int, Hashes, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """For every size from 1 to `longest`: the hashes of the runs of so many tokens within a row, their rows and starts.

    `tokens` are the hashes of each row's tokens; a start is a place in tokens.flat.
    """
    hashed, lengths = tokens.flat, np.diff(tokens.starts)
    row = np.repeat(np.arange(len(lengths)), lengths)
    at = np.arange(len(hashed))
    left = np.cumsum(lengths)[row] - at if len(lengths) else at  # tokens from here to the row's end, this one included
    value = np.ones(len(hashed), np.uint64)
    for size in range(1, longest + 1):
        inside = left >= size
        at, left, row, value = at[inside], left[inside], row[inside], value[inside]
        value = value * _BASE + hashed[at + size - 1]
        yield size, value ^ (value >> np.uint64(29)), row, at


@dataclass(frozen=True)
class Postings:
    """The windows of one size: their hashes in ascending order, the evaluation text of each and its place there."""

    hashes: Hashes
    texts: Integers
    places: Integers

    def once_per_text(self) -> "Postings":
        """The first place alone of each window in each text."""
        new = np.append(True, (np.diff(self.texts) != 0) | (self.hashes[1:] != self.hashes[:-1]))
        return Postings(self.hashes[new], self.texts[new], self.places[new])

    @cached_property
    def _bits(self) -> int:
        """How many bits tell most windows from these: there are 16 to 32 times as many values of so many bits."""
        return min(len(self.hashes).bit_length() + 4, MOST_BITS)

    @cached_property
    def _with_first_bits(self) -> npt.NDArray[np.bool_]:
        """Whether one of these has so many first bits, by their value: shape (2^bits,)."""
        table = np.zeros(1 << self._bits, bool)
        table[self.hashes >> np.uint64(64 - self._bits)] = True
        return table

    def has(self, values: Hashes) -> npt.NDArray[np.bool_]:
        """Whether each window is one of these; the first bits spare most of them a search."""
        found: npt.NDArray[np.bool_] = self._with_first_bits[values >> np.uint64(64 - self._bits)]
        likely = values[found]
        place = np.minimum(np.searchsorted(self.hashes, likely), len(self.hashes) - 1)
        found[found] = self.hashes[place] == likely
        return found

    def matches(self, values: Hashes, rows: Integers, places: Integers) -> "_Matches":
        """The windows, each of which is one of these, with their postings."""
        low, high = np.searchsorted(self.hashes, values), np.searchsorted(self.hashes, values, side="right")
        return _Matches(self, rows, places, low, high - low)


@dataclass(frozen=True)
class _Matches:
    """Windows of training texts in ascending order of text, each with its range in postings of the same hash."""

    postings: Postings
    rows: Integers
    places: Integers
    low: Integers
    repeats: Integers

    def between(self, start: int, end: int) -> tuple[Integers, Integers, Integers]:
        """Of the training texts from `start` to `end`: each window's text, its place, and its posting."""
        at = slice(*np.searchsorted(self.rows, (start, end)))
        repeats = self.repeats[at]
        within = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        postings = np.repeat(self.low[at], repeats) + within
        return np.repeat(self.rows[at], repeats), np.repeat(self.places[at], repeats), postings


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
        self.once = {size: postings.once_per_text() for size, postings in self.postings.items()}

    def contains(self, texts: Rows) -> npt.NDArray[np.bool_]:
        """Whether each training text has an indexed window."""
        hit = np.zeros(len(texts), dtype=bool)
        for size, values, rows, _ in windows(texts, self.longest):
            if size in self.postings:
                hit[rows[self.postings[size].has(values)]] = True
        return hit

    def pairs(self, texts: Rows, skipped: Skipped | None = None) -> Iterator[Pairs]:
        """All pairs that count, some rows at a time.

        A window that repeats in both texts is met once per place, not once per pair of places.
        """
        in_rows: list[_Matches] = []
        in_texts: list[_Matches] = []
        for size, values, rows, at in windows(texts, self.longest):
            if size in self.postings:
                hit = self.postings[size].has(values)
                values, rows, places = values[hit], rows[hit], (at - texts.starts[rows])[hit]
                in_rows.append(self.once[size].matches(values, rows, places))
                order = np.lexsort((values, rows))
                new = (np.diff(rows[order]) != 0) | (values[order][1:] != values[order][:-1])
                once = order[np.append(True, new)[: len(order)]]
                in_texts.append(self.postings[size].matches(values[once], rows[once], places[once]))
        counts = np.zeros(len(texts))
        for found in (*in_rows, *in_texts):
            counts += np.bincount(found.rows, found.repeats, len(texts))
        total, start = np.concatenate([[0], np.cumsum(counts)]), 0
        while start < len(texts):
            end = max(start + 1, int(np.searchsorted(total, total[start] + MATCHES, side="right")) - 1)
            if total[end] > total[start]:
                pairs = self._measure_pairs(in_rows, in_texts, start, end, skipped)
                if len(pairs.rows):
                    yield pairs
            start = end

    def _measure_pairs(
        self, in_rows: list[_Matches], in_texts: list[_Matches], start: int, end: int, skipped: Skipped | None
    ) -> Pairs:
        """The pairs of the rows from `start` to `end`."""
        keys_of_rows: list[Integers] = []
        keys_of_texts: list[Integers] = []
        for found, keys, of_text in (
            *((found, keys_of_rows, False) for found in in_rows),
            *((found, keys_of_texts, True) for found in in_texts),
        ):
            row, place, posting = found.between(start, end)
            text = found.postings.texts[posting]
            pair = (row - start) * len(self.sizes) + text
            counted = ~skipped.masks[skipped.of_row[row], text] if skipped else np.ones(len(row), bool)
            keys.append((pair << _PLACE | (found.postings.places[posting] if of_text else place))[counted])
        pairs, of_row, places, starts = self._covered_tokens(np.concatenate(keys_of_rows))
        _, text_tokens, _, _ = self._covered_tokens(np.concatenate(keys_of_texts))
        rows, texts = np.divmod(pairs, len(self.sizes))
        return Pairs(rows + start, texts, of_row, text_tokens, places, starts)

    def _covered_tokens(self, keys: Integers) -> tuple[Integers, Integers, Integers, Integers]:
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
