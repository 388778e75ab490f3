"""MinHash digests of questions in numpy: shingles, signatures and the keys of LSH bands.

The method and the choice of bands are those of datasketch's MinHashLSH (weights 0.5, 0.5), which keeps a Python
object per row and band; here a row costs 8 bytes per band and per shingle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import xxhash

from mathrl.data.question_tokens import question_tokens, signature
from mathrl.data.shingles import CHUNK, Hashes, Rows, shingles
from mathrl.params.data import NearDuplicates


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
        Rows.joined([part.shingles for part in parts]),
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
        keys = _mixed(keys, band[:, column].astype(np.uint64))
    return keys


def _mixed(keys: Hashes, others: Hashes) -> Hashes:
    mixed = (keys ^ others) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))
