"""Markdown tables for the reports on data."""

from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table.

    >>> table(["a", "b"], [[1, "x|y"]])
    ['| a | b |', '|---|---|', '| 1 | x\\\\|y |']
    """
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(cell(str(c)) for c in row) + " |" for row in rows)]


def cell(text: str) -> str:
    """The text on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")
