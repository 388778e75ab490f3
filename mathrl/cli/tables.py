"""Tables and lines on the terminal; at least WIDTH characters wide when the output goes to a file."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 110


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else max(WIDTH, Console().width))


def print_table(title: str, rows: Sequence[Mapping[str, str]], left: Sequence[str] = ("model",)) -> None:
    """Print rows as a table, the columns of `left` aligned left; without rows print nothing."""
    from rich.table import Table

    table = Table(title=title)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        table.add_column(
            column, justify="left" if column in left else "right", no_wrap=column not in left, overflow="fold"
        )
    for row in rows:
        table.add_row(*(row.get(column, "") for column in columns))
    if rows:
        _console().print(table)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines without wrapping or coloured numbers."""
    for line in lines:
        _console().print(line, soft_wrap=True, highlight=False)
