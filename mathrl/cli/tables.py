"""Tables and lines on the terminal; as wide as they are, and at least WIDTH, when the output goes to a file."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 110
WIDEST = 1000  # characters of a table in a file
LEAST = 8  # characters of a label, however narrow the terminal


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else max(WIDTH, Console().width))


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
