"""Texts as rows of 64-bit shingle hashes, in two arrays and not in an object per row, and their MinHash digests.

A shingle is a run of `ngram` tokens (the whole text if it has fewer). Its hash is a polynomial of the hashes of its
tokens modulo 2^64, computed for thousands of rows at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
import numpy.typing as npt
import xxhash

from mathrl.curation.question_tokens import question_tokens, signature
from mathrl.params.data import NearDuplicates

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
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
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


@dataclass(frozen=True)
class Digests:
    """What the search for near-duplicates keeps of the rows.

    `bands` has the keys of the LSH bands, shape (rows, bands); `salt` differs for questions with other numbers or
    operators.
    """

    shingles: Rows
    bands: Hashes
    salt: Hashes


def digest(texts: Sequence[str], params: NearDuplicates) -> Digests:
    """Shingles and band keys of the texts; no token outlives its chunk."""
    bands, rows = band_shape(params.threshold, params.permutations)
    parts = [_digest_chunk(texts[i : i + CHUNK], params, bands, rows) for i in range(0, len(texts), CHUNK)]
    return Digests(
        Rows.join([part.shingles for part in parts]),
        np.concatenate([part.bands for part in parts]) if parts else np.empty((0, bands), np.uint64),
        np.concatenate([part.salt for part in parts]) if parts else np.empty(0, np.uint64),
    )


def _digest_chunk(texts: Sequence[str], params: NearDuplicates, bands: int, rows: int) -> Digests:
    tokens = [question_tokens(text) for text in texts]
    shingled = shingles(tokens, params.ngram)
    sketches = sign(shingled, params.permutations, bands * rows)
    marks = (" ".join(signature(text, row)) for text, row in zip(texts, tokens, strict=True))
    salt = np.fromiter((xxhash.xxh3_64_intdigest(m.encode("utf-8", "surrogatepass")) for m in marks), np.uint64)
    keys = np.stack([_band_keys(sketches[:, band * rows : (band + 1) * rows]) for band in range(bands)], axis=1)
    return Digests(shingled, keys, salt)


def sign(shingled: Rows, permutations: int, used: int | None = None) -> np.ndarray:
    """MinHash signatures, shape (rows, used), 32 bits each; the hash functions are fixed.

    `used`: the first so many of the permutations; all by default.
    """
    rng = np.random.Generator(np.random.PCG64(20260101))
    # Multiply-shift hashing modulo 2^64 (numpy wraps around): odd factors, the upper 32 bits kept.
    factors = rng.integers(0, 1 << 63, permutations, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    offsets = rng.integers(0, 1 << 63, permutations, dtype=np.uint64)
    signatures = np.full((len(shingled), used or permutations), np.iinfo(np.uint32).max, dtype=np.uint32)
    filled = np.flatnonzero(np.diff(shingled.starts))
    for p in range(signatures.shape[1] if len(filled) else 0):
        hashed = (shingled.flat * factors[p] + offsets[p]) >> np.uint64(32)
        signatures[filled, p] = np.minimum.reduceat(hashed, shingled.starts[filled]).astype(np.uint32)
    return signatures


@cache
def band_shape(threshold: float, permutations: int) -> tuple[int, int]:
    """Bands and rows with the least sum of false-positive and false-negative area (as datasketch)."""
    grid = (np.arange(1000) + 0.5) / 1000
    best, least = (1, 1), np.inf
    for bands in range(1, permutations + 1):
        for rows in range(1, permutations // bands + 1):
            hit = 1 - (1 - grid**rows) ** bands
            below = grid < threshold
            error = 0.5 * hit[below].sum() + 0.5 * (1 - hit[~below]).sum()
            if error < least:
                best, least = (bands, rows), error
    return best


def _band_keys(band: np.ndarray) -> Hashes:
    keys = np.zeros(len(band), dtype=np.uint64)
    for column in range(band.shape[1]):
        keys = _mix(keys, band[:, column].astype(np.uint64))
    return keys


def _mix(keys: Hashes, others: Hashes) -> Hashes:
    mixed = (keys ^ others) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))
