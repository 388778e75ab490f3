"""Braces in LaTeX texts."""


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
