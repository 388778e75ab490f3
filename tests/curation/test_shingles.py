"""Shingles in arrays: the same as sets of n-grams."""

import random

import numpy as np
import pytest

from mathrl.curation.shingles import Rows, shingles, sign


def by_hand(tokens: list[str], ngram: int) -> set[tuple[str, ...]]:
    size = min(ngram, len(tokens))
    return {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)} if tokens else set()


def similarity(rows: Rows, first: int, second: int) -> float:
    one, other = set(rows.row(first).tolist()), set(rows.row(second).tolist())
    return len(one & other) / max(1, len(one | other))


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
        assert similarity(rows, one, other) == pytest.approx(expected)
        assert list(rows.row(other)) == sorted(set(rows.row(other).tolist()))


def test_a_short_text_is_not_a_long_one() -> None:
    rows = shingles([["a"], ["a", "b"], ["a", "b", "c"], ["b", "c"]], 2)
    assert similarity(rows, 0, 1) == 0  # "a" as a whole text is no part of "a b"
    assert similarity(rows, 1, 2) == 0.5 and similarity(rows, 3, 2) == 0.5


def test_rows_are_joined_and_empty_ones_have_no_signature() -> None:
    joined = Rows.join([shingles([["a", "b"], []], 1), shingles([["b"]], 1)])
    assert [len(joined.row(i)) for i in range(3)] == [2, 0, 1] and joined.row(2)[0] in joined.row(0)
    signatures = sign(joined, 16)
    assert (signatures[1] == np.iinfo(np.uint32).max).all() and (signatures[0] <= signatures[2]).all()
    assert (sign(joined, 16, 5) == signatures[:, :5]).all()
