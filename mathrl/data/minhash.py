"""Near-duplicates of millions of questions: MinHash signatures in numpy, banded LSH, candidates verified.

The method and the choice of bands are those of datasketch's MinHashLSH (weights 0.5, 0.5), which keeps a Python
object per row and band; here a row costs 8 bytes per band and per shingle. Candidates count only when the true Jaccard
similarity of their shingles reaches the threshold, so LSH adds no false positive. Tokens, shingles and signatures are
computed once per row, in as many processes as there are cores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import xxhash
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mathrl.core.types import Problem
from mathrl.data.question_tokens import question_tokens, signature
from mathrl.data.shingles import Hashes, Rows, in_chunks, jaccard, shingles
from mathrl.params.data import NearDuplicates

# The most cluster heads that a row is compared with in a bucket: boilerplate would make it quadratic.
_HEADS = 64


@dataclass(frozen=True)
class Digests:
    """What the search for near-duplicates keeps of the rows.

    `bands` has the keys of the LSH bands, shape (rows, bands); `salt` differs for questions with other numbers or
    operators.
    """

    shingles: Rows
    bands: Hashes
    salt: Hashes


def near_clusters(problems: Sequence[Problem], params: NearDuplicates) -> tuple[list[list[int]], list[list[int]]]:
    """Clusters of two or more indices: of near-duplicates, and of rows that are as similar but differ in a sign.

    The first are of the same numbers and operators in the same order (unless `same_numbers` is false: then every
    similar row is one of them). The second, the variants, hold rows of which at least two differ there.
    """
    digests = digest([problem.question for problem in problems], params)
    matched: set[tuple[int, int]] = set()
    similar = _clusters(digests, salted=False, threshold=params.threshold, matched=matched)
    if not params.same_numbers:
        return similar, []
    same = _clusters(digests, salted=True, threshold=params.threshold, matched=matched)
    return same, [group for group in similar if len({int(digests.salt[i]) for i in group}) > 1]


def digest(texts: Sequence[str], params: NearDuplicates) -> Digests:
    """Tokens, shingles and band keys of the texts; no token outlives its chunk."""
    bands, rows = band_shape(params.threshold, params.permutations)
    work = partial(_digest_chunk, ngram=params.ngram, permutations=params.permutations, bands=bands, rows=rows)
    parts = list(in_chunks(texts, work))
    return Digests(
        Rows.joined([part.shingles for part in parts]),
        np.concatenate([part.bands for part in parts]) if parts else np.empty((0, bands), np.uint64),
        np.concatenate([part.salt for part in parts]) if parts else np.empty(0, np.uint64),
    )


def _digest_chunk(texts: Sequence[str], ngram: int, permutations: int, bands: int, rows: int) -> Digests:
    tokens = [question_tokens(text) for text in texts]
    shingled = shingles(tokens, ngram)
    sketches = sign(shingled, permutations, bands * rows)
    marks = (" ".join(signature(text, row)) for text, row in zip(texts, tokens, strict=True))
    salt = np.fromiter((xxhash.xxh3_64_intdigest(m.encode("utf-8", "surrogatepass")) for m in marks), np.uint64)
    keys = np.stack([_band_keys(sketches[:, band * rows : (band + 1) * rows]) for band in range(bands)], axis=1)
    return Digests(shingled, keys, salt)


def _clusters(digests: Digests, *, salted: bool, threshold: float, matched: set[tuple[int, int]]) -> list[list[int]]:
    """The connected rows whose similarity reaches the threshold, among rows of equal salt or among all.

    `matched` has the pairs known to be similar, and gets those found.
    """
    edges: list[tuple[int, int]] = []
    count, row = len(digests.shingles), digests.shingles.row
    lengths = np.diff(digests.shingles.starts)
    for band in range(digests.bands.shape[1]):
        keys = _mixed(digests.bands[:, band], digests.salt) if salted else digests.bands[:, band]
        for bucket in _buckets(keys):
            heads: list[int] = []
            for index in bucket:
                for head in heads:
                    if (head, index) in matched or jaccard(row(head), row(index)) >= threshold:
                        matched.add((head, index))
                        edges.append((head, index))
                        break
                else:
                    if len(heads) < _HEADS and lengths[index]:
                        heads.append(index)
    groups: dict[int, list[int]] = {}
    graph = coo_array((np.ones(len(edges)), np.array(edges, int).reshape(-1, 2).T), shape=(count,) * 2)
    labels = connected_components(graph, directed=False)[1]
    sizes = np.bincount(labels, minlength=1)
    for index in np.flatnonzero(sizes[labels] > 1).tolist() if count else []:
        groups.setdefault(int(labels[index]), []).append(index)
    return list(groups.values())


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


def _buckets(keys: Hashes) -> Iterator[list[int]]:
    """Groups of two or more row indices with equal keys, in their order."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(keys) else np.empty(0, int)
    ends = np.append(starts[1:], len(keys))
    several = ends - starts > 1
    for start, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
        yield order[start:end].tolist()
