"""Whether two expressions are equal, by evaluation: exactly where they are rational, else to 33 digits or more.

1. Closed rational expressions are `Fraction`s, compared exactly (too large ones by their residues).
2. Rational functions are compared at random points of the fields of 2**61 - 1 and 2**89 - 1 elements (Schwartz and
   Zippel: two different ones of degree d agree at a point with probability below d / 2**61).
3. Others are compared at the points of `points`, and on every side of their kinks and branches (`branches`),
   in 160-bit arithmetic. Points outside the real domain are passed over, so sqrt(x)sqrt(y) equals sqrt(xy), and
   sqrt(x^2) is |x|; but a side of |x| that the answer leaves out is not passed over. What agrees is compared once
   more with 1,280 bits.

Sizes are bounded before anything is computed: `Refused` says why a value is not formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from mathrl.grading.branches import branch_points, has_kinks
from mathrl.grading.exact import OutOfTime, Refused, TooLarge, exact
from mathrl.grading.finite_field import FIELD_KINDS, PRIMES, modular
from mathrl.grading.numeric import HIGH_PRECISION, UNKNOWN, OutsideDomain, Point, close, evaluate
from mathrl.grading.points import INTEGER_NAMES, complex_points, real_points, whole_names, whole_points
from mathrl.grading.syntax import Node, key, kinds, symbols

TASK_OPERATORS = frozenset("sum prod int iint iiint oint lim derivative det gcd lcm mod bigcap limsup liminf".split())
_COMPLEX = frozenset(["func:conj", "func:Re", "func:Im", "func:arg"])
_SIDES = frozenset(["abs", "floor", "ceil", "func:max", "func:min"])  # kinks with a value on both sides
_WHOLE = frozenset(["fact", "fact2", "binom"])


def same_expression(a: Node, b: Node) -> bool | None:
    """Whether two expressions are equal; None where this cannot be settled here. `a` is the truth, if one is.

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
            try:
                left, right = exact(a), exact(b)
            except TooLarge:
                if both <= FIELD_KINDS:
                    return all(modular(a, 0, prime) == modular(b, 0, prime) for prime in PRIMES)
                raise
            if left is not None and right is not None:
                return left == right
        for node in (a, b):
            if not symbols(node):
                _must_exist(node)
        if both <= FIELD_KINDS:
            try:
                return all(modular(a, 1, prime) == modular(b, 1, prime) for prime in PRIMES[:2])
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
        evaluate(node, {}, False, 0)
    except OutsideDomain as error:
        raise Refused(str(error)) from error


def constant_ratio(a: Node, b: Node, positive: bool) -> bool | None:
    """Whether a = c b for a constant c other than zero (and positive, if asked), by values as in `same_expression`."""
    first: list[tuple[Any, Any]] = []

    def proportional(left: Any, right: Any, precision: int) -> bool:
        if not left or not right:
            return bool(left == right)
        if not first:
            first.append((left, right))
        ratio = first[0][0] / first[0][1]
        if positive and (ratio.imag or ratio.real < 0):
            return False
        return close(left, right * ratio, min(precision, 150))

    try:
        return _at_points(a, b, 0, proportional)
    except (OverflowError, ZeroDivisionError) as error:
        raise Refused("a value out of range") from error


def _at_points(a: Node, b: Node, log_base: int, agree: Callable[[Any, Any, int], bool] = close) -> bool | None:
    sides = bool(kinds(a) & _SIDES) and agree is close
    for real, needed, points in _stages(a, b):
        compared = left_out = 0
        for values in points:
            pair = _pair(a, b, values, real, log_base)
            if pair is None:
                continue
            left, right = pair
            if right is None:
                left_out += sides
            elif agree(left, right, 160):
                if not compared and agree is close and not _pair_agrees_closely(a, b, values, real, log_base):
                    return False
                compared += 1
            else:
                return False
        if left_out > 1:
            return False
        if compared >= needed:
            return True
    return None


def _pair(
    a: Node, b: Node, values: Point, real: bool, log_base: int, precision: int = 160
) -> tuple[Any, Any | None] | None:
    """Both values at a point; None where `a` has none, or `b` has none for another reason than the real domain."""
    try:
        left = evaluate(a, values, real, log_base, precision)
        try:
            return left, evaluate(b, values, real, log_base, precision)
        except OutsideDomain:
            return left, None
    except OutsideDomain:
        return None
    except OutOfTime:
        raise
    except Refused:
        if not values:
            raise
        return None


def _pair_agrees_closely(a: Node, b: Node, values: Point, real: bool, log_base: int) -> bool:
    """Whether they agree to 370 digits too: pi and pi + 10^{-50} do not."""
    pair = _pair(a, b, values, real, log_base, HIGH_PRECISION)
    return pair is None or pair[1] is None or close(pair[0], pair[1], HIGH_PRECISION)


def _stages(a: Node, b: Node) -> Iterator[tuple[bool, int, Iterable[Point]]]:
    """Ways to compare, the next where a way has too few values: over the reals or not, points needed, points."""
    both, names = kinds(a) | kinds(b), symbols(a) | symbols(b)
    if "app" in both:
        names |= {UNKNOWN}
    if not names:
        yield False, 1, [{}]
    elif both & _WHOLE:
        whole = whole_names(a) | whole_names(b) | (names & INTEGER_NAMES)
        yield "const:i" not in both, 4, whole_points(names, whole)
    elif both & _COMPLEX:
        yield False, 4, complex_points(names)
    else:
        points = real_points(names)
        if "const:i" not in both:
            yield True, 2, chain(points, _on_every_side(a, b, names) if has_kinks(both, a, b) else ())
            if names & INTEGER_NAMES:
                yield True, 4, whole_points(names, names & INTEGER_NAMES)
        yield False, 2, points[:4]


def _on_every_side(a: Node, b: Node, names: frozenset[str]) -> Iterator[Point]:
    """As `branch_points`, but sought only when it is asked for: most unequal pairs differ before."""
    yield from branch_points(a, b, names)
