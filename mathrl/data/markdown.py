"""Tables of the reports on data."""

from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """
    >>> table(["a", "b"], [[1, "x|y"]])
    ['| a | b |', '|---|---|', '| 1 | x\\\\|y |']
    """
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(cell(str(c)) for c in row) + " |" for row in rows)]


def cell(text: str) -> str:
    """On one line, and no bar ends it."""
    return " ".join(text.split()).replace("|", "\\|")
