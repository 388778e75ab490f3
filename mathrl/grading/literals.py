"""Number tokens and numbers side by side: mixed numbers, bases, repeating decimals."""

from __future__ import annotations

from fractions import Fraction

from mathrl.grading.lexer import ParseError, Token
from mathrl.grading.syntax import Node, num


def literal(text: str) -> Node:
    """The node of a number token; exponents beyond the size of any answer are refused."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > 2000 or len(exponent) > 6 or abs(int(exponent or 0)) > 2000:
        raise ParseError("a number too large")
    places = len(mantissa.partition(".")[2])
    digits = len(mantissa.replace(".", "").lstrip("0"))
    value = Fraction(("0" + mantissa) if mantissa.startswith(".") else mantissa)
    if exponent:
        return num(value * Fraction(10) ** int(exponent))
    return num(value, places, digits)


def ellipsis_decimal(text: str) -> Node:
    """0.333…: the shortest block that repeats to the end, at least twice, and for three digits or more."""
    integer, _, digits = text.partition(".")
    for size in range(1, len(digits) // 2 + 1):
        block = digits[-size:]
        count = 1
        while digits[: len(digits) - size * count].endswith(block):
            count += 1
        if count >= 2 and count * size >= 3:
            fixed = digits[: len(digits) - size * count]
            base = Fraction(f"{integer}.{fixed}0")
            return num(base + Fraction(int(block), (10**size - 1) * 10 ** len(fixed)))
    raise ParseError("a decimal that goes on")


def in_base(node: Node, base: int) -> Node:
    value, places, _ = node.args
    digits = str(value.numerator) if not places else f"{float(value):.{places}f}"
    if len(digits) > 15 and places:
        raise ParseError("a long fraction in another base")
    if not 2 <= base <= 36 or any(int(d) >= base for d in digits if d.isdigit()):
        raise ParseError("not a number in that base")
    return Node("base", (digits, base))


def product(left: Node, right: Node) -> Node:
    factors = left.args[0] if left.kind == "mul" else (left,)
    return Node("mul", ((*factors, right),))


def adjacent(left: Node, right: Node, token: Token) -> Node:
    """Two factors side by side: a mixed number, a unit letter, or a product."""
    if _is_integer(left) and right.kind == "div" and _is_integer(right.args[0]) and _is_integer(right.args[1]):
        below = right.args[1].args[0]
        if below == 0:
            raise ParseError("a denominator of zero")
        part = right.args[0].args[0] / below
        integer = left.args[0]
        if 0 < part < 1:
            return num(integer + part if integer >= 0 else integer - part)
    if token.kind == "num":
        last = left.args[0][-1] if left.kind == "mul" else left
        if last.kind not in ("pow", "fact", "root"):
            raise ParseError("two numbers side by side")
    return product(left, right)


def _is_integer(node: Node) -> bool:
    return node.kind == "num" and bool(node.args[0].denominator == 1) and node.args[1] == 0


def mixed(tokens: list[Token]) -> list[Token]:
    """1 1/2 in plain text: number, space, number, slash, number becomes number, (number / number)."""
    for i in range(len(tokens) - 4, -1, -1):
        integer, above, slash, below = tokens[i : i + 4]
        if (
            integer.kind == above.kind == below.kind == "num"
            and slash.value == "/"
            and above.spaced
            and "." not in integer.value + above.value + below.value
        ):
            group = [Token("cmd", "frac", True)]
            for token in (above, below):
                group += [Token("op", "{", False), token._replace(spaced=False), Token("op", "}", False)]
            tokens = [*tokens[: i + 1], *group, *tokens[i + 4 :]]
    return tokens
