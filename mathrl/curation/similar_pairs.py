"""Pairs of similar rows of a store, by the shingles that few other rows have.

Memory does not grow with the rows but for the pairs: DuckDB sees some of the rare shingles at a time, and shingles are
read of the rows that are compared.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mathrl.curation.question_digests import sketches
from mathrl.curation.row_shards import Numbers
from mathrl.curation.row_store import RowStore
from mathrl.curation.token_windows import Rows

TOGETHER = 1 << 22  # rare shingles that DuckDB looks at together
PAIRS = 1 << 17  # of rows that are compared together
NEIGHBOURS = 8  # earlier rows with a rare shingle of its own that a row is compared with
COUNTER_BITS = 24  # of a shingle's hash: counters take 64 MiB
Mask = npt.NDArray[np.bool_]


def similar_pairs(store: RowStore, threshold: float) -> tuple[Numbers, Mask]:
    """Pairs of rows whose Jaccard similarity is at least `threshold`, shape (pairs, 2), and which have equal salts.

    Of the rows that no step has dropped. Two such rows share one of their rarest shingles (see `_rare_shingles`). A
    row is compared with the first row and with the one before it that have a rare shingle of its own, and with the
    first and NEIGHBOURS before it that have the same salt too. Boilerplate, which gives many rows one shingle, would
    make comparing all pairs quadratic. Most pairs need no comparison: two rows differ in at least as many shingles as
    their sketches in bits, and may differ in no more than (1 - threshold) / (1 + threshold) of both.
    """
    if not store.digesting.near or not store.shards:
        return np.empty((0, 2), np.int64), np.empty(0, bool)
    database = store.connect("similar")
    try:
        pairs, same = _likely_pairs(store, database, threshold)
        similar = np.zeros(len(pairs), bool)
        for start in range(0, len(pairs), PAIRS):
            part = pairs[start : start + PAIRS]
            a, b = (_shingles(store, numbers) for numbers in part.T)
            database.register("compared", pa.table({"pair": np.arange(len(part)), "a": a, "b": b}))
            found = database.execute(
                "WITH counted AS (SELECT pair, len(list_intersect(a, b)) AS shared, len(a) + len(b) AS total "
                "FROM compared) SELECT pair FROM counted WHERE shared >= $1 * (total - shared)",
                [threshold],
            ).fetchnumpy()
            database.unregister("compared")
            similar[start + found["pair"]] = True
        return pairs[similar], same[similar]
    finally:
        database.close()
        (store.folder / "similar.duckdb").unlink(missing_ok=True)


def _likely_pairs(store: RowStore, database: Any, threshold: float) -> tuple[Numbers, Mask]:
    """The pairs that are to be compared, in order, and which have equal salts."""
    database.execute("CREATE TABLE rare (number BIGINT, hash UBIGINT, salt UBIGINT, size BIGINT, sketch UBIGINT)")
    for batch in _rare_shingles(store, threshold):
        database.register("batch", batch)
        database.execute("INSERT INTO rare FROM batch")
        database.unregister("batch")
    ((rows,),) = database.execute("SELECT count(*) FROM rare").fetchall()
    before = ", ".join(f"lag(row, {place}) OVER same" for place in range(1, NEIGHBOURS + 1))
    pairs, same = [np.empty(0, np.int64)], [np.empty(0, bool)]
    parts = -(-rows // TOGETHER)
    for part in range(parts):
        found = database.execute(
            "WITH part AS (SELECT *, {number: number, salt: salt, size: size, sketch: sketch} AS row FROM rare "
            "WHERE hash % $2 = $3), "
            "near AS (SELECT number, salt, size, sketch, unnest([first_value(row) OVER alike, lag(row) OVER alike, "
            f"first_value(row) OVER same, {before}]) AS earlier FROM part "
            "WINDOW alike AS (PARTITION BY hash ORDER BY number), "
            "same AS (PARTITION BY hash, salt ORDER BY number)) "
            "SELECT DISTINCT earlier.number << 32 | number AS pair, earlier.salt = salt AS same FROM near "
            "WHERE earlier.number < number AND least(earlier.size, size) >= $1 * greatest(earlier.size, size) "
            "AND bit_count(xor(earlier.sketch, sketch)) * (1 + $1) <= (1 - $1) * (earlier.size + size) + 1e-6",
            [threshold, parts, part],
        ).fetchnumpy()
        pairs.append(np.asarray(found["pair"], np.int64))
        same.append(np.asarray(found["same"], bool))
    distinct, first = np.unique(np.concatenate(pairs), return_index=True)
    return np.stack([distinct >> 32, distinct & (1 << 32) - 1], axis=1), np.concatenate(same)[first]


def _rare_shingles(store: RowStore, threshold: float) -> Iterator[Any]:
    """Per shard the hashes of its rows' rarest shingles, without those of no other row, each with what a row has.

    Of a row with n shingles, the n - ceil(threshold n) + 1 rarest: two rows as similar as the threshold share one of
    these, in whatever order all rows rank the shingles (prefix filter; Chaudhuri et al. 2006, A Primitive Operator for
    Similarity Joins in Data Cleaning). A counter may count several shingles: the order changes alone.
    """
    counters = np.zeros(1 << COUNTER_BITS, np.uint32)
    for shard in store.shards:
        places = np.sort(_counter(shard.rows("shingles", np.arange(len(shard)))))
        shard.release()
        first = np.flatnonzero(np.diff(places, prepend=-1))
        counters[places[first]] += np.diff(first, append=len(places)).astype(np.uint32)
    for shard, start in zip(store.shards, store.starts.tolist(), strict=False):
        shingles, salts = shard.rows("shingles", np.arange(len(shard))), shard.column("salt")
        sizes = np.diff(shingles.starts)
        row = np.repeat(np.arange(len(shard)), sizes)
        counts = counters[_counter(shingles)]
        order = np.argsort(row << 32 | counts, kind="stable")  # by row, count and hash: a row's hashes ascend
        rank = np.arange(len(row)) - shingles.starts[row]
        enough = sizes - np.ceil(threshold * sizes - 1e-9) + 1
        chosen = (rank < enough[row]) & (counts[order] > 1) & store.stays[start : start + len(shard)][row]
        rows, hashes = row[chosen], shingles.flat[order][chosen]
        of_rows = {"salt": salts[rows], "size": sizes[rows], "sketch": sketches(shingles)[rows]}
        yield pa.table({"number": start + rows, "hash": hashes, **of_rows})
        shard.release()


def _counter(shingles: Rows) -> Numbers:
    """The number of each shingle's counter."""
    return (shingles.flat >> np.uint64(64 - COUNTER_BITS)).astype(np.int64)


def _shingles(store: RowStore, numbers: Numbers) -> Any:
    """The shingles of rows in any order, as an Arrow list of numbers per row."""
    ascending, place = np.unique(numbers, return_inverse=True)
    parts = []
    for shard, at in store.by_shard(ascending):
        parts.append(store.shards[shard].table.column("shingles").chunk(0).take(pa.array(at)))
        store.shards[shard].release()
    return pa.concat_arrays(parts).take(pa.array(place))
