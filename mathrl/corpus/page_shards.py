"""Shards of a corpus on disk, one per file of pages: lines, features and the numbers that the rounds ask for.

What the classifier of pages sees of a text: hashed runs of grams.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from mathrl.core.files import read_json
from mathrl.corpus.page_files import Page, page_of_line
from mathrl.data.grams import grams

NUMBERS = np.dtype(
    [("key_high", "u8"), ("key_low", "u8"), ("host", "i4"), ("label", "i1"), ("inside", "?"), ("at", "i8")]
)


class PageShard:
    """The files of one shard: a line per page, and per page that stays a row of features and of numbers."""

    def __init__(self, folder: Path, number: int) -> None:
        self._start = folder / f"{number:05d}"

    @property
    def lines(self) -> Path:
        return self._start.with_suffix(".jsonl")

    @property
    def indices(self) -> Path:
        return self._start.with_suffix(".indices")

    @property
    def values(self) -> Path:
        return self._start.with_suffix(".values")

    @property
    def hosts(self) -> Path:
        return self._start.with_suffix(".hosts.json")

    def write(self, numbers: Sequence[tuple[Any, ...]], starts: npt.NDArray[np.int64]) -> None:
        """The pages' numbers, in the fields of NUMBERS, and the starts of their features."""
        np.save(self._start.with_suffix(".numbers.npy"), np.array(numbers, dtype=NUMBERS))
        np.save(self._start.with_suffix(".starts.npy"), starts)

    def numbers(self) -> npt.NDArray[np.void]:
        """One record per page, with the fields of NUMBERS; `host` is a number of `hosts`."""
        numbers: npt.NDArray[np.void] = np.load(self._start.with_suffix(".numbers.npy"))
        return numbers

    def host_names(self) -> list[str]:
        return list(read_json(self.hosts))

    def features(self) -> csr_matrix:
        """The features of all pages; the arrays stay on disk until rows are taken."""
        starts = np.load(self._start.with_suffix(".starts.npy"))
        if starts[-1] == 0:
            return csr_matrix((len(starts) - 1, BUCKETS))
        indices = np.memmap(self.indices, dtype=np.int32, mode="r")
        values = np.memmap(self.values, dtype=np.float64, mode="r")
        return csr_matrix((values, indices, starts), shape=(len(starts) - 1, BUCKETS), copy=False)

    def page(self, at: int) -> Page:
        """The page whose line starts at this byte."""
        with self.lines.open("rb") as stream:
            stream.seek(at)
            return page_of_line(stream.readline())


BUCKETS = 2**20


def features(text: str, longest: int) -> list[str]:
    """The runs of 1 to `longest` grams of the text.

    >>> features("Let $x = 2$", 2)
    ['let', 'x', '2', 'let x', 'x 2']
    """
    words = grams(text)
    return [" ".join(words[i : i + size]) for size in range(1, longest + 1) for i in range(len(words) - size + 1)]


def vectorizer(longest: int) -> HashingVectorizer:
    """Texts to rows of `BUCKETS` hashed features, scaled to length 1."""
    return HashingVectorizer(analyzer=lambda text: features(text, longest), n_features=BUCKETS, alternate_sign=False)
