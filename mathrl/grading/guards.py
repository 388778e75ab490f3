"""What may not reach the symbolic engine: long, deep, towering or code-like text.

These checks look at characters only, so they cost microseconds and cannot be outwitted by a parser.
"""

from __future__ import annotations

import re

MAX_LENGTH = 400
MAX_NESTING = 12
_TOO_LARGE = (
    (re.compile(r"\d\s*\^\s*\{?\s*\d+\s*\^|\^[^ ,;]*\^[^ ,;]*\^|\*\*[^ ,;]*\*\*"), "a tower of exponents"),
    (re.compile(r"(?:\^|\*\*)\s*[{(]?\s*-?\s*\d{4,}"), "an exponent too large"),
    (re.compile(r"\^\s*\{?\s*\d+\s*\}?\s*\)?\s*!|\d{4,}\s*[})]*\s*!|!!|!\s*[})]*\s*!"), "a factorial too large"),
)
_CODE = re.compile(r"__|[\"'`;@#]|\b(?:import|lambda|eval|exec|open|getattr|globals|print|exit|raise|class|system)\b")
_BASE = re.compile(r"\d\s*\}?\s*_")
_BOUND = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim|Gamma|zeta|binom|bigcup|bigcap)(?![a-zA-Z])")
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}(?![A-Za-z}])")
_MATH = re.compile(r"[\d\\^_=<>+*/|]")


def refusal(answer: str, truth: str) -> str | None:
    """Why a pair may not go to the symbolic engine, or None if it may.

    >>> refusal("10^{10^{10^{10}}}", "42")
    'a tower of exponents'
    """
    for text in (answer, truth):
        if len(text) > MAX_LENGTH:
            return "too long"
        depth = _nesting(text)
        if depth is None:
            return "unbalanced brackets"
        if depth > MAX_NESTING:
            return "nested too deeply"
        for pattern, reason in _TOO_LARGE:
            if pattern.search(text):
                return reason
        if not _MATH.search(text):
            return "no mathematics in it"
    if len(_WORD.findall(answer)) > 1 and "\\text" not in truth:
        return "words where mathematics was expected"
    if _BASE.search(answer) or _BASE.search(truth):
        return "digits in a base, which the engine would overlook"
    if _CODE.search(answer):
        return "it looks like code"
    if _BOUND.search(answer) and not _BOUND.search(truth):
        return "a bound operator that the truth does not have"
    return None


def _nesting(text: str) -> int | None:
    """How deep brackets go, or None where they do not balance (of whatever kind: [1, 2) is an interval)."""
    depth = deepest = 0
    for char in text:
        if char in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "})]":
            depth -= 1
            if depth < 0:
                return None
    return deepest if depth == 0 else None
