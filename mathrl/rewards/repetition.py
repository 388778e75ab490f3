"""Repetition penalty: the share of repeated n-grams (Demystifying Long CoT, arXiv:2502.03373)."""

from __future__ import annotations

import re

from mathrl.core.errors import UserError

_WORD = re.compile(r"[\u3400-\u9fff]|[^\s\u3400-\u9fff]+")


def repetition_penalty(response: str, n: int = 4, maximum: float = 1.0) -> float:
    """-`maximum` times the share of repeated n-grams of words (Han characters are words); 0 without n-grams.

    Raises:
        UserError: n is below 1.

    >>> repetition_penalty("a b a b a b", n=2), repetition_penalty("one two three", n=2)
    (-0.6, 0.0)
    """
    if n < 1:
        raise UserError(f"repetition part: n={n}; give 1 or more")
    words = _WORD.findall(response)
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    repeated = len(grams) - len(set(grams))
    return -maximum * repeated / len(grams) if repeated else 0.0
