"""Expressions in 160-bit arithmetic at a point, over the reals or the complex numbers.

Where terms cancel, the value is computed again with 1,280 bits; what cancels there too is zero.
"""

from __future__ import annotations

import threading
from fractions import Fraction
from typing import Any

from mathrl.grading.exact import MAX_BITS, OutOfTime, Refused, check_clock, check_size, exact, in_base
from mathrl.grading.finite_field import hash_text
from mathrl.grading.syntax import Node, is_expression, key, symbols


class OutsideDomain(ValueError):
    """The point is outside the real domain of the expression."""


UNKNOWN = "unknown functions"  # the name in a point by which they differ from point to point
PRECISION = 160
HIGH_PRECISION = 1280
_MARGIN = 48  # the last bits, which rounding may change
_local = threading.local()
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
        Refused: as `exact`; also where more cancels than the bits can show.
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


_TRIGONOMETRIC = frozenset("sin cos tan cot sec csc".split())
_HYPERBOLIC = frozenset("sinh cosh tanh coth sech csch".split())
_FUNCTIONS = {name: name for name in _TRIGONOMETRIC | _HYPERBOLIC}
_FUNCTIONS |= {f"arc{name}": f"a{name}" for name in _TRIGONOMETRIC | _HYPERBOLIC}


UNIT_BRANCHES = frozenset("arcsin arccos arcsec arccsc arccosh arctanh arccoth arcsech".split())


def quick_value(node: Node, name: str, value: float) -> float:
    """The real value in 53-bit arithmetic where one name has a value; not a number where there is none."""
    from mpmath import fp  # type: ignore[import-untyped]  # 60 ms, seldom needed

    try:
        return float(Numeric({name: Fraction(value)}, True, 0, fp)(node).real)
    except OutOfTime:
        raise
    except (Refused, OutsideDomain, OverflowError, ZeroDivisionError, TypeError):
        return float("nan")


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

    def add(self, terms: list[Any]) -> Any:
        """The sum; what cancels to the last bits is zero."""
        total = self.ctx.zero
        largest = self.ctx.zero
        for term in terms:
            total = total + term
            size = abs(term)
            if size > largest:
                largest = size
        return self.rest(total, largest)

    def rest(self, total: Any, largest: Any) -> Any:
        """What is left of terms of which `largest` is the largest: zero where it is rounding alone."""
        if not largest:
            return total
        lost = self.ctx.mag(largest) - self.ctx.mag(total) if total else self.ctx.prec
        self.lost = max(self.lost, int(lost))
        if lost < self.ctx.prec - 24:
            return total
        if self.ctx.mag(largest) > self.ctx.prec // 2:
            raise Refused("terms that cancel")  # what is left of them may count beside other terms
        return self.ctx.zero

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
        result = ctx.log(value) if self.rest(value - 1, ctx.one) else ctx.zero
        if base is not None:
            if base in (0, 1):
                raise Refused("a logarithm to the base 0 or 1")
            return result / ctx.log(base)
        if name == "log10" or (name == "log" and self.log_base == 10):
            return result / ctx.log(10)
        return result


def numeric_value(node: Node, precision: int = PRECISION) -> Any:
    """The value of a closed expression (an mpf or mpc).

    Raises:
        Refused: as `exact`.
    """
    if symbols(node):
        raise Refused("not closed")
    try:
        return evaluate(node, {}, False, 0, precision)
    except OutsideDomain as error:
        raise Refused(str(error)) from error


def close(left: Any, right: Any, precision: int = PRECISION) -> bool:
    """Whether two values of `evaluate` differ by rounding alone."""
    size = max(abs(left), abs(right))
    return bool(abs(left - right) <= size.context.ldexp(size, _MARGIN - precision))
