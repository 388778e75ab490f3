"""Rewards for the form of a response: lines and an answer marker, or the R1-Zero tags."""

from __future__ import annotations

import re

_MARKER = re.compile(r"\\boxed|<answer>|####|\banswer\s*(?:is|:)|答案", re.IGNORECASE)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def format_lines(response: str, lines: float = 0.3, marker: float = 0.2) -> float:
    r"""`lines` for two or more non-empty lines plus `marker` for an answer marker.

    >>> format_lines("First.\nThe answer is 5"), format_lines("5")
    (0.5, 0.0)
    """
    several = sum(1 for line in response.splitlines() if line.strip()) >= 2
    return (lines if several else 0.0) + (marker if _MARKER.search(response) else 0.0)


def r1_tags(response: str, think_open: bool = False) -> float:
    """1 if the response is exactly <think>…</think><answer>…</answer>, each tag once, else 0.

    `think_open`: the prompt already ended in <think>, so the response begins inside it.

    >>> r1_tags("<think>1+1</think> <answer>2</answer>"), r1_tags("<answer>2</answer>")
    (1.0, 0.0)
    >>> r1_tags("1+1</think><answer>2</answer>", think_open=True)
    1.0
    """
    text = response.strip()
    if think_open and not text.startswith("<think>"):
        text = "<think>" + text
    if any(text.count(tag) != 1 for tag in _TAGS):
        return 0.0
    end_think, answer = text.find("</think>"), text.find("<answer>")
    between = text[end_think + len("</think>") : answer]
    ordered = text.startswith("<think>") and end_think < answer and text.endswith("</answer>")
    return 1.0 if ordered and not between.strip() else 0.0
