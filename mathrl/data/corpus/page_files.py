"""Files of pages and of seed texts, row by row; every error names its location."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mathrl.core.errors import UserError
from mathrl.core.files import encodable, read_numbered_jsonl
from mathrl.core.paths import main_checkout
from mathrl.core.seeding import derive_seed
from mathrl.data.decontaminate import EvaluationIndex
from mathrl.data.reading import Read, input_row, read_source, taken
from mathrl.data.sources import resolve_evaluation
from mathrl.params.pages import Pages, PagesClean, Seeds


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


def page_files(files: Sequence[str], field: str) -> list[Path]:
    """The files that a parameter names; relative paths start at the top of the checkout.

    Raises:
        UserError: no file is named, or one does not exist or is not jsonl.
    """
    if not files:
        raise UserError(f"params/pages.yaml: {field} names no file; write the paths of jsonl files")
    paths = [path if path.is_absolute() else main_checkout() / path for path in map(Path, files)]
    for path in paths:
        if not path.name.endswith((".jsonl", ".jsonl.gz")):
            raise UserError(f"params/pages.yaml: {field}: {path} is not a .jsonl or .jsonl.gz file")
        if not path.is_file():
            raise UserError(f"params/pages.yaml: {field}: {path}: no such file")
    return paths


def read_pages(params: Pages) -> list[Page]:
    """All pages in file order.

    Raises:
        UserError: a file or row cannot be read; the message names file, line and field.
    """
    pages = [
        _page(row, f"{file}, line {number}", params)
        for file in page_files(params.files, "files")
        for number, row in read_numbered_jsonl(file)
    ]
    if not pages:
        raise UserError(f"{', '.join(params.files)}: no page in it")
    return pages


def read_seeds(seeds: Seeds, field: str, seed: int) -> list[str]:
    """The texts of `positives` or `negatives`; with a `limit`, a seeded choice in file order."""
    texts = [
        _text(row, seeds.text_key, f"{file}, line {number}", f"{field}.text_key")
        for file in page_files(seeds.files, f"{field}.files")
        for number, row in read_numbered_jsonl(file)
    ]
    if seeds.limit is None or seeds.limit >= len(texts):
        return texts
    chosen = random.Random(derive_seed(seed, "pages", field)).sample(range(len(texts)), seeds.limit)
    return [texts[i] for i in sorted(chosen)]


def _page(row: dict[str, Any], where: str, params: Pages) -> Page:
    text = _text(row, params.text_key, where, "text_key")
    url = _text(row, params.url_key, where, "url_key")
    host, path = host_and_path(url, f"{where}, field {params.url_key}")
    label = row.get(params.label_key) if params.label_key else None
    if label is not None and label not in (True, False):  # 0 and 1 are these too
        raise UserError(f"{where}, field {params.label_key}: {label!r} is not a label; write true, false or null")
    return Page(Path(where).name, row, text, host, path, None if label is None else bool(label))


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
        problems, _ = taken(read_source(source, seed, read), "correct the row")
        for problem in problems:
            index.add_problem(problem)
        inputs.append(input_row(source, read))
    return index, inputs
