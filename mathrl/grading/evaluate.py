"""The value of an expression: exactly as a `Fraction`, in a prime field, or in 160-bit arithmetic at a point.

Sizes and processor time are bounded before anything is computed: `Refused` says why a value is not formed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from fractions import Fraction
from math import ceil, comb, factorial, floor, isqrt, prod
from typing import Any

from mathrl.core.hashing import hash_text
from mathrl.grading.syntax import Node, is_expression, key, symbols


class Refused(ValueError):
    """The value is not formed here: too large, undefined, or of a kind without a rule."""


class TooLarge(Refused):
    """The value is defined, but too large to form."""


class OutOfTime(Exception):
    """The time of the comparison is over; unlike `Refused` it says nothing of a value, so the comparison ends."""


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
    """Raises OutOfTime where the time set by `start_clock` is over."""
    _local.ticks = ticks = getattr(_local, "ticks", 0) + 1
    if ticks & _TICKS:  # reading the clock costs more than a node's value
        return
    if time.thread_time() > getattr(_local, "deadline", float("inf")):
        raise OutOfTime("the comparison took too long")


def exact_value(node: Node) -> Fraction | None:
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
            part = exact_value(child)
            if part is None:
                return None
            total = total + part if kind == "add" else total * part
            check_size(total)
        return total
    if kind == "base":
        return in_base(args[0], args[1])
    values = [exact_value(arg) for arg in args if isinstance(arg, Node)]
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
    if kind in ("floor", "ceil"):
        return Fraction(floor(first) if kind == "floor" else ceil(first))
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
        root = _exact_root(base, exponent.denominator) if exponent.denominator <= 100 else None
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


class OutsideDomain(ValueError):
    """The point is outside the real domain of the expression."""


UNKNOWN = "unknown functions"  # the name in a point by which they differ from point to point
PRECISION = 160
HIGH_PRECISION = 1280
_MARGIN = 48  # the last bits, which rounding may change
# A symbol's value: a rational, or the real and the imaginary part.
Point = dict[str, Fraction | tuple[Fraction, Fraction]]


def _context() -> Any:
    """The mpmath context of this thread."""
    context = getattr(_local, "context", None)
    if context is None:
        from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]  # 60 ms, seldom needed

        context = MPContext()
        context.prec = PRECISION
        _local.context = context
    return context


def evaluate(node: Node, values: Point, real: bool, log_base: int, precision: int = PRECISION) -> Any:
    """The value of a tree at a point (an mpf or mpc). Where terms cancel, it is computed with more bits.

    Raises:
        OutsideDomain: `real`, and a radicand or logarithm leaves the reals there.
        Refused: as `exact_value`; also where more cancels than the bits can show.
    """
    numeric = Numeric(values, real, log_base)
    try:
        numeric.ctx.prec = precision
        value = numeric(node)
        if numeric.lost <= PRECISION - 112 - 16 or precision == HIGH_PRECISION:
            return value
        numeric.ctx.prec = HIGH_PRECISION
        return numeric(node)
    finally:
        numeric.ctx.prec = PRECISION


_ORDER: dict[str, Callable[[int], bool]] = {  # of the sign of left - right
    "<": lambda sign: sign < 0,
    ">": lambda sign: sign > 0,
    "<=": lambda sign: sign <= 0,
    ">=": lambda sign: sign >= 0,
    "=": lambda sign: sign == 0,
    "!=": lambda sign: sign != 0,
}
_TRIGONOMETRIC = frozenset("sin cos tan cot sec csc".split())
_HYPERBOLIC = frozenset("sinh cosh tanh coth sech csch".split())
_FUNCTIONS = {name: name for name in _TRIGONOMETRIC | _HYPERBOLIC}
_FUNCTIONS |= {f"arc{name}": f"a{name}" for name in _TRIGONOMETRIC | _HYPERBOLIC}
UNIT_BRANCHES = frozenset("arcsin arccos arcsec arccsc arccosh arctanh arccoth arcsech".split())


class Numeric:
    """Evaluates a tree at one point. `real` refuses points where a radicand or logarithm leaves the reals."""

    def __init__(self, values: Point, real: bool, log_base: int, ctx: Any = None) -> None:
        self.ctx = ctx or _context()
        self.lost = 0  # bits that the worst cancellation took
        self.values = values
        self.real = real
        self.log_base = log_base

    def rational(self, value: Fraction) -> Any:
        return self.ctx.mpf(value.numerator) / value.denominator

    def __call__(self, node: Node) -> Any:
        kind, args, ctx = node.kind, node.args, self.ctx
        check_clock()
        if kind == "num":
            check_size(args[0])
            return self.rational(args[0])
        if kind == "sym":
            value = self.values[args[0]]
            return ctx.mpc(*map(self.rational, value)) if isinstance(value, tuple) else self.rational(value)
        if kind == "app":
            return self.unknown_function(node)
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
            return self.check_magnitude(product)
        if kind == "div":
            below = self(args[1])
            if below == 0:
                raise Refused("division by zero")
            return self(args[0]) / below
        if kind == "pow":
            return self.power(self(args[0]), args[1])
        if kind == "root":
            index = exact_value(args[1])
            if index is None or index.denominator != 1 or not 1 <= index <= 1000:
                raise Refused("a root index out of range")
            return self.rational_power(self(args[0]), Fraction(1, int(index)))
        if kind == "func":
            return self.function(args)
        return self.special(node)

    def unknown_function(self, node: Node) -> Any:
        """f(x) as a random function: a value of either sign, the same wherever the arguments are equal."""
        inside = node.args[1]
        parts = inside.args[0] if inside.kind == "list" else (inside,)
        arguments = [self.ctx.nstr(self(part), 15) if is_expression(part) else key(part) for part in parts]
        random = hash_text(f"{node.args[0]}:{arguments}:{self.values.get(UNKNOWN)}")
        return self.rational(Fraction(random % 9973 + 17, 5003 if random & 65536 else -5003))

    def special(self, node: Node) -> Any:
        kind, ctx = node.kind, self.ctx
        if kind == "base":
            return self.rational(in_base(node.args[0], node.args[1]))
        if kind == "cases":
            return self.cases(node.args[0])
        if kind not in ("abs", "floor", "ceil", "percent", "degree", "fact", "fact2", "binom"):
            raise Refused(kind)
        value = self(node.args[0])
        if kind == "abs":
            return abs(value)
        if kind in ("floor", "ceil"):
            if abs(value) > 2**60:
                raise Refused("a value too large")
            whole = ctx.floor(value + ctx.ldexp(1, -1))
            if abs(value - whole) < ctx.ldexp(1, -ctx.prec // 2):
                return whole
            return ctx.floor(value) if kind == "floor" else ctx.ceil(value)
        if kind == "percent":
            return value / 100
        if kind == "degree":
            return value * ctx.pi / 180
        if not ctx.isint(value) or not 0 <= value <= 3000:
            raise OutsideDomain("a factorial of something other than a small integer")
        if kind in ("fact", "fact2"):
            return ctx.factorial(value) if kind == "fact" else ctx.fac2(value)
        below = self(node.args[1])
        if not ctx.isint(below) or not 0 <= below <= 3000:
            raise OutsideDomain("a binomial of something other than a small integer")
        return ctx.binomial(value, below)

    def cases(self, rows: tuple[tuple[Node, Node], ...]) -> Any:
        """The value of the rows whose condition holds here; "otherwise" counts where no other does."""
        last = rows[-1][1].kind == "text" and self.holds(rows[-1][1])
        values = [self(value) for value, condition in (rows[:-1] if last else rows) if self.holds(condition)]
        if last and not values:
            return self(rows[-1][0])
        if not values:
            raise OutsideDomain("no case holds")
        if not all(nearly_equal(values[0], value) for value in values[1:]):
            raise OutsideDomain("cases that contradict each other")
        return values[0]

    def holds(self, condition: Node) -> bool:
        kind, args, ctx = condition.kind, condition.args, self.ctx
        if kind == "text" and args[0].strip(" ,.").lower() in ("otherwise", "else", "elsewhere"):
            return True
        if kind in ("list", "logic"):
            joiner = args[0] if kind == "logic" else args[1] if len(args) > 1 else ","
            truths = [self.holds(part) for part in (args[1] if kind == "logic" else args[0])]
            return any(truths) if joiner == "or" else all(truths)
        if kind == "unit" and args[1].lower().split()[-1] in ("even", "odd"):
            value = self(args[0])
            if not ctx.isint(value):
                raise OutsideDomain("no integer")
            return bool(int(ctx.re(value)) % 2 == (args[1].lower().split()[-1] == "odd"))
        if kind != "rel" or not set(args[0]) <= _ORDER.keys():
            raise Refused("a condition without a rule")
        values = [self(member) for member in args[1]]
        if any(ctx.im(value) for value in values):
            raise OutsideDomain("an order of complex numbers")
        values = [ctx.re(value) for value in values]
        pairs = zip(args[0], values, values[1:], strict=False)
        return all(_ORDER[operator](0 if nearly_equal(a, b) else -1 if a < b else 1) for operator, a, b in pairs)

    def add(self, terms: list[Any]) -> Any:
        """The sum; what cancels to the last bits is zero."""
        sizes = [abs(term) for term in terms if term]
        largest = max(sizes, default=self.ctx.zero)
        apart = self.ctx.mag(largest) - self.ctx.mag(min(sizes)) if sizes else 0
        if self.ctx.prec == HIGH_PRECISION and apart > HIGH_PRECISION - _MARGIN:
            raise Refused("terms too far apart to add")
        return self.remainder(sum(terms, self.ctx.zero), largest)

    def remainder(self, total: Any, largest: Any) -> Any:
        """What is left of terms of which `largest` is the largest: zero where it is rounding alone."""
        if not largest:
            return total
        lost = self.ctx.mag(largest) - self.ctx.mag(total) if total else self.ctx.prec
        self.lost = max(self.lost, int(lost))
        if lost < self.ctx.prec - 24:
            return total
        if self.ctx.mag(largest) > self.ctx.prec // 2:  # what is left of them may count beside other terms
            raise Refused("terms that cancel")
        return self.ctx.zero

    def check_magnitude(self, value: Any) -> Any:
        if value != 0 and not -MAX_BITS < self.ctx.mag(value) < MAX_BITS:
            raise Refused("a value too large")
        return value

    def power(self, base: Any, exponent_node: Node) -> Any:
        exponent = exact_value(exponent_node)
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
            values = [value, *(self(arg) for arg in args[2:])]
            if any(ctx.im(item) for item in values):
                raise OutsideDomain("an order of complex numbers")
            return (max if name == "max" else min)(values, key=ctx.re)
        if name in ("conj", "Re", "Im", "arg"):
            return {"conj": ctx.conj, "Re": ctx.re, "Im": ctx.im, "arg": ctx.arg}[name](value)
        if name == "exp":
            if abs(value) > MAX_BITS / 2:
                raise Refused("a power too large")
            return ctx.exp(value)
        if name in ("ln", "log", "log10"):
            return self.logarithm(name, value, self(args[2]) if len(args) > 2 else None)
        if name in ("Gamma", "zeta"):
            if (
                abs(value) > 3000
                or (name == "zeta" and ctx.re(value) <= 1)
                or (ctx.isint(value) and ctx.re(value) <= 0)
            ):
                raise Refused("a pole")
            return ctx.gamma(value) if name == "Gamma" else ctx.zeta(value)
        method = _FUNCTIONS.get(name)
        if method is None:
            raise Refused(str(name))
        if abs(value) > 1e12 or (name in _HYPERBOLIC and abs(value) > 1e4):
            raise Refused("an argument too large")
        if value == 0 and name in ("cot", "csc", "coth", "csch"):
            raise Refused("a pole")
        if name in UNIT_BRANCHES and abs(abs(value) - 1) < ctx.ldexp(1, -3 * ctx.prec // 4):
            value = ctx.sign(value)
        try:
            result = getattr(ctx, method)(value)
        except (ZeroDivisionError, ValueError) as error:
            raise Refused("a pole") from error
        if self.real and ctx.im(result):
            raise OutsideDomain("an inverse function outside its domain")
        if name in ("sin", "cos", "tan", "cot") and abs(result) < ctx.ldexp(1, -3 * ctx.prec // 4):
            return ctx.zero
        return result

    def logarithm(self, name: str, value: Any, base: Any) -> Any:
        ctx = self.ctx
        if value == 0:
            raise Refused("the logarithm of zero")
        if self.real and value < 0:
            raise OutsideDomain("the logarithm of a negative number")
        result = ctx.log(value) if self.remainder(value - 1, ctx.one) else ctx.zero
        if base is not None:
            if base in (0, 1):
                raise Refused("a logarithm to the base 0 or 1")
            return result / ctx.log(base)
        if name == "log10" or (name == "log" and self.log_base == 10):
            return result / ctx.log(10)
        return result


def numeric_value(node: Node, precision: int = PRECISION) -> Any:
    """The value of a closed expression (an mpf or mpc); raises `Refused` as `exact_value` does."""
    if symbols(node):
        raise Refused("not closed")
    try:
        return evaluate(node, {}, False, 0, precision)
    except OutsideDomain as error:
        raise Refused(str(error)) from error


def nearly_equal(left: Any, right: Any, precision: int = PRECISION) -> bool:
    """Whether two values of `evaluate` differ by rounding alone."""
    size = max(abs(left), abs(right))
    return bool(abs(left - right) <= size.context.ldexp(size, _MARGIN - precision))
