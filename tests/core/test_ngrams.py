"""Counting in arrays gives what a set of tuples gives."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mathrl.core import ngrams
from mathrl.core.ngrams import distinct_ngrams


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
