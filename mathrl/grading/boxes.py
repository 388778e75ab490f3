r"""The boxes of a response: \boxed{} and its relatives, balanced, from the end."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])")
_DENIED = re.compile(r"\bnot\s+\$?$")
_AFTER_BOX = re.compile(r"\s*\{")
_UNBRACED = re.compile(r"\s+(\\frac\{[^{}]*\}\{[^{}]*\}|-?\d[\d,.]*|[A-Za-z](?![A-Za-z]))")
_GLUE = re.compile(
    r"(?:\s|\$|,|;|、|，|\\[,;:! ()\[\]]|\\q?quad(?![a-z])|\\(?:text|mbox|textrm)\s*\{|\}|"
    r"[a-zA-Z](?:_\{?\w\}?)?\s*=|and\b|or\b|possibly\b|maybe\b|perhaps\b|和|或|&|\*|=)*"
)


def closing_brace(text: str, start: int) -> int:
    r"""The index of the brace that closes the one at `start`; -1 where none does. Escaped braces do not count.

    >>> closing_brace("{a{b}\\}c}d", 0)
    8
    """
    depth, i = 0, start
    while i < len(text):
        char = text[i]
        if char == "\\":
            i += 1
        elif char in "{}":
            depth += 1 if char == "{" else -1
            if depth == 0:
                return i
        i += 1
    return -1


def last_boxes(text: str) -> list[str] | None:
    """The different contents of the last run of boxes, which commas or "and" join; None where there is no box."""
    if "box" not in text:
        return None
    boxes: list[tuple[int, int, str]] = []
    position = len(text)
    for _ in range(40):  # from the end: only the last run counts
        start = max(text.rfind(command, 0, position) for command in ("\\boxed", "\\fbox", "\\framebox"))
        if start < 0:
            break
        position = start
        match = _BOX.match(text, start)
        if match is None or _DENIED.search(text, max(0, start - 12), start):
            continue
        box = _box_content(text, match.end())
        if box is None:
            continue
        end, content = box
        if boxes and not (end <= boxes[0][0]):
            boxes[0] = (start, end, content)  # a box around the box
            continue
        if boxes:
            glue = text[end : boxes[0][0]]
            if len(glue) > 60 or _GLUE.fullmatch(glue) is None:
                break
            if not glue.strip(" \n\t$") and content.strip() != boxes[0][2].strip():
                break
        boxes.insert(0, (start, end, content))
    if not boxes:
        return None
    return list(dict.fromkeys(_innermost(content.strip()) for _, _, content in boxes))


def _innermost(content: str) -> str:
    """The content of a box that holds nothing but another box."""
    match = _BOX.match(content)
    box = _box_content(content, match.end()) if match else None
    return _innermost(box[1].strip()) if box is not None and box[0] == len(content) else content


def all_boxes(text: str) -> list[str]:
    r"""The contents of all boxes, outermost boxes alone; none where there are more than 40.

    >>> all_boxes("(a) $\\boxed{3}$ (b) $\\boxed{5}$")
    ['3', '5']
    """
    contents, end = [], 0
    for i, match in enumerate(_BOX.finditer(text)):
        if i == 40:
            return []
        box = _box_content(text, match.end()) if match.start() >= end else None
        if box is not None:
            end = box[0]
            contents.append(_innermost(box[1].strip()))
    return contents


def _box_content(text: str, start: int) -> tuple[int, str] | None:
    """The end and content of a box whose command ends at `start`; None where its brace never closes."""
    opening = _AFTER_BOX.match(text, start)
    if opening is None:
        bare = _UNBRACED.match(text, start)
        return (bare.end(), bare[1]) if bare else None
    begin = opening.end()
    end = closing_brace(text, begin - 1)
    if end >= 0:
        return end + 1, text[begin:end]
    end = text.find("\\}", begin)  # \boxed{185\}: the closing brace was escaped
    if end >= 0 and end - begin < 60 and "{" not in text[begin:end]:
        return end + 2, text[begin:end]
    return None
