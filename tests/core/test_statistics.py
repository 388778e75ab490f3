"""Sums in outputs are the same bits in every version of Python; n-grams are counted as by a set of tuples."""

import random
import statistics
import sys
from functools import reduce
from operator import add

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mathrl.core import ngrams
from mathrl.core.ngrams import distinct_ngrams
from mathrl.core.statistics import sum_in_order
from mathrl.trainers.rollouts import correlation


def test_a_sum_rounds_after_each_value() -> None:
    assert sum_in_order([0.1] * 10) == 0.9999999999999999 != 1.0, "which is the built-in's from Python 3.12 on"
    assert sum_in_order([]) == 0.0 and sum_in_order([1, 0.5]) == 1.5
    rng = random.Random(0)
    values = [rng.gauss(0, 1) * 10 ** rng.randint(-9, 9) for _ in range(1000)]
    assert sum_in_order(values) == reduce(add, values)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the standard library rounds otherwise from 3.12 on")
def test_correlation_is_that_of_python_3_11_to_the_bit() -> None:
    rng = random.Random(1)
    for _ in range(200):
        lengths = [rng.randint(1, 60) for _ in range(16)]
        rewards = [rng.choice([0.0, 1.0, 0.1, rng.random()]) for _ in range(16)]
        assert correlation(lengths, rewards) == statistics.correlation(lengths, rewards)


def test_correlation_by_hand() -> None:
    # Deviations -1, 0, 1 and -4/3, -1/3, 5/3: 3 / sqrt(2 * 42/9).
    assert correlation([1, 2, 3], [0, 1, 3]) == pytest.approx(3 / (2 * 42 / 9) ** 0.5, rel=1e-15)


def in_a_set(tokens: list[int], n: int) -> int:
    return len({tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)})


VOCABULARIES = st.sampled_from([1, 2, 20, 151_936, 2**31])
SEQUENCES = VOCABULARIES.flatmap(lambda size: st.lists(st.lists(st.integers(0, size - 1), max_size=70), max_size=6))


@settings(max_examples=300, deadline=None)
@given(sequences=SEQUENCES, n=st.integers(1, 40), chunk=st.integers(1, 200))
def test_counts_are_those_of_a_set_of_tuples(sequences: list[list[int]], n: int, chunk: int) -> None:
    """Also of empty sequences, of those shorter than n, and wherever they are cut into chunks."""
    before, ngrams.CHUNK = ngrams.CHUNK, chunk
    try:
        assert distinct_ngrams(sequences, n) == [in_a_set(tokens, n) for tokens in sequences]
    finally:
        ngrams.CHUNK = before


@settings(max_examples=100, deadline=None)
@given(
    block=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12),
    times=st.integers(1, 12),
    rest=st.lists(st.integers(0, 3), max_size=30),
    n=st.integers(1, 20),
)
def test_repeated_blocks_are_counted_once(block: list[int], times: int, rest: list[int], n: int) -> None:
    sequences = [[*block * times, *rest], [*rest, *block * times], block * times, block[:1] * 40]
    assert distinct_ngrams(sequences, n) == [in_a_set(tokens, n) for tokens in sequences]


def test_what_is_equal_in_two_sequences_counts_in_both() -> None:
    assert distinct_ngrams([[1, 2, 3], [1, 2, 3], [], [3, 1, 2]], 2) == [2, 2, 0, 2]
