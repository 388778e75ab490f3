"""Rows of local files: which files a path names, their rows with their locations, and a seeded choice of rows.

Files are JSON lines, JSON, CSV, TSV, Parquet and Arrow, plain or compressed, decoded a piece at a time. A decoder
yields (number, values) per row in file order: the row's line or position from 1, and an object, or a sentence about
what is wrong with the row. `wanted` is called once per row in that order, before the row is decoded; rows for which it
returns false are skipped. No decoder holds a whole file, except of JSON objects, which have no rows of their own until
the end.
"""

import bz2
import csv
import glob
import gzip
import heapq
import io
import json
import lzma
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from mathrl.core.errors import UserError
from mathrl.core.files import walk_files
from mathrl.params.messages import near_path

Wanted = Callable[[], bool]
Numbered = Iterator[tuple[int, Any]]
PACKED = (".gz", ".zst", ".bz2", ".xz")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather")
TEXT = SUFFIXES[:5]
BATCH = 1024  # rows of a Parquet or Arrow file in memory
CHUNK = 1 << 20  # characters of a JSON file read at a time
NOT_AN_OBJECT = "not a JSON object"
KNOWN = f"{', '.join(SUFFIXES)}; {', '.join(PACKED)} of {', '.join(TEXT)}"
# What `datasets` and the hub put beside the rows.
NOT_ROWS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}


class Row(NamedTuple):
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


def list_files(path: Path, further: tuple[str, ...] = ()) -> list[Path]:
    """The file, the files that a pattern such as shards/*.parquet matches, or the data files of a folder, by name.

    Links are followed, and a file with several names there counts once, by its first name that needs no link, if any.
    The endings in `further` count as known formats.

    Raises:
        UserError: there is no such file or folder, no file of a known format, or a link leads nowhere.
    """
    if path.is_file():
        if not (kind_of(path) or path.name.endswith(further)):
            raise UserError(f"{path}: unknown format; known: {', '.join([KNOWN, *further])}")
        return [path]
    if path.is_dir():
        top, pattern, what = path, "**/*", "in this folder"
    elif glob.has_magic(str(path)):
        top = next(folder for folder in path.parents if folder.is_dir())  # its own name may have dots and brackets
        pattern, what = str(path.relative_to(top)), "matches this pattern"
    else:
        raise UserError(f"{path}: no such file or folder{near_path(path)}")
    try:
        inside = list(_matches(top, pattern))
    except (ValueError, OSError) as error:  # "**" in a name, or a folder that cannot be read
        raise UserError(f"{path}: {error}") from None
    files = [file for file in inside if holds_rows(file, top, further)]
    if not files:
        raise UserError(f"{path}: no {', '.join([*SUFFIXES, *further])} file {what}")
    real = {file: file.resolve() for file in files}
    files.sort(key=lambda file: (real[file] != top.resolve() / file.relative_to(top), file), reverse=True)
    return sorted({real[file]: file for file in files}.values())


def _matches(top: Path, pattern: str) -> Iterator[Path]:
    """What a pattern matches below `top`; unlike pathlib's, its ** goes through links to folders."""
    before, stars, after = f"/{pattern}".partition("/**/")
    if not stars:
        yield from top.glob(pattern)
        return
    for folder in filter(Path.is_dir, top.glob(before[1:]) if before else [top]):
        for place in {folder, *(p for file in walk_files(folder) for p in file.parents if folder in p.parents)}:
            yield from _matches(place, after)


def holds_rows(file: Path, top: Path, further: tuple[str, ...] = ()) -> bool:
    """Whether the file has a known format, is no note about the data and is not hidden, as .cache is, below `top`.

    Raises:
        UserError: it is a link that leads nowhere.
    """
    if any(part.startswith(".") for part in file.relative_to(top).parts):
        return False
    if file.is_symlink() and not file.exists():
        raise UserError(f"{file}: a link to {file.readlink()}, which cannot be found; correct or remove the link")
    known = bool(kind_of(file)) or file.name.endswith(further)
    return file.is_file() and known and file.name not in NOT_ROWS


def labels(files: Iterable[Path]) -> dict[Path, str]:
    """The label of each file in outputs without paths: its name, with folders if names repeat."""
    files = list(files)
    if len({file.name for file in files}) == len(files):
        return {file: file.name for file in files}
    top = os.path.commonpath([file.parent for file in files])
    return {file: file.relative_to(top).as_posix() for file in files}


def read_rows(file: Path, label: str | None = None, wanted: Wanted | None = None) -> Iterator[Row]:
    """Yield the rows of one file in order; a row that is not an object has its `problem` set.

    `label` names the file in outputs without paths; by default it is the file name. `wanted` is asked once per row,
    before the row is decoded; a row that it does not want is skipped.

    Raises:
        UserError: the file as a whole cannot be read.
    """
    kind = kind_of(file)
    label = label or file.name
    name = next((label.removesuffix(packed) for packed in PACKED if label.endswith(packed)), label).removesuffix(kind)
    place = "line" if kind in (".jsonl", ".ndjson", ".csv", ".tsv") else "row"
    for number, values in decode(file, wanted):
        row_name, at = f"{name}:{number}", f"{place} {number}"
        if isinstance(values, list):  # Open-Reasoner-Zero's turns: keys 0, 1, …
            values = {str(index): value for index, value in enumerate(values)}
        if isinstance(values, dict):
            yield Row(f"{file}, {at}", row_name, values, shown=f"{label}, {at}")
        else:
            yield Row(f"{file}, {at}", row_name, {}, str(values), shown=f"{label}, {at}")


@dataclass
class Draw:
    """A seeded choice of `limit` rows out of a stream of unknown length, in memory for `limit` rows.

    Each row gets a random number when `wanted` is called for it, and the rows with the `limit` smallest numbers stay.
    A row whose number is too large is not wanted, so that it is never decoded: of a million rows about 8,000 are
    decoded for a limit of 1,000.
    """

    limit: int
    random: random.Random
    rows: int = 0
    _pending: deque[tuple[float, int]] = field(default_factory=deque)  # of rows that were wanted and not yet added
    _kept: list[tuple[float, int, Any]] = field(default_factory=list)  # a heap, the largest number first

    def wants_more(self) -> bool:
        self.rows += 1
        number = self.random.random()
        if len(self._kept) == self.limit and number >= -self._kept[0][0]:
            return False
        self._pending.append((number, self.rows))
        return True

    def skip(self) -> None:
        """The next wanted row is none of those to choose from."""
        self._pending.popleft()

    def add(self, item: Any) -> None:
        """The next wanted row is `item`."""
        number, row = self._pending.popleft()
        if len(self._kept) < self.limit:
            heapq.heappush(self._kept, (-number, row, item))
        elif number < -self._kept[0][0]:
            heapq.heapreplace(self._kept, (-number, row, item))

    def chosen_rows(self) -> Iterator[Any]:
        """The rows that stay, in the order of the stream."""
        return (item for _, _, item in sorted(self._kept, key=lambda kept: kept[1]))


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
    except (OSError, EOFError, UnicodeError, csv.Error, lzma.LZMAError, ArrowException) as error:
        advice = "; save it as UTF-8" if isinstance(error, UnicodeError) else ""
        raise UserError(f"{file}: cannot be read as {kind[1:]} ({error}){advice}") from None


def _binary(file: Path) -> IO[bytes]:
    if file.suffix == ".zst":
        from pyarrow import CompressedInputStream

        return cast(IO[bytes], io.BufferedReader(CompressedInputStream(file.open("rb"), "zstd"), CHUNK))
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
                if text[at + 1 :].strip() or any(more.strip() for more in iter(lambda: stream.read(CHUNK), "")):
                    raise UserError(
                        f"{file}: cannot be read as json (more text after the list); name it .jsonl if each "
                        "line has a row"
                    )
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
        lines: list[str] = []  # of the row that is read
        reader = csv.reader(_kept_in(lines, chain([heading], stream)), delimiter=delimiter)
        names = next(reader, [])
        if twice := {name for name in names if name and names.count(name) > 1}:
            raise UserError(f"{file}: two columns are called {min(twice)!r}; rename one of them")
        lines.clear()
        for cells in reader:
            if len(lines) > 1:
                _check_quotes(file, lines, reader.line_num, delimiter)
            lines.clear()
            if not cells or (wanted and not wanted()):
                continue
            wide = len(cells) > len(names)
            row = dict(zip(names, [*cells, *[None] * (len(names) - len(cells))], strict=False))
            yield reader.line_num, "more columns than the heading" if wide else row


def _kept_in(lines: list[str], stream: Iterable[str]) -> Iterator[str]:
    for line in stream:
        lines.append(line)
        yield line


def _check_quotes(file: Path, lines: Sequence[str], last: int, delimiter: str) -> None:
    """Refuse a row of several lines whose quotes do not match: rows are lost in a field that a quote leaves open."""
    try:
        next(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        raise UserError(
            f"{file}, lines {last - len(lines) + 1} to {last}: a field begins with a quote that is not closed where "
            'the field ends; close it, or write a quote within a field as ""'
        ) from None


def _parquet(file: Path, wanted: Wanted | None) -> Numbered:
    from pyarrow.parquet import ParquetFile

    with file.open("rb") as stream, ParquetFile(stream, pre_buffer=False) as opened:
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
