"""Texts as rows of 64-bit shingle hashes, in two arrays and not in an object per row.

A shingle is a run of `ngram` tokens (the whole text if it has fewer). Its hash is a polynomial of the hashes of its
tokens modulo 2^64, computed for thousands of rows at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import xxhash

Hashes = npt.NDArray[np.uint64]
CHUNK = 4096  # rows whose tokens are in memory at a time
_BASE = np.uint64(0x9E3779B97F4A7C15)


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
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        lengths = np.concatenate([np.diff(part.starts) for part in parts]) if parts else np.empty(0, np.int64)
        flat = np.concatenate([part.flat for part in parts]) if parts else np.empty(0, np.uint64)
        return cls(flat, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def shingles(tokens: Sequence[Sequence[str]], ngram: int) -> Rows:
    """The distinct shingles of each row, sorted."""
    hashed = hash_tokens(tokens, TokenHashes())
    lengths = np.diff(hashed.starts)
    hashes, hash_rows = [], []
    for size, value, row, _ in windows(hashed, ngram):
        wanted = np.ones(len(row), bool) if size == ngram else lengths[row] == size  # shorter ones: the whole row
        hashes.append(value[wanted])
        hash_rows.append(row[wanted])
    values, rows = np.concatenate(hashes), np.concatenate(hash_rows)
    order = np.lexsort((values, rows))
    values, rows = values[order], rows[order]
    first = np.ones(len(values), dtype=bool)
    first[1:] = (values[1:] != values[:-1]) | (rows[1:] != rows[:-1])
    counts = np.bincount(rows[first], minlength=len(tokens))
    return Rows(values[first], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


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
