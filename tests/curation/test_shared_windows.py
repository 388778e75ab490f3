"""Runs of tokens that texts share, against a count by hand; texts that repeat themselves cost no pair of places."""

from collections.abc import Sequence

import numpy as np
import pytest

from mathrl.curation import shared_windows
from mathrl.curation.shared_windows import WindowIndex
from mathrl.curation.shingles import Rows

Found = dict[tuple[int, int], tuple[int, int, tuple[int, ...]]]


def rows(texts: Sequence[Sequence[int]]) -> Rows:
    starts = np.cumsum([0, *map(len, texts)])
    return Rows(
        np.array([token for text in texts for token in text], np.uint64) * np.uint64(0x9E3779B97F4A7C15), starts
    )


def pairs(evaluation: Sequence[Sequence[int]], training: Sequence[Sequence[int]], longest: int) -> Found:
    """By training and evaluation text: covered tokens of either, and the places in the training text."""
    return {
        (int(p.rows[n]), int(p.texts[n])): (
            int(p.of_row[n]),
            int(p.of_text[n]),
            tuple(p.places[p.starts[n] : p.starts[n + 1]].tolist()),
        )
        for p in WindowIndex(rows(evaluation), longest).pairs(rows(training))
        for n in range(len(p.rows))
    }


def by_hand(evaluation: Sequence[Sequence[int]], training: Sequence[Sequence[int]], longest: int) -> Found:
    found: Found = {}
    for t, text in enumerate(evaluation):
        size = min(longest, len(text))
        windows = [tuple(text[at : at + size]) for at in range(len(text) - size + 1)] if size else []
        for r, row in enumerate(training):
            own = [tuple(row[at : at + size]) for at in range(len(row) - size + 1)]
            places = [at for at, window in enumerate(own) if window in windows]
            if places and windows:
                theirs = [at for at, window in enumerate(windows) if window in own]
                covered = [len({at + n for at in of for n in range(size)}) for of in (places, theirs)]
                found[r, t] = (covered[0], covered[1], tuple(places))
    return found


@pytest.mark.parametrize("tokens", [1, 2, 3, 9])
def test_pairs_are_those_of_a_count_by_hand(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_windows, "MATCHES", 40)  # several parts
    random = np.random.default_rng(tokens)
    for _ in range(20):
        texts = [
            [random.integers(0, tokens, random.integers(0, 15)).tolist() for _ in range(count)] for count in (6, 8)
        ]
        longest = int(random.integers(1, 6))
        assert pairs(texts[0], texts[1], longest) == by_hand(texts[0], texts[1], longest)


def test_texts_of_one_word_are_compared_in_little_memory() -> None:
    words = [[7] * 4000] * 40  # a pair of places each would be 640 million per training text
    found = pairs(words, words[:2], 10)
    assert set(found.values()) == {(4000, 4000, tuple(range(3991)))} and len(found) == 80
