"""Decoders of data files: JSON lines, JSON, CSV, TSV, Parquet and Arrow, plain or compressed, a piece at a time.

A decoder yields (number, values) per row in file order: the row's line or position from 1, and an object, or a sentence
about what is wrong with the row. `wanted` is called once per row in that order, before the row is decoded; rows for
which it returns false are skipped. No decoder holds a whole file, except of JSON objects, which have no rows of their
own until the end.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from mathrl.core.errors import UserError

Wanted = Callable[[], bool]
Numbered = Iterator[tuple[int, Any]]
PACKED = (".gz", ".zst", ".bz2", ".xz")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather")
TEXT = SUFFIXES[:5]
BATCH = 1024  # rows of a Parquet or Arrow file in memory
CHUNK = 1 << 20  # characters of a JSON file read at a time
NOT_AN_OBJECT = "not a JSON object"


def kind_of(file: Path) -> str:
    """The format's suffix without the compression's: "rows.jsonl.zst" → ".jsonl"; "" for an unknown format."""
    packed = file.suffix in PACKED
    suffix = Path(file.stem).suffix if packed else file.suffix
    return suffix if suffix in (TEXT if packed else SUFFIXES) else ""


def decode(file: Path, wanted: Wanted | None = None) -> Numbered:
    """The rows of a file of a known format.

    Raises:
        UserError: the file as a whole cannot be read.
    """
    from pyarrow.lib import ArrowException  # 0.1 s, and help texts do without

    kind = kind_of(file)
    decoder = {
        ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _csv, ".tsv": _csv,
        ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow,
    }[kind]  # fmt: skip
    try:
        yield from decoder(file, wanted)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, lzma.LZMAError, ArrowException) as error:
        raise UserError(f"{file}: cannot be read as {kind[1:]} ({error})") from None


def _binary(file: Path) -> IO[bytes]:
    if file.suffix == ".zst":
        from pyarrow import CompressedInputStream

        return cast(IO[bytes], io.BufferedReader(CompressedInputStream(str(file), "zstd"), CHUNK))
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(file.suffix, open)
    return cast(IO[bytes], opener(file, "rb"))


def _text(file: Path) -> io.TextIOWrapper:
    # utf-8-sig: a byte-order mark that Excel leaves is not part of the first field's name.
    return io.TextIOWrapper(_binary(file), encoding="utf-8-sig", newline="")


def _json_lines(file: Path, wanted: Wanted | None) -> Numbered:
    with _binary(file) as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
                line.decode()  # a file in another encoding is refused as a whole
            if line.isspace() or not line or (wanted and not wanted()):
                continue
            yield number, _json_line(line)


def _json_line(line: bytes) -> Any:
    try:
        values = json.loads(line.decode())
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg} at column {error.colno})"
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {line[error.start]:#04x} at position {error.start + 1})"
    except (ValueError, RecursionError) as error:  # a number of over 4300 digits, or deep nesting
        return f"not JSON ({error})"
    return values if isinstance(values, dict | list) else NOT_AN_OBJECT


def _json(file: Path, wanted: Wanted | None) -> Numbered:
    with _text(file) as stream:
        start = stream.read(CHUNK)
    if _is_lines(start):
        yield from _json_lines(file, wanted)
        return
    rows = _elements(file) if start.lstrip().startswith("[") else _rows_of_object(file)
    for number, values in enumerate(rows, start=1):
        if wanted is None or wanted():
            yield number, values if isinstance(values, dict | list) else NOT_AN_OBJECT


def _is_lines(start: str) -> bool:
    """Whether a .json file holds one object per line: its first line is an object, and more than space follows it."""
    first, _, rest = start.lstrip().partition("\n")
    try:
        return bool(rest.strip()) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _elements(file: Path) -> Iterator[Any]:
    """The elements of a JSON list, decoded from as much of the text as they need."""
    decoder, size = json.JSONDecoder(), CHUNK
    with _text(file) as stream:
        text, at = stream.read(size).lstrip()[1:], 0
        failure: Exception | None = None
        while True:
            at = _after_space(text, at)
            if text[at : at + 1] == "]":
                return
            try:
                value, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                failure, end = error, len(text)
            if end < len(text):  # what ends with the text may go on
                yield value
                at = _after_space(text, end)
                at += text[at : at + 1] == ","
                size = CHUNK
                continue
            more = stream.read(size)
            if not more:
                raise UserError(f"{file}: cannot be read as json ({failure or 'no ] at the end'})")
            text, at, size = text[at:] + more, 0, size * 2


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t"):
        at += 1
    return at


def _rows_of_object(file: Path) -> list[Any]:
    """The rows of an object: its one list, its columns (lists of one length, or pandas' objects), or its values."""
    with _text(file) as stream:
        try:
            content = json.load(stream)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}: cannot be read as json ({error})") from None
    values = list(content.values()) if isinstance(content, dict) else []
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == 1 and (len(values) > 1 or not lists[0] or isinstance(lists[0][0], dict | list)):
        return lists[0]
    if values and len(lists) == len(values) and len({len(column) for column in lists}) == 1:
        return [dict(zip(content, cells, strict=True)) for cells in zip(*lists, strict=True)]
    if values and all(isinstance(value, dict) for value in values):
        if all(value.keys() == values[0].keys() for value in values) and all(key.isdigit() for key in values[0]):
            return [{name: column[key] for name, column in content.items()} for key in values[0]]
        return values
    raise UserError(f"{file}: expected a list of rows, or an object with one list of rows in it")


def _csv(file: Path, wanted: Wanted | None) -> Numbered:
    csv.field_size_limit(1 << 30)
    with _text(file) as stream:
        heading = stream.readline()
        delimiter = "\t" if kind_of(file) == ".tsv" else max(",;\t", key=heading.count)
        reader = csv.reader(chain([heading], stream), delimiter=delimiter)
        names = next(reader, [])
        for cells in reader:
            if not cells or (wanted and not wanted()):
                continue
            wide = len(cells) > len(names)
            row = dict(zip(names, [*cells, *[None] * (len(names) - len(cells))], strict=False))
            yield reader.line_num, "more columns than the heading" if wide else row


def _parquet(file: Path, wanted: Wanted | None) -> Numbered:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file, pre_buffer=False) as opened:
        yield from _batches(opened.iter_batches(batch_size=BATCH), wanted)


def _arrow(file: Path, wanted: Wanted | None) -> Numbered:
    """Arrow's file format (also called Feather 2) or its stream, in which `datasets` saves."""
    import pyarrow

    with pyarrow.memory_map(str(file)) as source:
        try:
            opened = pyarrow.ipc.open_file(source)
            batches = (opened.get_batch(index) for index in range(opened.num_record_batches))
        except pyarrow.ArrowInvalid:
            source.seek(0)
            batches = iter(pyarrow.ipc.open_stream(source))
        cut = (batch.slice(at, BATCH) for batch in batches for at in range(0, batch.num_rows, BATCH))
        yield from _batches(cut, wanted)


def _batches(batches: Iterator[Any], wanted: Wanted | None) -> Numbered:
    number = 1
    for batch in batches:
        if wanted is None:
            yield from enumerate(batch.to_pylist(), start=number)
        else:
            taken = [index for index in range(batch.num_rows) if wanted()]
            if taken:
                yield from zip((number + index for index in taken), batch.take(taken).to_pylist(), strict=True)
        number += batch.num_rows
