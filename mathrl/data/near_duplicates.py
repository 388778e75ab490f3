"""Near-duplicates of millions of questions, from the digests of minhash.py: buckets of LSH, candidates verified.

DuckDB finds the rows that share the key of a band. They count only when the true Jaccard similarity of their shingles
reaches the threshold, so LSH adds no false positive. Only the shingles of a batch of candidates are in memory. The
pairs of each band are written beside the shards, so that a killed run does not compare them again.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from mathrl.data.clusters import Clusters, Numbers
from mathrl.data.row_store import RowStore
from mathrl.data.shingles import Rows
from mathrl.params.data import NearDuplicates

# The most cluster heads that a row is compared with in a bucket: boilerplate would make it quadratic.
_HEADS = 64
BATCH = 100_000  # rows whose shingles are in memory at a time
PAIRS = 4096  # compared at a time
EDGES = 1 << 20  # pairs that are joined at a time


def near_clusters(store: RowStore, params: NearDuplicates) -> tuple[Clusters, Clusters]:
    """Clusters of two or more row numbers: of near-duplicates, and of rows that are as similar but differ in a sign.

    The first are of the same numbers and operators in the same order (unless `same_numbers` is false: then every
    similar row is one of them). The second, the variants, hold rows of which at least two differ there.
    """
    similar = _clusters(store, salted=False, threshold=params.threshold)
    if not params.same_numbers:
        return similar, similar.where(np.zeros(len(similar), bool))
    same = _clusters(store, salted=True, threshold=params.threshold)
    if not len(similar):
        return same, similar
    salts = store.column("salt")[similar.numbers]
    several = np.minimum.reduceat(salts, similar.starts) < np.maximum.reduceat(salts, similar.starts)
    return same, similar.where(several)


def _clusters(store: RowStore, *, salted: bool, threshold: float) -> Clusters:
    """The connected rows whose similarity reaches the threshold, among rows of equal salt or among all."""
    labels = np.arange(len(store), dtype=np.int32)
    for band in store.bands:
        labels = _joined(labels, _pairs_of_band(store, band, salted=salted, threshold=threshold))
    linked = np.flatnonzero(np.bincount(labels)[labels] > 1)
    linked = linked[np.argsort(labels[linked], kind="stable")]
    return Clusters.of(linked, labels[linked].astype(np.int64))


def _joined(labels: npt.NDArray[np.int32], pairs: Numbers) -> npt.NDArray[np.int32]:
    """Labels of all rows after rows are joined by `pairs`, shape (pairs, 2): the smallest number in a row's cluster."""
    for start in range(0, len(pairs), EDGES):
        ends = labels[pairs[start : start + EDGES]]
        linked, at = np.unique(ends[ends[:, 0] != ends[:, 1]], return_inverse=True)
        if not len(linked):
            continue
        links = at.reshape(-1, 2).T
        graph = coo_array((np.ones(links.shape[1], np.int32), links), shape=(len(linked),) * 2)
        components = connected_components(graph, directed=False)[1]
        smallest = linked[np.unique(components, return_index=True)[1]]
        label_of = np.arange(len(labels), dtype=np.int32)
        label_of[linked] = smallest[components]
        labels = label_of[labels]
    return labels


def _pairs_of_band(store: RowStore, band: str, *, salted: bool, threshold: float) -> Numbers:
    file = store.folder / f"{'same' if salted else 'similar'}-{band}.npy"
    if file.exists():
        pairs: Numbers = np.load(file)
        return pairs
    numbers, groups = store.alike(band, *(("salt",) if salted else ()))
    pieces = [_similar_pairs(store, numbers[at], groups[at], threshold) for at in _batches(groups)]
    pairs = np.concatenate([np.empty((0, 2), np.int64), *pieces])
    partial = file.with_suffix(".partial")
    with partial.open("wb") as stream:
        np.save(stream, pairs)
    partial.replace(file)
    return pairs


def _similar_pairs(store: RowStore, numbers: Numbers, groups: Numbers, threshold: float) -> Numbers:
    """Every row with the first head of its group that it is similar to, shape (pairs, 2); one without becomes a head.

    All groups take their next head at once, and their other rows are compared with it in arrays.
    """
    listed, at = np.unique(numbers, return_inverse=True)
    matrix = as_matrix(store.hashes("shingles", listed))
    sizes = np.diff(matrix.indptr)
    pairs = [np.empty((0, 2), np.int64)]
    left = np.arange(len(numbers))
    for _ in range(_HEADS):
        may_lead = left[sizes[at[left]] > 0]
        first = may_lead[np.flatnonzero(np.diff(groups[may_lead], prepend=-1))]  # the next head of each group
        if not len(first):
            break
        head = first[np.minimum(np.searchsorted(groups[first], groups[left]), len(first) - 1)]
        compared = (groups[head] == groups[left]) & (head < left)
        head, left = head[compared], left[compared]
        near = jaccard(matrix, at[head], at[left]) >= threshold
        pairs.append(np.stack([numbers[head[near]], numbers[left[near]]], axis=1))
        left = left[~near]
    return np.concatenate(pairs)


def as_matrix(shingled: Rows) -> csr_array:
    """The shingles of each row as the columns of a sparse matrix in which it has ones."""
    # One bit less: columns are numbered without a sign.
    columns, shape = (shingled.flat >> np.uint64(1)).astype(np.int64), (len(shingled), np.iinfo(np.int64).max)
    return csr_array((np.ones(len(columns), np.int8), columns, shingled.starts), shape=shape)


def jaccard(matrix: csr_array, first: Numbers, second: Numbers) -> npt.NDArray[np.float64]:
    """Shared shingles over all shingles, of each of the rows `first` with its partner in `second`."""
    sizes, shared = np.diff(matrix.indptr), np.zeros(len(first))
    for start in range(0, len(first), PAIRS):
        part = slice(start, start + PAIRS)
        common = matrix[first[part]].multiply(matrix[second[part]])
        shared[part] = np.diff(common.indptr)
    return np.asarray(shared / np.maximum(1, sizes[first] + sizes[second] - shared), np.float64)


def _batches(groups: Numbers) -> Iterator[slice]:
    """Whole groups, of about BATCH rows together."""
    start = 0
    while start < len(groups):
        end = int(np.searchsorted(groups, groups[min(start + BATCH, len(groups)) - 1], side="right"))
        yield slice(start, end)
        start = end
