"""Closed rational expressions to `Fraction`s, with bounds on size and time."""

from __future__ import annotations

import threading
import time
from fractions import Fraction
from math import comb, factorial, isqrt, prod

from mathrl.grading.syntax import Node


class Refused(ValueError):
    """The value is not formed here: too large, undefined, or of a kind without a rule."""


class TooLarge(Refused):
    """The value is defined, but too large to form."""


class OutOfTime(Refused):
    """The time of the comparison is over."""


MAX_BITS = 40_000
_TICKS = 63  # nodes between two looks at the clock, less one
_local = threading.local()


def start_clock(seconds: float) -> None:
    """Refuse this thread's evaluations once `seconds` have passed, until `stop_clock`.

    The seconds are processor time: a busy machine gives the same verdicts as an idle one.
    """
    _local.deadline = time.thread_time() + seconds


def stop_clock() -> None:
    _local.deadline = float("inf")


def check_clock() -> None:
    """Raises:
    OutOfTime: the time set by `start_clock` is over.
    """
    _local.ticks = ticks = getattr(_local, "ticks", 0) + 1
    if ticks & _TICKS:  # reading the clock costs more than a node's value
        return
    if time.thread_time() > getattr(_local, "deadline", float("inf")):
        raise OutOfTime("the comparison took too long")


def exact(node: Node) -> Fraction | None:
    """The rational value of a closed expression, or None where it is not rational or has no rule.

    Raises:
        Refused: the value would be too large, or is undefined (0/0).
    """
    kind, args = node.kind, node.args
    if kind == "num":
        value: Fraction = args[0]
        return value
    if kind in ("sym", "const", "app", "op", "pm"):
        return None
    if kind in ("add", "mul"):
        total = Fraction(0 if kind == "add" else 1)
        check_clock()
        for child in args[0]:
            part = exact(child)
            if part is None:
                return None
            total = total + part if kind == "add" else total * part
            check_size(total)
        return total
    if kind == "base":
        return in_base(args[0], args[1])
    values = [exact(arg) for arg in args if isinstance(arg, Node)]
    if any(value is None for value in values) or not values:
        return None
    return _exact_of(node, [value for value in values if value is not None])


def in_base(digits: str, base: int) -> Fraction:
    """The value of digits in a base, with or without a point.

    >>> in_base("0.11", 2)
    Fraction(3, 4)
    """
    integer, _, decimals = digits.partition(".")
    return Fraction(int(integer + decimals, base), base ** len(decimals))


def _exact_of(node: Node, values: list[Fraction]) -> Fraction | None:
    kind, first = node.kind, values[0]
    if kind == "div":
        if values[1] == 0:
            raise Refused("division by zero")
        return first / values[1]
    if kind == "pow":
        return _exact_power(first, values[1])
    if kind == "root":
        if values[1].denominator != 1 or not 1 <= values[1] <= 100:
            raise Refused("a root index out of range")
        return _exact_root(first, int(values[1]))
    if kind in ("fact", "fact2"):
        if first.denominator != 1 or first < 0:
            return None
        if first > 3000:
            raise Refused("a factorial too large")
        return Fraction(factorial(int(first)) if kind == "fact" else prod(range(int(first), 0, -2)))
    if kind == "binom":
        n, k = values
        if n.denominator != 1 or k.denominator != 1 or n < 0 or k < 0:
            return None
        if n > 3000:
            raise Refused("a binomial too large")
        return Fraction(comb(int(n), int(k)))
    if kind == "abs":
        return abs(first)
    if kind == "floor":
        return Fraction(first.__floor__())
    if kind == "ceil":
        return Fraction(first.__ceil__())
    if kind == "percent":
        return first / 100
    if kind == "func" and node.args[0] in ("max", "min"):
        return max(values) if node.args[0] == "max" else min(values)
    return None


def check_size(value: Fraction) -> None:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise TooLarge("a number too large")


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if base == 0 and exponent < 0:
        raise Refused("division by zero")
    if base == 0 and exponent == 0:
        raise Refused("zero to the power zero")
    if base in (0, 1):
        return base
    if exponent.denominator != 1:
        if exponent.denominator > 100:
            return None
        root = _exact_root(base, exponent.denominator)
        return None if root is None else _exact_power(root, Fraction(exponent.numerator))
    if base == -1:
        return Fraction(-1 if exponent.numerator % 2 else 1)
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if bits * abs(exponent.numerator) > MAX_BITS:
        raise TooLarge("a power too large")
    result: Fraction = base ** int(exponent)
    return result


def _exact_root(value: Fraction, index: int) -> Fraction | None:
    """The rational root where there is one; odd roots of negative numbers are the real ones."""
    if value < 0:
        if index % 2 == 0:
            return None
        root = _exact_root(-value, index)
        return None if root is None else -root
    above, below = _integer_root(value.numerator, index), _integer_root(value.denominator, index)
    return Fraction(above, below) if above is not None and below is not None else None


def _integer_root(n: int, index: int) -> int | None:
    if n < 2:
        return n
    if index == 2:
        root = isqrt(n)
        return root if root * root == n else None
    low, high = 1, 1 << (n.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**index <= n:
            low = middle
        else:
            high = middle - 1
    return low if low**index == n else None
