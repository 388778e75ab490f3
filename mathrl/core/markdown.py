"""Markdown that holds text of data: what a row, a response or a web page says stays text in whatever renders it.

Reports are read as they are, and rendered by Prefect, MLflow and others. Text that went in as it stands could bring
HTML or an image, which a reader's browser fetches from an address that the data names.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

# What can begin an element, a link, emphasis, code or a cell, in CommonMark, GFM and Python-Markdown.
SPECIAL = re.compile(
    r"""[`|*] | <(?=[a-z/!?]) | &(?=\#?\w+;) | \](?=\s?[(\[:]) | \\(?=[!-/:-@\[-`{-~]|$) | ~(?=~) | \{(?=\s?[:.\#])
    | (?<![^\W_])_ | _(?![^\W_]) | (?<=[a-z]):(?=//) | (?<=www)\. | @(?=[\w.-]*\.\w)""",
    re.IGNORECASE | re.VERBOSE,
)

# A renderer may drop them, and join what they stood between; Python-Markdown marks places of its own by two of them.
CONTROL, REPLACEMENT = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]"), "\ufffd"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table.

    >>> table(["a", "b"], [[1, "x|y"]])
    ['| a | b |', '|---|---|', '| 1 | x&#124;y |']
    """
    first, *others = ("| " + " | ".join(cell(str(c)) for c in row) + " |" for row in (head, *rows))
    return [first, "|" + "---|" * len(head), *others]


def cell(text: str) -> str:
    """The text on one line for a table or a sentence, with an entity for each character that could be Markdown.

    >>> cell("0.5 [0.4, 0.6]"), cell("<img> `1|2`")
    ('0.5 [0.4, 0.6]', '&#60;img> &#96;1&#124;2&#96;')
    """
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};", _one_line(text))


def code(text: str, most: int | None = None) -> str:
    """The first `most` characters of the text as a code span on one line, outside a table.

    >>> code("a_1 < `b`")
    '`` a_1 < `b` ``'
    """
    text = _one_line(text)[:most]
    if not text:
        return ""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " * (text[0] == "`" or text[-1] == "`")
    return f"{ticks}{space}{text}{space}{ticks}"


def code_block(text: str) -> str:
    """The text as a block of code.

    >>> print(code_block("1 + 1"))
    ```text
    1 + 1
    ```
    """
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{CONTROL.sub(REPLACEMENT, text)}\n{fence}"


def _one_line(text: str) -> str:
    return CONTROL.sub(REPLACEMENT, " ".join(text.split()))
