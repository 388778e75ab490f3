"""Pages: read from files row by row, with errors that name the location, and stored in shards of a corpus on disk.

A shard has the lines, the features and the numbers that the rounds ask for. The features are what the linear classifier
sees of a text: hashed runs of grams.
"""

import importlib.util
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from mathrl.core.errors import UserError
from mathrl.core.files import encodable, read_json
from mathrl.core.hashing import derive_seed
from mathrl.core.paths import main_checkout
from mathrl.curation.decontaminate import EvaluationIndex
from mathrl.data.grams import grams
from mathrl.params.pages import Pages, PagesClean, Seeds
from mathrl.reading.reading import Read, input_row, read_source, split_rejected
from mathrl.reading.row_files import list_files, read_rows
from mathrl.reading.row_values import BadRow, payload
from mathrl.reading.sources import resolve_evaluation

CRAWLS = (".warc", ".warc.gz", ".wet", ".wet.gz")
# The package of each module that reading web archives needs: the extra warc.
CRAWL_PACKAGES = {
    "warcio": "warcio",
    "cchardet": "faust-cchardet",
    "magic": "python-magic",
    "trafilatura": "trafilatura",
}

BUCKETS = 2**20  # hashed features
NUMBERS = np.dtype(
    [("key_high", "u8"), ("key_low", "u8"), ("host", "i4"), ("label", "i1"), ("inside", "?"), ("at", "i8")]
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its row, its location ("crawl.jsonl, line 12") and the fields that the loop reads.

    The location has no folders, so that outputs are equal on every machine.
    """

    where: str
    row: dict[str, Any]
    text: str
    host: str
    path: str
    label: bool | None = None

    def to_line(self) -> str:
        """One line of JSON, from which `page_of_line` makes the page again."""
        fields = [self.where, self.row, self.text, self.host, self.path, self.label]
        return encodable(json.dumps(fields, ensure_ascii=False)) + "\n"


def page_of_line(line: bytes) -> Page:
    """The page of `Page.to_line`."""
    return Page(*json.loads(line))


def page_files(files: Sequence[str], field: str) -> list[Path]:
    """The files that a parameter names: files, folders or patterns; relative paths start at the top of the checkout.

    Raises:
        UserError: no file is named, one does not exist, or its format is unknown.
    """
    if not files:
        raise UserError(f"params/pages.yaml: {field} names no file; write the paths of files with pages or texts")
    matching: list[Path] = []
    for path in map(Path, files):
        path = path if path.is_absolute() else main_checkout() / path
        try:
            matching += list_files(path, CRAWLS)
        except UserError as error:
            reason = str(error).removesuffix(", of a source in params/curate.yaml")
            raise UserError(f"params/pages.yaml: {field}: {reason}") from None
    if len(set(matching)) < len(matching):
        twice = next(file for file in matching if matching.count(file) > 1)
        raise UserError(f"params/pages.yaml: {field}: {twice} is named twice; write it once")
    return matching


def is_archive(file: Path) -> bool:
    """Whether the file is a web archive, by its name."""
    return file.name.endswith(CRAWLS)


def check_readers(files: Sequence[Path]) -> None:
    """Raises UserError: a package that reads web archives is missing; the message has the command."""
    needed = CRAWL_PACKAGES if any(map(is_archive, files)) else {}
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(
            f"pages.files names web archives, but {' and '.join(missing)} cannot be found: "
            "pip install -c constraints.txt 'mathrl[warc]'"
        )


def read_seeds(seeds: Seeds, field: str, seed: int) -> list[str]:
    """The texts of `positives` or `negatives`; with a `limit`, a seeded choice in file order."""
    texts = [
        _text(values, seeds.text_key, where, f"{field}.text_key")
        for file in page_files(seeds.files, f"{field}.files")
        for where, _, values in rows_of(file)
    ]
    if seeds.limit is None or seeds.limit >= len(texts):
        return texts
    chosen = random.Random(derive_seed(seed, "pages", field)).sample(range(len(texts)), seeds.limit)
    return [texts[i] for i in sorted(chosen)]


def rows_of(file: Path, label: str | None = None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each row's location with and without folders, and its values.

    Raises:
        UserError: the file or a row cannot be read.
    """
    if is_archive(file):
        raise UserError(f"{file}: a web archive holds pages and no seeds; name files of texts")
    for row in read_rows(file, label):
        if row.problem:
            raise UserError(f"{row.where}: {row.problem}; correct the row")
        try:
            yield row.where, row.shown, payload(row.values)
        except BadRow as error:
            raise UserError(f"{row.where}: {error}; correct the row") from None


def page_of(row: dict[str, Any], where: str, shown: str, params: Pages) -> Page:
    """The page of a row.

    Raises:
        UserError: a field is missing or wrong; the message names file, line and field.
    """
    text = _text(row, params.text_key, where, "text_key")
    url = _text(row, params.url_key, where, "url_key")
    host, path = host_and_path(url, f"{where}, field {params.url_key}")
    label = row.get(params.label_key) if params.label_key else None
    if label is not None and label not in (True, False):  # 0 and 1 are these too
        raise UserError(f"{where}, field {params.label_key}: {label!r} is not a label; write true, false or null")
    return Page(shown, row, text, host, path, None if label is None else bool(label))


def _text(row: dict[str, Any], key: str, where: str, parameter: str) -> str:
    if key not in row:
        has = ", ".join(row) or "none"
        raise UserError(f"{where}: no field {key}; it has {has}: set {parameter} in params/pages.yaml")
    if not isinstance(row[key], str) or not row[key].strip():
        raise UserError(f"{where}, field {key}: expected text, found {row[key]!r}")
    return str(row[key])


def host_and_path(url: str, where: str) -> tuple[str, str]:
    """The domain, in lower case and without www., and the path.

    >>> host_and_path("https://www.Algebra.example:443/forum/7?page=2", "here")
    ('algebra.example', '/forum/7')

    Raises:
        UserError: an address without a host name.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removeprefix("www.")
    except ValueError:
        host = ""
    if not host:
        raise UserError(f"{where}: {url!r} has no host name; write an address such as https://host/path")
    return encodable(host), encodable(parts.path) or "/"


def read_evaluation(params: PagesClean, seed: int) -> tuple[EvaluationIndex, list[dict[str, Any]]]:
    """The index of the n-grams that no kept page may have, and the digests of their sets for the record.

    Raises:
        UserError: a set or a file that is not there, or a bad row in it.
    """
    index, inputs = EvaluationIndex(params.ngram, "words"), []
    for source in resolve_evaluation(params.benchmarks, params.files, params.data_folder):
        read = Read()
        problems, _ = split_rejected(read_source(source, seed, read), "correct the row")
        for problem in problems:
            index.add_problem(problem)
        inputs.append(input_row(source, read))
    return index, inputs


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
