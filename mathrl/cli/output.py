"""`--json`: stdout has exactly one JSON document, and all else that a command or its children print goes to stderr.

Tables and lines on the terminal; as wide as they are, and at least WIDTH, when the output goes to a file.
"""

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any, TextIO

import typer

from mathrl.core.files import ESCAPE

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; everything else goes to stderr.")]


class _Documents:
    stream: TextIO | None = None
    printed = False


def only_json() -> None:
    """From here on stdout is stderr, of children too; the document alone goes to what was stdout."""
    sys.stdout.flush()
    _Documents.stream = os.fdopen(os.dup(1), "w", encoding="utf-8", errors=ESCAPE)
    os.dup2(2, 1)


def print_document(document: Mapping[str, Any]) -> None:
    """Print the command's document; numbers that are not finite are null."""
    _Documents.printed = True
    text = json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    print(text, file=_Documents.stream or sys.stdout, flush=True)


def print_result(as_json: bool, document: Mapping[str, Any], *lines: str) -> None:
    """Print the command's document with --json, else the lines."""
    if as_json:
        print_document(document)
    else:
        print(*lines, sep="\n")


def print_error(message: str) -> None:
    """The document of a command that failed, unless it has printed its own: {"error": "no stage 'rx'"}."""
    if _Documents.stream is not None and not _Documents.printed:
        print_document({"error": message})


def _plain(value: Any) -> Any:
    """The value as JSON has it.

    >>> _plain({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


WIDTH = 110
WIDEST = 1000  # characters of a table in a file
LEAST = 8  # characters of a label, however narrow the terminal


def _console() -> Any:
    from rich.console import Console

    width = None if sys.stdout.isatty() else max(WIDTH, Console().width)
    return Console(width=width, markup=False, emoji=False)  # targets=[q_proj] is a value and no markup


def print_table(title: str, rows: Sequence[Mapping[str, str]], left: Sequence[str] = ("model",)) -> None:
    """Print rows as a table, the columns of `left` aligned left; without rows print nothing."""
    from rich.table import Table

    table = Table(title=title)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        label = column in left
        least = min(LEAST, max(len(row.get(column, "")) for row in rows)) if label else None
        table.add_column(
            column, justify="left" if label else "right", no_wrap=not label, overflow="fold", min_width=least
        )
    for row in rows:
        table.add_row(*(row.get(column, "") for column in columns))
    if rows:
        console = _console()
        if not sys.stdout.isatty():
            whole = console.measure(table, options=console.options.update(width=WIDEST)).maximum
            console.width = max(console.width, whole)
        console.print(table)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines without wrapping or coloured numbers."""
    for line in lines:
        _console().print(line, soft_wrap=True, highlight=False)
