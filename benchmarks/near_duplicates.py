"""Near-duplicates by mathrl, datasketch and datatrove: `python benchmarks/near_duplicates.py FILE ...`.

Each side reads the questions of the files (rows with `question`; those equal after normalisation count once), makes
5-grams of mathrl's tokens, and looks for pairs of a Jaccard similarity of 0.8 with the same numbers and operators:

- mathrl: `near_clusters`, which finds those with other numbers too;
- datasketch: MinHashLSH in memory, candidates compared exactly;
- datatrove: its signature, bucket and cluster steps (with as many buckets and hashes as datasketch's bands), whose
  candidates it does not compare; then compared exactly within each cluster.

Every side runs in a process of its own, in turns; processor seconds and the peak of memory are that process's. The true
pairs are those that an exact comparison of all questions with equal numbers and operators finds. Clusters are the
connected rows. `--show` prints questions that one side misses.
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mathrl.core.files import read_jsonl
from mathrl.core.types import Problem
from mathrl.curation.deduplicate import near_clusters
from mathrl.curation.question_digests import question_tokens, signature
from mathrl.curation.row_shards import Digesting
from mathrl.curation.row_store import RowStore
from mathrl.data.grams import exact_key
from mathrl.params.data import NearDuplicates

NEAR = NearDuplicates()
PERMUTATIONS = 128  # of the libraries' MinHash
Clusters = list[list[int]]


def by_mathrl(questions: list[str]) -> Clusters:
    rows = [Problem(str(i), question, ("",), "made", "rl") for i, question in enumerate(questions)]
    return [list(cluster) for cluster in near_clusters(RowStore.of(rows, Digesting(NEAR)), NEAR)[0]]


def by_datasketch(questions: list[str]) -> Clusters:
    from datasketch import MinHash, MinHashLSH

    def as_is(value: int) -> int:
        return value & 0xFFFFFFFF

    pairs, sets, marks = list[tuple[int, int]](), list[set[int]](), [_mark(question) for question in questions]
    index = MinHashLSH(threshold=NEAR.threshold, num_perm=PERMUTATIONS)
    first = MinHash(num_perm=PERMUTATIONS, hashfunc=as_is)
    for number, shingled in enumerate(_shingled(questions)):
        sets.append(set(shingled))
        if not shingled:
            continue
        hashed = MinHash(PERMUTATIONS, hashfunc=as_is, permutations=first.permutations, scheme=first.scheme)
        hashed.update_batch(shingled)
        same = (other for other in index.query(hashed) if marks[other] == marks[number])
        pairs += [(other, number) for other in same if _similar(sets[other], sets[number])]
        index.insert(number, hashed)
    return _clusters(pairs, len(questions))


def by_datatrove(questions: list[str]) -> Clusters:
    from datasketch.lsh import _optimal_param
    from datatrove.data import Document
    from datatrove.pipeline.dedup.minhash import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupSignature,
    )
    from datatrove.utils.hashing import HashConfig
    from datatrove.utils.text import TextNormConfig
    from datatrove.utils.word_tokenizers import WordTokenizer
    from loguru import logger

    class Tokens(WordTokenizer):  # type: ignore[misc]
        def word_tokenize(self, text: str) -> list[str]:
            return question_tokens(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return [text]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [(0, len(text))]

    logger.remove()
    bands, rows = _optimal_param(NEAR.threshold, PERMUTATIONS, 0.5, 0.5)
    as_they_are = TextNormConfig(False, False, False, False, False)
    config = MinhashConfig(NEAR.ngram, bands, rows, norm_config=as_they_are, hash_config=HashConfig(hash_fc="sha1"))
    with tempfile.TemporaryDirectory() as folder:
        documents = (Document(text=question, id=str(i)) for i, question in enumerate(questions))
        MinhashDedupSignature(f"{folder}/signatures", config, language=Tokens()).run(documents)
        for rank in range(bands):
            MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/pairs", config=config).run(None, rank, bands)
        MinhashDedupCluster(f"{folder}/pairs", f"{folder}/clusters", config, save_cluster_id=True).run(None, 0, 1)
        file = Path(folder) / "clusters" / "000000.clusters"
        numbers = np.fromfile(file, np.uint32).reshape(-1, 2) if file.exists() else np.empty((0, 2), np.uint32)
    marked = defaultdict[tuple[int, tuple[str, ...]], list[int]](list)
    for number, cluster in numbers.tolist():
        marked[cluster, _mark(questions[number])].append(number)
    groups = [group for group in marked.values() if len(group) > 1]
    listed = sorted(number for group in groups for number in group)
    sets = dict(zip(listed, map(set, _shingled([questions[number] for number in listed])), strict=True))
    pairs = [(a, b) for group in groups for a, b in combinations(group, 2) if _similar(sets[a], sets[b])]
    return _clusters(pairs, len(questions))


def _shingled(questions: list[str]) -> Iterable[list[int]]:
    """The 5-grams of each question as hashes, as `digest` has them, by sets of Python."""
    from mathrl.curation.question_digests import shingles

    for start in range(0, len(questions), 4096):
        rows = shingles([question_tokens(question) for question in questions[start : start + 4096]], NEAR.ngram)
        yield from (rows.row(number).tolist() for number in range(len(rows)))


def _mark(question: str) -> tuple[str, ...]:
    return signature(question, question_tokens(question))


def _similar(first: set[int], second: set[int]) -> bool:
    shared = len(first & second)
    return shared >= NEAR.threshold * (len(first) + len(second) - shared)


def true_clusters(questions: list[str]) -> Clusters:
    """By comparing every question with all that have its numbers and operators."""
    groups = defaultdict[tuple[str, ...], list[int]](list)
    for number, question in enumerate(questions):
        groups[_mark(question)].append(number)
    pairs = list[tuple[int, int]]()
    for group in groups.values():
        sets = [set(shingled) for shingled in _shingled([questions[number] for number in group])]
        for a, b in combinations(range(len(group)), 2):
            if min(len(sets[a]), len(sets[b])) >= NEAR.threshold * max(len(sets[a]), len(sets[b]), 1) and _similar(
                sets[a], sets[b]
            ):
                pairs.append((group[a], group[b]))
    return _clusters(pairs, len(questions))


def _clusters(pairs: Iterable[tuple[int, int]], count: int) -> Clusters:
    ends = np.array(list(pairs), np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends), bool), ends.T), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    members = defaultdict[int, list[int]](list)
    for number in np.flatnonzero(np.bincount(labels)[labels] > 1).tolist():
        members[labels[number]].append(number)
    return sorted(members.values())


SIDES: dict[str, Callable[[list[str]], Clusters]] = {
    "mathrl": by_mathrl,
    "datasketch": by_datasketch,
    "datatrove": by_datatrove,
}


def _measured(side: str, questions: list[str], answer: Any) -> None:
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clusters = SIDES[side](questions)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.send((clusters, time.process_time() - began, (peak - before) / 1024))


def measured(side: str, questions: list[str]) -> tuple[Clusters, float, float]:
    """The clusters of a side, its processor seconds, and the MiB by which its process's peak of memory grew."""
    context = multiprocessing.get_context("spawn")
    answer, send = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(side, questions, send))
    process.start()
    send.close()
    result: tuple[Clusters, float, float] = answer.recv()
    process.join()
    return result


def links(clusters: Clusters) -> set[tuple[int, int]]:
    return {pair for cluster in clusters for pair in combinations(cluster, 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument(
        "--no-truth", action="store_true", help="Do not compare all questions (slow for generated ones)."
    )
    arguments = parser.parse_args()
    unique = {exact_key(row["question"]): row["question"] for file in arguments.files for row in read_jsonl(file)}
    questions = list(unique.values())
    print(f"{len(questions)} different questions")
    results = defaultdict[str, list[tuple[Clusters, float, float]]](list)
    for _ in range(arguments.turns):
        for side in arguments.sides:
            results[side].append(measured(side, questions))
    true = links(true_clusters(questions)) if not arguments.no_truth else links(results["mathrl"][0][0])
    for side, turns in results.items():
        clusters = turns[0][0]
        pairs = links(clusters)
        seconds = sorted(seconds for _, seconds, _ in turns)
        print(json.dumps({
            "side": side, "seconds": [round(s, 1) for s in seconds], "MiB": round(max(m for *_, m in turns)),
            "clusters": len(clusters), "rows": sum(map(len, clusters)), "pairs": len(pairs),
            "missed": len(true - pairs), "wrong": len(pairs - true), "of": len(true),
        }))  # fmt: skip
        for name, some in (("missed", true - pairs), ("wrong", pairs - true)):
            for a, b in sorted(some)[: arguments.show]:
                print(f"  {name}: {questions[a]!r}\n          {questions[b]!r}")


if __name__ == "__main__":
    main()
