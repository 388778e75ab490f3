"""Near-duplicates of a million questions: MinHash signatures in numpy, banded LSH, candidates verified.

The method and the choice of bands are those of datasketch's MinHashLSH (weights 0.5, 0.5), which keeps a Python
object per row and band; here a row costs 4 bytes per permutation. Candidates count only when the true Jaccard
similarity of their shingles reaches the threshold, so LSH adds no false positive.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import xxhash
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mathrl.core.types import Problem
from mathrl.data.question_tokens import question_tokens, signature
from mathrl.params.data import NearDuplicates

_CHUNK = 4096
# The most cluster heads that a row is compared with in a bucket: boilerplate would make it quadratic.
_HEADS = 64


def near_clusters(problems: Sequence[Problem], params: NearDuplicates) -> tuple[list[list[int]], list[list[int]]]:
    """Clusters of two or more indices: of near-duplicates, and of rows that are as similar but differ in a sign.

    The first are of the same numbers and operators in the same order (unless `same_numbers` is false: then every
    similar row is one of them). The second, the variants, hold rows of which at least two differ there.
    """
    tokens = [question_tokens(problem.question) for problem in problems]
    shingled = [shingles(row, params.ngram) for row in tokens]
    sketches = sign(shingled, params.permutations)
    unsalted = np.zeros(len(problems), dtype=np.uint64)
    if not params.same_numbers:
        return _clusters(shingled, sketches, unsalted, params), []
    texts = (" ".join(signature(problem.question, row)) for problem, row in zip(problems, tokens, strict=True))
    salt = np.fromiter((xxhash.xxh3_64_intdigest(t.encode()) for t in texts), np.uint64, len(problems))
    similar = _clusters(shingled, sketches, unsalted, params)
    return _clusters(shingled, sketches, salt, params), [g for g in similar if len({int(salt[i]) for i in g}) > 1]


def _clusters(
    shingled: Sequence[np.ndarray], sketches: np.ndarray, salt: np.ndarray, params: NearDuplicates
) -> list[list[int]]:
    """The connected rows whose similarity reaches the threshold, among rows of equal salt."""
    bands, rows = band_shape(params.threshold, params.permutations)
    edges: list[tuple[int, int]] = []
    for band in range(bands):
        keys = _band_keys(sketches[:, band * rows : (band + 1) * rows], salt)
        for bucket in _buckets(keys):
            heads: list[int] = []
            for index in bucket:
                matched = next((h for h in heads if jaccard(shingled[h], shingled[index]) >= params.threshold), None)
                if matched is None:
                    if len(heads) < _HEADS and len(shingled[index]):
                        heads.append(index)
                else:
                    edges.append((matched, index))
    groups: dict[int, list[int]] = {}
    graph = coo_array((np.ones(len(edges)), np.array(edges, int).reshape(-1, 2).T), shape=(len(shingled),) * 2)
    for index, label in enumerate(connected_components(graph, directed=False)[1]):
        groups.setdefault(label, []).append(index)
    return [group for group in groups.values() if len(group) > 1]


def shingles(tokens: Sequence[str], ngram: int) -> np.ndarray:
    """Sorted distinct 64-bit hashes of the n-grams (of the whole text if it has fewer tokens)."""
    if not tokens:
        return np.empty(0, dtype=np.uint64)
    size = min(ngram, len(tokens))
    windows = {" ".join(tokens[i : i + size]) for i in range(len(tokens) - size + 1)}
    return np.sort(np.fromiter((xxhash.xxh3_64_intdigest(w.encode()) for w in windows), np.uint64, len(windows)))


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """The number of shared shingles over the number of all shingles."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared) if len(first) + len(second) else 0.0


def sign(shingled: Sequence[np.ndarray], permutations: int) -> np.ndarray:
    """MinHash signatures, shape (rows, permutations), 32 bits each; the hash functions are fixed."""
    rng = np.random.Generator(np.random.PCG64(20260101))
    # Multiply-shift hashing modulo 2^64 (numpy wraps around): odd factors, the upper 32 bits kept.
    factors = rng.integers(0, 1 << 63, permutations, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    offsets = rng.integers(0, 1 << 63, permutations, dtype=np.uint64)
    signatures = np.full((len(shingled), permutations), np.iinfo(np.uint32).max, dtype=np.uint32)
    for start in range(0, len(shingled), _CHUNK):
        chunk = [(i, s) for i, s in enumerate(shingled[start : start + _CHUNK], start) if len(s)]
        if not chunk:
            continue
        flat = np.concatenate([s for _, s in chunk])
        starts = np.cumsum([0, *(len(s) for _, s in chunk[:-1])])
        rows = [i for i, _ in chunk]
        for p in range(permutations):
            hashed = (flat * factors[p] + offsets[p]) >> np.uint64(32)
            signatures[rows, p] = np.minimum.reduceat(hashed, starts).astype(np.uint32)
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


def _band_keys(band: np.ndarray, salt: np.ndarray) -> np.ndarray:
    keys = salt.copy()
    for column in range(band.shape[1]):
        keys = (keys ^ band[:, column].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _buckets(keys: np.ndarray) -> Iterator[list[int]]:
    """Groups of two or more row indices with equal keys, in their order."""
    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    for group in np.split(order, edges):
        if len(group) > 1:
            yield group.tolist()
