"""Countdown: an expression that reaches the target and uses each number exactly once.

Own parser over exact rationals; nothing is evaluated as code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fractions import Fraction

_TOKEN = re.compile(r"\s*(?:(\d{1,12})|([-+*/()]))")
_SPELLING = str.maketrans({"×": "*", "÷": "/", "−": "-", "·": "*", "⋅": "*", "–": "-", "（": "(", "）": ")"})
_COMMANDS = (("\\times", "*"), ("\\cdot", "*"), ("\\div", "/"), ("\\left", ""), ("\\right", ""), ("$", ""))
MAX_EXPRESSION = 400
MAX_DEPTH = 30


class NotAnExpression(ValueError):
    """The text is not an arithmetic expression over + - * / and brackets."""


def evaluate_expression(text: str) -> tuple[Fraction, list[int]]:
    """The exact value and the integers used, in order.

    Raises:
        NotAnExpression: anything but numbers, + - * / and brackets; division by zero; too long or too deep.

    >>> evaluate_expression("(3 + 5) / 2")
    (Fraction(4, 1), [3, 5, 2])
    """
    for command, symbol in _COMMANDS:
        text = text.replace(command, symbol)
    text = text.translate(_SPELLING).strip()
    if len(text) > MAX_EXPRESSION:
        raise NotAnExpression("too long")
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotAnExpression(f"unexpected {text[position]!r}")
        tokens.append(match[1] or match[2])
        position = match.end()
    reader = _Reader(tokens)
    value = reader.sum(0)
    if reader.i != len(tokens):
        raise NotAnExpression(f"unexpected {tokens[reader.i]!r}")
    return value, reader.used


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, ""]
        self.i = 0
        self.used: list[int] = []

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while self.tokens[self.i] in ("+", "-"):
            self.i += 1
            sign = 1 if self.tokens[self.i - 1] == "+" else -1
            value += sign * self.product(depth)
        return value

    def product(self, depth: int) -> Fraction:
        value = self.atom(depth)
        while self.tokens[self.i] in ("*", "/"):
            self.i += 1
            divide = self.tokens[self.i - 1] == "/"
            right = self.atom(depth)
            if divide and right == 0:
                raise NotAnExpression("division by zero")
            value = value / right if divide else value * right
        return value

    def atom(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise NotAnExpression("nested too deeply")
        token = self.tokens[self.i]
        self.i += 1
        if token == "(":
            value = self.sum(depth + 1)
            if self.tokens[self.i] != ")":
                raise NotAnExpression("an unclosed bracket")
            self.i += 1
            return value
        if token == "-":
            return -self.atom(depth + 1)
        if not token.isdigit():
            raise NotAnExpression(f"unexpected {token or 'end'!r}")
        self.used.append(int(token))
        return Fraction(int(token))


def countdown_correct(expression: str, numbers: Sequence[int], target: int | Fraction) -> tuple[bool, str]:
    """Whether the expression reaches the target with each number exactly once; else why not.

    >>> countdown_correct("99 + 26 / 26", [99, 26, 26], 100), countdown_correct("4 + 4", [4, 5], 8)
    ((True, ''), (False, 'uses 4, 4 instead of 4, 5'))
    """
    left, equals, right = expression.partition("=")
    if equals and "=" not in right and right.strip() != str(target):
        return False, f"claims {right.strip()[:20]!r} instead of {target}"
    try:
        value, used = evaluate_expression(left)
    except NotAnExpression as error:
        return False, str(error)
    if sorted(used) != sorted(numbers):
        return False, f"uses {_spell(used)} instead of {_spell(numbers)}"
    return (True, "") if value == target else (False, f"gives {value} instead of {target}")


def _spell(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers)[:8])


def read_truth(truth: str) -> tuple[list[int], int] | None:
    """The numbers and target of a Countdown truth, or None for any other truth.

    >>> read_truth('{"numbers": [4, 6], "target": 24}')
    ([4, 6], 24)
    """
    if not truth.lstrip().startswith("{") or '"target"' not in truth:
        return None
    try:
        row = json.loads(truth)
    except ValueError:
        return None
    numbers = row.get("numbers", row.get("nums"))
    target = row.get("target")
    if not isinstance(numbers, list) or not isinstance(target, int):
        return None
    return [int(number) for number in numbers], target
