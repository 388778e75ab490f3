"""Whether two expressions are equal, by evaluation: exactly where they are rational, else to 48 digits.

1. Closed rational expressions are `Fraction`s, compared exactly.
2. Rational functions are compared at random points of the field of 2**61 - 1 elements (Schwartz and Zippel:
   two different ones of degree d agree at a point with probability below d / 2**61).
3. With radicals, logarithms or trigonometric functions: at random rational points of several sign patterns
   in 160-bit arithmetic, where sums that cancel are recognised as zero. Points outside the real domain are
   passed over, so sqrt(x)sqrt(y) equals sqrt(xy), and sqrt(x^2) is |x|.

Sizes are bounded before anything is computed: `Refused` says why a value is not formed.
"""

from __future__ import annotations

from fractions import Fraction

from mathrl.grading.exact import Refused, exact
from mathrl.grading.finite_field import FIELD_KINDS, hash_text, modular
from mathrl.grading.numeric import Numeric, OutsideDomain, close
from mathrl.grading.syntax import Node, key, kinds, symbols

TASK_OPERATORS = frozenset("sum prod int iint iiint oint lim derivative det gcd lcm mod bigcap limsup liminf".split())
_PATTERNS = ("positive", "small", "negative", "mixed", "large", "integer", "whole")


def same_expression(a: Node, b: Node) -> bool | None:
    """Whether two expressions are equal; None where this cannot be settled here.

    Raises:
        Refused: a closed expression is undefined or too large to form.

    >>> from mathrl.grading.parser import parse
    >>> same_expression(parse("(x+1)^2"), parse("x^2+2x+1"))
    True
    """
    if a == b or key(a) == key(b):
        return True
    both = kinds(a) | kinds(b)
    if "op" in both or "ellipsis" in both or "pm" in both:
        return None
    try:
        if not symbols(a) and not symbols(b):
            left, right = exact(a), exact(b)
            if left is not None and right is not None:
                return left == right
        for node in (a, b):
            if not symbols(node):
                _must_exist(node)
        if both <= FIELD_KINDS:
            try:
                return all(modular(a, point) == modular(b, point) for point in (1, 2))
            except Refused:
                pass
        natural = _at_points(a, b, 0)
        if natural is not True and "func:log" in both:
            return True if _at_points(a, b, 10) else natural
        return natural
    except (OverflowError, ZeroDivisionError) as error:
        raise Refused("a value out of range") from error


def _must_exist(node: Node) -> None:
    """Raises:
    Refused: a closed expression is undefined or too large, whatever it is compared with.
    """
    if "const:inf" in kinds(node) or exact(node) is not None:
        return
    try:
        Numeric({}, False, 0)(node)
    except OutsideDomain as error:
        raise Refused(str(error)) from error


def _at_points(a: Node, b: Node, log_base: int) -> bool | None:
    names = symbols(a) | symbols(b)
    imaginary = "const:i" in kinds(a) | kinds(b)
    modes = ((True, _points(names)), (False, _points(names)[:2])) if names else ((False, [{}]),)
    for real, points in modes:
        if real and imaginary:
            continue
        valid = 0
        for values in points:
            evaluate = Numeric(values, real, log_base)
            try:
                left, right = evaluate(a), evaluate(b)
            except OutsideDomain:
                continue
            except Refused:
                if not values:
                    raise
                continue
            if not close(left, right, evaluate.ctx):
                return False
            valid += 1
        if valid >= 2 or (valid and not names):
            return True
    return None


def _points(names: frozenset[str]) -> list[dict[str, Fraction]]:
    """Random rational points: positive, inside (0, 1), negative, mixed, above 1, and positive integers."""
    points = []
    for pattern in _PATTERNS:
        values = {}
        for name in names:
            random = hash_text(f"{pattern}:{name}")
            small = Fraction(random % 4093 + 1, 4099)
            if pattern == "positive":
                values[name] = 2 * small + Fraction(1, 7)
            elif pattern == "small":
                values[name] = small
            elif pattern == "negative":
                values[name] = -2 * small
            elif pattern == "mixed":
                values[name] = (3 * small) * (1 if random & 4096 else -1)
            elif pattern == "large":
                values[name] = 1 + 5 * small
            else:
                values[name] = Fraction(random % (19 if pattern == "integer" else 7) + 3)
        points.append(values)
    return points
