"""Files that are either complete or absent: written aside, flushed, then renamed."""

import glob
import gzip
import io
import itertools
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mathrl.core.errors import UserError
from mathrl.core.guard import is_alive, process_start

if TYPE_CHECKING:
    from filelock import FileLock

Made = TypeVar("Made")

# Names the files that one process writes aside: others may have its id, on another machine or before a restart.
_PROCESS, _numbers = secrets.token_hex(4), itertools.count()
ASIDE = re.compile(
    r"\.(?P<target>.+)\.(?P<pid>\d+)-((?P<start>\d+)-)?(?P<process>[0-9a-f]{8})-\d+\.(partial|old)", re.S
)
ESCAPE = "backslashreplace"  # how files encode what UTF-8 cannot: a lone surrogate becomes \ud83d


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `target` that replaces it when the block ends without an error.

    The block may make a file or a folder there. On an error it is removed, and `target` stays as it was.

    Raises:
        UserError: the block made a file, and `target` is a folder.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    start = process_start(os.getpid())
    writer = "-".join(str(part) for part in (os.getpid(), start, _PROCESS, next(_numbers)) if part is not None)
    aside = target.with_name(f".{target.name}.{writer}.partial")
    try:
        yield aside
        if not aside.is_dir():
            if target.is_dir():
                raise UserError(f"{target}: this is a folder; name a file in it")
            with aside.open("rb") as stream:
                os.fsync(stream.fileno())
        if target.is_dir():
            old = target.with_name(f".{target.name}.{writer}.old")
            target.rename(old)
            aside.rename(target)
            _remove(old)
        else:
            aside.replace(target)
    except OSError as error:
        if error.filename is None:  # a failed write does not name its file
            error.filename = str(target)
        raise
    finally:
        _remove(aside)


def walk_files(top: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """The files below a folder, by name; a link to a folder counts as a copy of it, unless it closes a circle.

    A link that leads nowhere is among them. `above` has the real folders on the way from the first one to `top`.

    Raises:
        OSError: a folder cannot be read.
    """
    real = top.resolve()
    if real in above:
        return
    for path in sorted(top.iterdir()):
        if path.is_dir():
            yield from walk_files(path, above | {real})
        else:
            yield path


def remove_leftovers(target: Path) -> None:
    """Remove what `written_aside` of a killed process left beside `target`, or within it if it is a folder."""
    beside = target.parent.glob(f".{glob.escape(target.name)}.*")
    for path in (*beside, *(target.rglob(".*") if target.is_dir() else [])):
        made = ASIDE.fullmatch(path.name)
        if made is None or (path.parent == target.parent and made["target"] != target.name):
            continue
        pid, start = int(made["pid"]), int(made["start"]) if made["start"] else None
        if made["process"] != _PROCESS if pid == os.getpid() else not is_alive(pid, start):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def encodable(text: str) -> str:
    r"""The text with its lone surrogates, which UTF-8 does not have, as backslash escapes.

    In JSON these are the escapes from which `json.loads` makes the same string again.

    >>> encodable('{"emoji": "\ud83d"}')
    '{"emoji": "\\ud83d"}'
    """
    return text.encode("utf-8", errors=ESCAPE).decode("utf-8")


def write_text(path: Path, text: str) -> None:
    """Write the text as UTF-8, lone surrogates as in `encodable`."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", errors=ESCAPE)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON with sorted keys, so that equal values are equal bytes.

    `read_json` gives the same strings back, lone surrogates too.
    """
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))  # Windows' editors leave a byte-order mark
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:  # also a number of over 4300 digits, or deep nesting
        raise UserError(f"{path}: not JSON ({error})") from None


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write one JSON object per line (gzip if the name ends in .gz) and return their number."""
    count = 0
    with written_aside(path) as aside, _open_write(aside, gz=path.suffix == ".gz") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
            count += 1
    return count


@contextmanager
def _open_write(path: Path, *, gz: bool) -> Iterator[Any]:
    if not gz:
        with path.open("w", encoding="utf-8", errors=ESCAPE) as stream:
            yield stream
        return
    # mtime 0: equal rows are equal bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed,
        io.TextIOWrapper(packed, encoding="utf-8", errors=ESCAPE) as stream,
    ):
        yield stream


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a .jsonl or .jsonl.gz file; an error names the file and the line.

    Raises:
        UserError: no such file, or a line that is not a JSON object.
    """
    for _, row in read_numbered_jsonl(path):
        yield row


def read_numbered_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Like `read_jsonl`, with the line number (from 1) of each object."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:  # also a number of over 4300 digits, or deep nesting
                    raise UserError(f"{path}, line {number}: not JSON ({getattr(error, 'msg', error)})") from None
                if not isinstance(row, dict):
                    raise UserError(f"{path}, line {number}: expected a JSON object, not {line.strip()[:40]!r}")
                yield number, row
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 JSON lines ({error})") from None


def to_fields(item: Any) -> dict[str, Any]:
    """The fields of a flat dataclass by name: `asdict`, which copies every value, takes ten times as long."""
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def from_fields(kind: Callable[..., Made], row: Mapping[str, Any]) -> Made:
    """A dataclass of flat fields, from its `to_fields` as JSON gave it: lists were tuples."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})


def release(lock: "FileLock") -> None:
    """Release the lock, whose file goes with its last holder."""
    # While it is held: filelock tries again where the file that it has locked was removed meanwhile.
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
