"""Whether two expressions are equal, by evaluation: exactly where they are rational, else to 48 digits.

1. Closed rational expressions are `Fraction`s, compared exactly.
2. Rational functions are compared at random points of the field of 2**61 - 1 elements (Schwartz and Zippel:
   two different ones of degree d agree at a point with probability below d / 2**61).
3. With radicals, logarithms or trigonometric functions: at random rational points of several sign patterns in
   160-bit arithmetic, where sums that cancel are recognised as zero. Points outside the real domain are passed
   over, so sqrt(x)sqrt(y) equals sqrt(xy), and sqrt(x^2) is |x|.

Sizes are bounded before anything is computed: `Refused` says why a value would not be formed.
"""

from __future__ import annotations

import threading
import time
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from math import comb, factorial, isqrt
from typing import Any

from mathrl.rewards.syntax import Node, key, kinds, symbols


class Refused(ValueError):
    """The value is not formed here: too large, undefined, or of a kind without a rule."""


class OutsideDomain(ValueError):
    """The point is outside the real domain of the expression."""


MAX_BITS = 40_000
_PRIME = (1 << 61) - 1
_PRECISION = 160
_local = threading.local()


def start_clock(seconds: float) -> None:
    """From now on this thread's evaluations are refused after so many seconds (until the next call)."""
    _local.deadline = time.monotonic() + seconds


def check_clock() -> None:
    """Raises:
    Refused: the time set by `start_clock` is over.
    """
    if time.monotonic() > getattr(_local, "deadline", float("inf")):
        raise Refused("the comparison took too long")


def _context() -> Any:
    """This thread's own mpmath context (its precision is never changed, so threads cannot disturb it)."""
    context = getattr(_local, "context", None)
    if context is None:
        from mpmath.ctx_mp import MPContext  # 60 ms, and most pairs never need it

        context = MPContext()
        context.prec = _PRECISION
        _local.context = context
    return context


# -- exact rationals ------------------------------------------------------------------------------------------


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
            _check(total)
        return total
    if kind == "base":
        return Fraction(int(args[0], args[1]))
    values = [exact(arg) for arg in args if isinstance(arg, Node)]
    if any(value is None for value in values) or not values:
        return None
    return _exact_of(node, [value for value in values if value is not None])


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
    if kind == "fact":
        if first.denominator != 1 or first < 0:
            return None
        if first > 3000:
            raise Refused("a factorial too large")
        return Fraction(factorial(int(first)))
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


def _check(value: Fraction) -> None:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise Refused("a number too large")


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
        raise Refused("a power too large")
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


# -- the finite field -----------------------------------------------------------------------------------------

_FIELD_KINDS = frozenset(["num", "sym", "add", "mul", "div", "pow", "percent", "app", "base"])


def _residue(name: str, point: int) -> int:
    """A fixed pseudo-random residue for a symbol; the same name always has the same value at a point."""
    state = hash_text(f"{point}:{name}")
    return state % (_PRIME - 2) + 1


@lru_cache(maxsize=4096)
def hash_text(text: str) -> int:
    """A stable 64-bit hash (Python's own is salted per process)."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def modular(node: Node, point: int) -> int:
    """The value in the field of 2**61 - 1 elements at a random point.

    Raises:
        Refused: a kind without a rule there, a power that is no integer, or a pole.
    """
    kind, args = node.kind, node.args
    if kind == "num":
        value: Fraction = args[0]
        if value.denominator == 1:
            return value.numerator % _PRIME
        return value.numerator * pow(value.denominator, -1, _PRIME) % _PRIME
    if kind == "sym":
        return _residue(args[0], point)
    if kind == "app":
        return _residue(key(node), point)
    if kind == "add":
        return sum(modular(child, point) for child in args[0]) % _PRIME
    if kind == "mul":
        product = 1
        for child in args[0]:
            product = product * modular(child, point) % _PRIME
        return product
    if kind == "div":
        below = modular(args[1], point)
        if below == 0:
            raise Refused("a pole")
        return modular(args[0], point) * pow(below, -1, _PRIME) % _PRIME
    if kind == "pow":
        exponent = exact(args[1])
        if exponent is None or exponent.denominator != 1:
            raise Refused("a power that is no integer")
        base = modular(args[0], point)
        if base == 0 and exponent <= 0:
            raise Refused("a pole")
        return pow(base, int(exponent), _PRIME)
    if kind == "percent":
        return modular(args[0], point) * pow(100, -1, _PRIME) % _PRIME
    if kind == "base":
        return int(args[0], args[1]) % _PRIME
    raise Refused(kind)


# -- 160 bits -------------------------------------------------------------------------------------------------

_FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "coth": "coth",
}  # fmt: skip


class _Numeric:
    """Evaluates a tree at one point. `real` refuses points where a radicand or logarithm leaves the reals."""

    def __init__(self, values: dict[str, Fraction], real: bool, log_base: int) -> None:
        self.ctx = _context()
        self.values = values
        self.real = real
        self.log_base = log_base

    def rational(self, value: Fraction) -> Any:
        return self.ctx.mpf(value.numerator) / value.denominator

    def __call__(self, node: Node) -> Any:
        kind, args, ctx = node.kind, node.args, self.ctx
        check_clock()
        if kind == "num":
            _check(args[0])
            return self.rational(args[0])
        if kind == "sym":
            return self.rational(self.values[args[0]])
        if kind == "app":
            return self.rational(Fraction(hash_text(key(node)) % 9973 + 17, 5003))
        if kind == "const":
            if args[0] == "inf":
                raise Refused("infinity in an expression")
            if args[0] == "i":
                return ctx.mpc(0, 1)
            return +ctx.pi if args[0] == "pi" else +ctx.e
        if kind == "add":
            return self.add([self(child) for child in args[0]])
        if kind == "mul":
            product = ctx.one
            for child in args[0]:
                product = product * self(child)
            return self.bounded(product)
        if kind == "div":
            below = self(args[1])
            if below == 0:
                raise Refused("division by zero")
            return self(args[0]) / below
        if kind == "pow":
            return self.power(self(args[0]), args[1])
        if kind == "root":
            index = exact(args[1])
            if index is None or index.denominator != 1 or not 1 <= index <= 1000:
                raise Refused("a root index out of range")
            return self.rational_power(self(args[0]), Fraction(1, int(index)))
        if kind == "func":
            return self.function(args)
        return self.other(node)

    def other(self, node: Node) -> Any:
        kind, ctx = node.kind, self.ctx
        if kind == "base":
            return ctx.mpf(int(node.args[0], node.args[1]))
        if kind not in ("abs", "floor", "ceil", "percent", "degree", "fact", "binom"):
            raise Refused(kind)
        value = self(node.args[0])
        if kind == "abs":
            return abs(value)
        if kind in ("floor", "ceil"):
            if abs(value) > 2**60:
                raise Refused("a value too large")
            return ctx.floor(value) if kind == "floor" else ctx.ceil(value)
        if kind == "percent":
            return value / 100
        if kind == "degree":
            return value * ctx.pi / 180
        if not ctx.isint(value) or not 0 <= value <= 3000:
            raise OutsideDomain("a factorial of what is no small integer")
        if kind == "fact":
            return ctx.factorial(value)
        below = self(node.args[1])
        if not ctx.isint(below) or not 0 <= below <= 3000:
            raise OutsideDomain("a binomial of what is no small integer")
        return ctx.binomial(value, below)

    def add(self, terms: list[Any]) -> Any:
        """The sum; what cancels to the last bits is zero."""
        total = self.ctx.zero
        largest = self.ctx.zero
        for term in terms:
            total = total + term
            size = abs(term)
            if size > largest:
                largest = size
        return self.ctx.zero if abs(total) < self.ctx.ldexp(largest, 24 - _PRECISION) else total

    def bounded(self, value: Any) -> Any:
        if value != 0 and not -MAX_BITS < self.ctx.mag(value) < MAX_BITS:
            raise Refused("a value too large")
        return value

    def power(self, base: Any, exponent_node: Node) -> Any:
        exponent = exact(exponent_node)
        if exponent is not None:
            return self.rational_power(base, exponent)
        value = self(exponent_node)
        if base == 0:
            raise Refused("a power of zero")
        if self.real and base < 0:
            if not self.ctx.isint(value):
                raise OutsideDomain("a power of a negative number")
            return self.rational_power(base, Fraction(int(value)))
        size = self.ctx.log(base) * value
        if abs(size) > MAX_BITS / 2:
            raise Refused("a power too large")
        return self.ctx.exp(size)

    def rational_power(self, base: Any, exponent: Fraction) -> Any:
        ctx = self.ctx
        if base == 0:
            if exponent <= 0:
                raise Refused("division by zero")
            return base
        if abs(exponent) * (abs(ctx.mag(base)) + 1) > MAX_BITS:
            raise Refused("a power too large")
        if exponent.denominator == 1:
            return base ** int(exponent)
        if ctx.im(base) == 0 and ctx.re(base) < 0:
            base = ctx.re(base)
            if exponent.denominator % 2:
                root = ctx.root(-base, exponent.denominator) ** abs(exponent.numerator)
                root = root if exponent.numerator > 0 else 1 / root
                return -root if exponent.numerator % 2 else root
            if self.real:
                raise OutsideDomain("an even root of a negative number")
        return ctx.exp(ctx.log(base) * exponent.numerator / exponent.denominator)

    def function(self, args: tuple[Any, ...]) -> Any:
        name, ctx = args[0], self.ctx
        value = self(args[1])
        if name in ("max", "min"):
            return (max if name == "max" else min)([value, *(self(arg) for arg in args[2:])])
        if name == "exp":
            if abs(value) > MAX_BITS / 2:
                raise Refused("a power too large")
            return ctx.exp(value)
        if name in ("ln", "log", "log10"):
            return self.logarithm(name, value, self(args[2]) if len(args) > 2 else None)
        method = _FUNCTIONS.get(name)
        if method is None:
            raise Refused(str(name))
        if abs(value) > 1e12 or (name in ("sinh", "cosh", "tanh") and abs(value) > 1e4):
            raise Refused("an argument too large")
        if value == 0 and name in ("cot", "csc", "coth"):
            raise Refused("a pole")
        if self.real and name in ("arcsin", "arccos") and abs(value) > 1:
            raise OutsideDomain("an inverse function outside its domain")
        try:
            result = getattr(ctx, method)(value)
        except (ZeroDivisionError, ValueError) as error:
            raise Refused("a pole") from error
        if name in ("sin", "cos", "tan", "cot") and abs(result) < ctx.ldexp(ctx.one, 40 - _PRECISION):
            return ctx.zero
        return result

    def logarithm(self, name: str, value: Any, base: Any) -> Any:
        ctx = self.ctx
        if value == 0:
            raise Refused("the logarithm of zero")
        if self.real and value < 0:
            raise OutsideDomain("the logarithm of a negative number")
        result = ctx.log(value)
        if base is not None:
            if base in (0, 1):
                raise Refused("a logarithm to the base 0 or 1")
            return result / ctx.log(base)
        if name == "log10" or (name == "log" and self.log_base == 10):
            return result / ctx.log(10)
        return result


_PATTERNS = ("positive", "small", "negative", "mixed", "large", "integer", "whole")


def _points(names: frozenset[str]) -> list[dict[str, Fraction]]:
    """Random rational points: all positive, inside (0, 1), negative, mixed, above 1, and positive integers."""
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


def _close(left: Any, right: Any, ctx: Any) -> bool:
    size = max(abs(left), abs(right))
    return bool(abs(left - right) <= ctx.ldexp(size, -112))


def _at_points(a: Node, b: Node, log_base: int) -> bool | None:
    names = symbols(a) | symbols(b)
    imaginary = "const:i" in kinds(a) | kinds(b)
    modes = ((True, _points(names)), (False, _points(names)[:2])) if names else ((False, [{}]),)
    for real, points in modes:
        if real and imaginary:
            continue
        valid = 0
        for values in points:
            evaluate = _Numeric(values, real, log_base)
            try:
                left, right = evaluate(a), evaluate(b)
            except OutsideDomain:
                continue
            except Refused:
                if not values:
                    raise
                continue
            if not _close(left, right, evaluate.ctx):
                return False
            valid += 1
        if valid >= 2 or (valid and not names):
            return True
    return None


def numeric_value(node: Node) -> Any:
    """The 160-bit value of a closed expression (an mpf or mpc).

    Raises:
        Refused: as `exact`.
    """
    if symbols(node):
        raise Refused("not closed")
    try:
        return _Numeric({}, False, 0)(node)
    except OutsideDomain as error:
        raise Refused(str(error)) from error


TASK_OPERATORS = frozenset(
    [
        "sum",
        "prod",
        "int",
        "iint",
        "iiint",
        "oint",
        "lim",
        "derivative",
        "det",
        "gcd",
        "lcm",
        "mod",
        "bigcap",
        "limsup",
        "liminf",
    ]
)


def same_expression(a: Node, b: Node) -> bool | None:
    """Whether two expressions are equal; None where this cannot be settled here.

    Raises:
        Refused: a closed expression is undefined or too large to form.

    >>> from mathrl.rewards.parser import parse
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
        if both <= _FIELD_KINDS:
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
