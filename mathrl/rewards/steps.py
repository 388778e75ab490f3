r"""The ends of the steps of a response, in its text and in its tokens.

A step ends after a semicolon, after the breaks at the end of a line, or after a sentence; the closing tag of the
reasoning and the end of the response always end one. Blank steps belong to the step before.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

_ENDS = {
    "semicolon": re.compile(r";|</think>"),
    "line": re.compile(r"\n+|</think>"),
    "sentence": re.compile(r"[.!?]+(?=\s|$)|\n+|</think>"),
}


def text_ends(text: str, rule: str) -> list[int]:
    """The index after the last character of each step; the last is len(text).

    >>> text_ends("7+5=12;12-3=9</think>9", "semicolon")
    [7, 21, 22]
    """
    ends: list[int] = []
    for end in sorted({match.end() for match in _ENDS[rule].finditer(text)} | {len(text)}):
        if ends and not text[ends[-1] : end].strip():
            ends[-1] = end
        else:
            ends.append(end)
    return ends


def step_ends(tokens: Sequence[int], tokenizer: Any, rule: str) -> tuple[int, ...]:
    """The index of the last token of each step; the last token of the response is always the last of them.

    A token that ends one step and begins the next belongs to the one that it ends.

    Example:
        step_ends(ids of "1+1=2;2+1=3" and the end token, tokenizer, "semicolon") == (5, 11)
    """
    pieces = [tokenizer.decode([token], skip_special_tokens=True) for token in tokens]
    text = tokenizer.decode(list(tokens), skip_special_tokens=True)
    if "".join(pieces) == text:
        reached = list(accumulate(map(len, pieces)))
    else:  # tokens that are parts of a character, or that change with what is before them
        reached = [len(tokenizer.decode(list(tokens[: n + 1]), skip_special_tokens=True)) for n in range(len(tokens))]
    places = {next(n for n, count in enumerate(reached) if count >= end) for end in text_ends(text, rule)[:-1]}
    return (*sorted(places - {len(tokens) - 1}), len(tokens) - 1)
