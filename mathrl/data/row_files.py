"""Rows of local files: jsonl, json, csv, parquet, and .gz of the first three."""

import csv
import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its location; `problem` says why it cannot be read.

    Example:
        Row(where="/data/gsm8k_test.jsonl, line 12", name="gsm8k_test:12", values={"question": …},
            shown="gsm8k_test.jsonl, line 12")
    """

    where: str
    name: str
    values: dict[str, Any]
    problem: str | None = None
    shown: str = ""


def list_files(path: Path) -> list[Path]:
    """The file, or the data files of a folder in the order of their names.

    Raises:
        UserError: there is no such file or folder, or no file of a known format.
    """
    if path.is_file():
        if _format(path) not in SUFFIXES:
            raise UserError(f"{path}: unknown format; known: {', '.join(SUFFIXES)} and .gz of the first three")
        return [path]
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder; correct the source's path in params/curate.yaml")
    files = sorted(file for file in path.rglob("*") if file.is_file() and _format(file) in SUFFIXES)
    if not files:
        raise UserError(f"{path}: no {', '.join(SUFFIXES)} file in this folder")
    return files


def labels(files: Iterable[Path]) -> dict[Path, str]:
    """The label of each file in outputs without paths: its name, with folders if names repeat."""
    files = list(files)
    if len({file.name for file in files}) == len(files):
        return {file: file.name for file in files}
    top = os.path.commonpath([file.parent for file in files])
    return {file: file.relative_to(top).as_posix() for file in files}


def read_rows(file: Path, label: str | None = None) -> Iterator[Row]:
    """Yield the rows of one file in order; a row that is not an object has its `problem` set.

    `label` names the file in outputs without paths; by default it is the file name.

    Raises:
        UserError: the file as a whole cannot be read.
    """
    kind = _format(file)
    label = label or file.name
    name = label.removesuffix(".gz").removesuffix(kind)
    place = "line" if kind in (".jsonl", ".csv") else "row"
    reader = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}[kind]
    try:
        for number, values in reader(file):
            row_name, at = f"{name}:{number}", f"{place} {number}"
            if isinstance(values, list):  # Open-Reasoner-Zero's turns: keys 0, 1, …
                values = {str(index): value for index, value in enumerate(values)}
            if isinstance(values, dict):
                yield Row(f"{file}, {at}", row_name, values, shown=f"{label}, {at}")
            else:
                yield Row(f"{file}, {at}", row_name, {}, str(values), shown=f"{label}, {at}")
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file}: cannot be read as {kind[1:]} ({error})") from None


def _format(file: Path) -> str:
    suffix = Path(file.name.removesuffix(".gz")).suffix
    return "" if suffix == ".parquet" and file.suffix == ".gz" else suffix


def _open(file: Path) -> io.TextIOBase:
    # utf-8-sig: a byte-order mark that Excel leaves is not part of the first field's name.
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")  # type: ignore[return-value]
    return file.open(encoding="utf-8-sig", newline="")


def _jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    with _open(file) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                yield number, f"not JSON ({error.msg} at column {error.colno})"
            except (ValueError, RecursionError) as error:  # a number of over 4300 digits, or deep nesting
                yield number, f"not JSON ({error})"
            else:
                yield number, values if isinstance(values, dict | list) else "not a JSON object"


def _json(file: Path) -> Iterator[tuple[int, Any]]:
    with _open(file) as stream:
        try:
            content = json.load(stream)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}: cannot be read as json ({error})") from None
    lists = [value for value in content.values() if isinstance(value, list)] if isinstance(content, dict) else [content]
    if len(lists) != 1 or not isinstance(lists[0], list):
        raise UserError(f"{file}: expected a list of rows, or an object with one list of rows in it")
    for number, values in enumerate(lists[0], start=1):
        yield number, values if isinstance(values, dict | list) else "not a JSON object"


def _csv(file: Path) -> Iterator[tuple[int, Any]]:
    csv.field_size_limit(1 << 30)
    with _open(file) as stream:
        reader = csv.DictReader(stream)
        for values in reader:
            extra = values.pop(None, None)  # type: ignore[call-overload]
            yield reader.line_num, values if extra is None else "more columns than the heading"


def _parquet(file: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow.parquet as parquet  # 0.3 s, and only such files need it
    from pyarrow.lib import ArrowException

    try:
        number = 0
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=4096):
            for values in batch.to_pylist():
                number += 1
                yield number, values
    except ArrowException as error:
        raise UserError(f"{file}: cannot be read as parquet ({error})") from None
