"""Shingles in arrays: the same as sets of n-grams, and the same clusters for any number of processes."""

import random

import numpy as np
import pytest

from mathrl.core.types import Problem
from mathrl.data import shingles as engine
from mathrl.data.minhash import near_clusters, sign
from mathrl.data.shingles import Rows, jaccard, shingles
from mathrl.params.data import NearDuplicates


def by_hand(tokens: list[str], ngram: int) -> set[tuple[str, ...]]:
    size = min(ngram, len(tokens))
    return {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)} if tokens else set()


@pytest.mark.parametrize("ngram", [1, 2, 5])
def test_shingles_are_the_distinct_n_grams_or_the_whole_text(ngram: int) -> None:
    rng = random.Random(ngram)
    texts = [rng.choices("abc", k=rng.randint(0, 9)) for _ in range(300)]
    rows = shingles(texts, ngram)
    assert len(rows) == 300
    for number in range(300):
        one, other = rng.randrange(300), number
        sets = by_hand(texts[one], ngram), by_hand(texts[other], ngram)
        expected = len(sets[0] & sets[1]) / len(sets[0] | sets[1]) if sets[0] | sets[1] else 0.0
        assert jaccard(rows.row(one), rows.row(other)) == pytest.approx(expected)
        assert list(rows.row(other)) == sorted(set(rows.row(other).tolist()))


def test_a_short_text_is_not_a_long_one() -> None:
    rows = shingles([["a"], ["a", "b"], ["a", "b", "c"], ["b", "c"]], 2)
    assert jaccard(rows.row(0), rows.row(1)) == 0  # "a" as a whole text is no part of "a b"
    assert jaccard(rows.row(1), rows.row(2)) == 0.5 and jaccard(rows.row(3), rows.row(2)) == 0.5


def test_rows_are_joined_and_empty_ones_have_no_signature() -> None:
    joined = Rows.joined([shingles([["a", "b"], []], 1), shingles([["b"]], 1)])
    assert [len(joined.row(i)) for i in range(3)] == [2, 0, 1] and joined.row(2)[0] in joined.row(0)
    signatures = sign(joined, 16)
    assert (signatures[1] == np.iinfo(np.uint32).max).all() and (signatures[0] <= signatures[2]).all()
    assert (sign(joined, 16, 5) == signatures[:, :5]).all()


def test_clusters_are_the_same_for_any_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    words = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(400)]
    texts = [rng.choices(words, k=30) for _ in range(120)]
    texts += [[*text[:29], "other"] for text in texts[:40]]
    problems = [Problem(str(i), " ".join(text), ("1",), "made", "rl") for i, text in enumerate(texts)]
    alone = near_clusters(problems, NearDuplicates(ngram=2))
    assert len(alone[0]) >= 36 and all(other == one + 120 for one, other in alone[0])  # of 40; LSH may miss one
    monkeypatch.setattr(engine, "CHUNK", 50)
    monkeypatch.setattr(engine, "FEWEST", 0)
    monkeypatch.setattr(engine, "cores", lambda: 2)
    assert near_clusters(problems, NearDuplicates(ngram=2)) == alone
