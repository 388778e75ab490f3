"""Distinct n-grams of token sequences, counted in arrays: no Python object per token."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mathrl.core.types import TokenIds

# Sequences of up to so many tokens are counted together: few calls for short ones, small sorts for long ones.
CHUNK = 1 << 14
BITS = 63  # of a key
Integers = npt.NDArray[np.int64]


def distinct_ngrams(sequences: Sequence[TokenIds], n: int) -> list[int]:
    """The number of different n-grams of each sequence of numbers from 0 to 2^31 - 1.

    >>> distinct_ngrams([(1, 2, 1, 2, 1), (7, 7, 7)], n=2), distinct_ngrams([(1, 2)], n=4)
    ([2, 1], [0])
    """
    return [count for chunk in _chunks(sequences) for count in _distinct(chunk, n)]


def _chunks(sequences: Sequence[TokenIds]) -> Iterator[list[Integers]]:
    chunk: list[Integers] = []
    room = CHUNK
    for sequence in sequences:
        if chunk and len(sequence) > room:
            yield chunk
            chunk, room = [], CHUNK
        chunk.append(np.asarray(sequence, np.int64))
        room -= len(sequence)
    if chunk:
        yield chunk


def _distinct(sequences: Sequence[Integers], n: int) -> list[int]:
    """Neighbours are joined to one key of up to 63 bits; keys are replaced by their ranks, of fewer bits; and so on
    until a key stands for n tokens."""
    keys, width = np.concatenate(sequences), 1
    bits = _bits(keys)
    while width < n:
        if 2 * bits > BITS:
            keys, bits = _ranks(keys)
        wider = min(n, BITS // bits * width)
        starts = [min(start, wider - width) for start in range(0, wider, width)]
        joined = np.zeros(max(0, len(keys) - starts[-1]), np.int64)
        for start in starts:
            joined = joined << bits | keys[start : start + len(joined)]
        keys, bits, width = joined, bits * len(starts), wider
    lengths = np.array([len(sequence) for sequence in sequences])
    owners = np.repeat(np.arange(len(lengths)), lengths)[: len(keys)]
    inside = np.arange(len(keys)) + n <= np.cumsum(lengths)[owners]
    keys, owners = keys[inside], owners[inside]
    if bits + len(lengths).bit_length() > BITS:
        keys, bits = _ranks(keys)
    counts: list[int] = np.bincount(np.unique(owners << bits | keys) >> bits, minlength=len(lengths)).tolist()
    return counts


def _ranks(keys: Integers) -> tuple[Integers, int]:
    """Equal numbers for equal keys, as small as possible, and their bits."""
    ranks = np.unique(keys, return_inverse=True)[1]
    return ranks, _bits(ranks)


def _bits(keys: Integers) -> int:
    return max(1, int(keys.max(initial=0)).bit_length())
