"""Rewards for the form of a response: lines, markers and tags, length, repetition, language.

The ends of the steps of a response, in its text and in its tokens.

A step ends after a semicolon, after the breaks at the end of a line, or after a sentence; the closing tag of the
reasoning and the end of the response always end one. Blank steps belong to the step before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mathrl.core.errors import UserError

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


def soft_overlong(length: int, max_length: int, buffer: int, factor: float = 1.0) -> float:
    """0 up to `max_length - buffer` tokens, falling linearly to -`factor` at `max_length`, -`factor` beyond.

    Raises:
        UserError: `buffer` is not between 1 and `max_length`.

    >>> [soft_overlong(n, 100, 20) for n in (80, 90, 100, 120)]
    [0.0, -0.5, -1.0, -1.0]
    """
    if not 1 <= buffer <= max_length:
        raise UserError(f"overlong part: buffer={buffer} for a maximum length of {max_length}; give 1 up to that")
    excess = length - (max_length - buffer)
    return -factor * min(excess / buffer, 1.0) if excess > 0 else 0.0


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


_SCRIPTS = {
    "latin": re.compile(r"[A-Za-z\u00c0-\u024f]{2,}"),
    "han": re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]"),
    "kana": re.compile(r"[\u3040-\u30ff]"),
    "hangul": re.compile(r"[\uac00-\ud7af]"),
    "cyrillic": re.compile(r"[\u0400-\u04ff]{2,}"),
    "arabic": re.compile(r"[\u0600-\u06ff]{2,}"),
    "devanagari": re.compile(r"[\u0900-\u097f]{2,}"),
}
_LANGUAGES = dict.fromkeys("en fr de es".split(), "latin")
_LANGUAGES |= {"zh": "han", "ru": "cyrillic", "ar": "arabic", "hi": "devanagari", "ko": "hangul", "ja": "kana"}
_MATH = re.compile(
    r"\$[^$]{0,2000}\$|\\\(.{0,2000}?\\\)|\\\[.{0,2000}?\\\]|\\[A-Za-z]+|</?(?:think|answer)>", re.DOTALL
)


def language_share(response: str, language: str = "en") -> float:
    """The share of words (Han characters count as words) in the target language; 1 where there are none.

    Formulas, LaTeX commands and tags do not count.

    Raises:
        UserError: an unknown language.

    >>> language_share("So 3+4=7"), language_share("so 所以 thus", "en")
    (1.0, 0.5)
    """
    if language not in _LANGUAGES:
        raise UserError(f"language part: unknown language {language!r}; write one of {', '.join(sorted(_LANGUAGES))}")
    text = _MATH.sub(" ", response)
    counts = {script: len(pattern.findall(text)) for script, pattern in _SCRIPTS.items()}
    total = sum(counts.values())
    matching = counts[_LANGUAGES[language]] + (counts["han"] if language == "ja" else 0)
    return matching / total if total else 1.0


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
