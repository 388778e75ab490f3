"""Whether two expressions are equal, by evaluation: exactly where they are rational, else to 33 digits or more.

1. Closed rational expressions are `Fraction`s, compared exactly (too large ones by their residues).
2. Rational functions are compared at random points of the fields of 2**61 - 1 and 2**89 - 1 elements (Schwartz and
   Zippel: two different ones of degree d agree at a point with probability below d / 2**61).
3. Others are compared in 160-bit arithmetic at points of both signs and several scales, whole or complex, and on
   every side of their kinks and branches. Points outside the real domain are passed over, so sqrt(x)sqrt(y) equals
   sqrt(xy), and sqrt(x^2) is |x|; but a side of |x| that the answer leaves out is not passed over. What agrees is
   compared once more with 1,280 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import chain
from typing import Any

from mathrl.grading.evaluate import (
    HIGH_PRECISION,
    UNKNOWN,
    OutsideDomain,
    Point,
    Refused,
    TooLarge,
    evaluate,
    exact_value,
    nearly_equal,
    numeric_value,
)
from mathrl.grading.fields import FIELD_KINDS, PRIMES, matrix_residue, residue
from mathrl.grading.parser import parse
from mathrl.grading.points import (
    INTEGER_NAMES,
    SIDES,
    WHOLE,
    branch_points,
    complex_points,
    has_kinks,
    real_points,
    rounding_points,
    whole_names,
    whole_points,
)
from mathrl.grading.syntax import (
    Node,
    children,
    explain,
    find,
    is_complex,
    is_expression,
    kinds,
    num,
    of_matrices,
    rebuild,
    same_tree,
    substitute,
    sym,
    symbols,
)

TASK_OPERATORS = frozenset("sum prod int iint iiint oint lim derivative det gcd lcm mod bigcap limsup liminf".split())
_COMPLEX = frozenset(["func:conj", "func:Re", "func:Im", "func:arg"])
_ROUNDED = frozenset(["floor", "ceil"])
_FINE = SIDES | {"func"}


def same_expression(a: Node, b: Node) -> bool | None:
    """Whether two expressions are equal; None where this cannot be settled here. `a` is the truth, if one is.

    Raises:
        Refused: a closed expression is undefined or too large to form.

    >>> from mathrl.grading.parser import parse
    >>> same_expression(parse("(x+1)^2"), parse("x^2+2x+1"))
    True
    """
    if same_tree(a, b):
        return True
    both = kinds(a) | kinds(b)
    if "op" in both or "ellipsis" in both or "pm" in both:
        return _same_operation(a, b)
    if "cases" in both and any(
        not is_expression(part[0]) for node in (a, b) for case in find(node, "cases") for part in case.args[0]
    ):
        return False
    try:
        if not symbols(a) and not symbols(b):
            try:
                left, right = exact_value(a), exact_value(b)
            except TooLarge:
                if both <= FIELD_KINDS:
                    return all(residue(a, 0, prime) == residue(b, 0, prime) for prime in PRIMES)
                raise
            if left is not None and right is not None:
                return left == right
        for node in (a, b):
            if not symbols(node):
                _must_exist(node)
        if of_matrices(a) or of_matrices(b):
            try:
                return matrix_residue(a, 1) == matrix_residue(b, 1)
            except Refused:
                pass
        if both <= FIELD_KINDS:
            try:
                return all(residue(a, 1, prime) == residue(b, 1, prime) for prime in PRIMES[:2])
            except Refused:
                pass
        if both & _FINE and (_too_fine(a) or _too_fine(b)):
            explain("a number too small or too large inside a function to compare by points")
            return False
        natural = _at_points(a, b, 0)
        if natural is not True and "func:log" in both:
            return True if _at_points(a, b, 10) else natural
        return natural
    except (OverflowError, ZeroDivisionError) as error:
        raise Refused("a value out of range") from error


_INDEX = re.compile(r"_([a-zA-Z])((?:=|to|in).*|)")
_OVER = re.compile(r"d\(([a-zA-Z])\)")


def _same_operation(a: Node, b: Node) -> bool | None:
    """Whether two sums, products or integrals have the same bounds and equal terms, whatever their name is called.

    None where that does not settle it.
    """
    if a.kind != "op" or b.kind != "op" or a.args[0] != b.args[0] or len(a.args) != len(b.args):
        return None
    own, other = _bound_operation(a), _bound_operation(b)
    if own is None or other is None:
        return None
    (name, bounds, term), (other_name, other_bounds, other_term) = own, other
    if bounds != other_bounds and a.args[0] in ("sum", "prod"):
        other_bounds, other_term = _begin_alike(bounds, other_bounds, other_name, other_term)
    if bounds != other_bounds:
        return None
    if not bounds and name != other_name:
        explain(f"over another variable: {name} / {other_name}")
        return False
    free = (symbols(term) - {name}) | (symbols(other_term) - {other_name})
    common = "k" if a.args[0] in ("sum", "prod") else "bound"  # a letter of integers, or none
    if common in free or other_name in symbols(term) - {name} or name in symbols(other_term) - {other_name}:
        return None
    same = same_expression(_rename_bound(term, name, common), _rename_bound(other_term, other_name, common))
    series = a.args[0] == "sum" and any("infty" in bound for bound in bounds)  # its terms decide
    return same if same or series else None


_FROM = re.compile(r"=(-?\d{1,6})")


def _begin_alike(own: tuple[str, ...], other: tuple[str, ...], name: str, term: Node) -> tuple[tuple[str, ...], Node]:
    """The bounds and the term of a sum that begins where another one does, if both begin at an integer."""
    begins = [match for bounds in (own, other) if len(bounds) == 2 and (match := _FROM.fullmatch(bounds[0]))]
    if len(begins) < 2:
        return other, term
    shift = num(int(begins[1][1]) - int(begins[0][1]))
    ends = [parse(f"{bounds[1][1:]}{suffix}") for bounds, suffix in ((own, f"+({shift.args[0]})"), (other, ""))]
    endless = own[1] == other[1] and "infty" in own[1]
    if not endless and (ends[0] is None or ends[1] is None or not same_expression(ends[0], ends[1])):
        return other, term
    return own, substitute(term, {name: Node("add", ((sym(name), shift),))})


def _rename_bound(term: Node, name: str, common: str) -> Node:
    """With the bound name as `common`, in subscripts too."""
    marked = {each: sym(f"{each[: -len(name)]}{common}") for each in symbols(term) if each.endswith(f"_{name}")}
    return substitute(term, {name: sym(common), **marked})


def _bound_operation(node: Node) -> tuple[str, tuple[str, ...], Node] | None:
    """The bound name, the bounds without it, and the term; None where these are not plain."""
    name, *marks, term = node.args
    bounds = [str(mark.args[0]) for mark in marks]
    if name in ("sum", "prod", "lim") and bounds and (index := _INDEX.fullmatch(bounds[0])):
        return index[1], (index[2], *bounds[1:]), _without_constant(term, index[1])
    if name == "int" and term.kind == "mul" and (over := _OVER.fullmatch(str(term.args[0][-1].args[0]))):
        return over[1], tuple(bounds), Node("mul", (term.args[0][:-1],))
    return None


def _without_constant(node: Node, name: str) -> Node:
    """The letter i or e, which is a constant elsewhere, as the name of an index."""
    return sym(name) if node == Node("const", (name,)) else rebuild(node, lambda part: _without_constant(part, name))


def _must_exist(node: Node) -> None:
    """Raises `Refused` where a closed expression is undefined or too large, whatever it is compared with."""
    if "const:inf" not in kinds(node) and exact_value(node) is None:
        numeric_value(node)


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
        return nearly_equal(left, right * ratio, min(precision, 150))

    try:
        return _at_points(a, b, 0, proportional)
    except (OverflowError, ZeroDivisionError) as error:
        raise Refused("a value out of range") from error


def _at_points(a: Node, b: Node, log_base: int, agree: Callable[[Any, Any, int], bool] = nearly_equal) -> bool | None:
    by_cases = "cases" in kinds(b) and not symbols(b) <= INTEGER_NAMES  # of numbers that the conditions choose
    sides = (by_cases or bool(kinds(a) & SIDES)) and agree is nearly_equal
    factorials = "fact" not in kinds(b) or "fact" in kinds(a)
    partial = bool(kinds(b) & WHOLE) and not kinds(a) & WHOLE
    if not factorials and not whole_names(b) <= INTEGER_NAMES:
        return False
    for real, needed, points in _stages(a, b):
        compared = left_out = undefined = 0
        for values in points:
            pair = _pair(a, b, values, real, log_base)
            if pair is None:
                left_out += by_cases and "cases" in kinds(a) and _pair(b, a, values, real, log_base) is not None
                continue
            left, right = pair
            if right is None:
                left_out += sides
                undefined += 1
            elif agree(left, right, 160):
                if not compared and agree is nearly_equal and not _pair_agrees_closely(a, b, values, real, log_base):
                    return False
                compared += 1
            else:
                return False
        if left_out > 1 or (partial and undefined > compared):  # a factorial or binomial leaves out most points
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
    except Refused:
        if not values:
            raise
        return None


def _pair_agrees_closely(a: Node, b: Node, values: Point, real: bool, log_base: int) -> bool:
    """Whether they agree to 370 digits too: pi and pi + 10^{-50} do not."""
    pair = _pair(a, b, values, real, log_base, HIGH_PRECISION)
    return pair is None or pair[1] is None or nearly_equal(pair[0], pair[1], HIGH_PRECISION)


def _stages(a: Node, b: Node) -> Iterator[tuple[bool, int, Iterable[Point]]]:
    """Ways to compare, the next where a way has too few values: over the reals or not, points needed, points."""
    both, names = kinds(a) | kinds(b), symbols(a) | symbols(b)
    if "app" in both:
        names |= {UNKNOWN}
    if not names:
        yield False, 1, [{}]
    elif both & WHOLE:
        whole = whole_names(a) | whole_names(b) | (names & INTEGER_NAMES)
        yield "const:i" not in both, 4, whole_points(names, whole)
    elif both & _COMPLEX or ("abs" in both and all(map(is_complex, names))):
        yield False, 4, complex_points(names)
    elif both & _ROUNDED and names <= INTEGER_NAMES and (points := rounding_points(a, b, names)):
        yield True, 8, points
    else:
        points = real_points(names)
        if "const:i" not in both:
            yield True, 2, chain(points, branch_points(a, b, names) if has_kinks(both, a, b) else ())
            if names & INTEGER_NAMES:
                yield True, 4, whole_points(names, names & INTEGER_NAMES)
        yield False, 2, points[:4]


def _too_fine(node: Node, inside: bool = False) -> bool:
    """Whether a number in a kink or function of names is so small or large that points may miss what it does."""
    if inside and not symbols(node):
        try:
            value = exact_value(node)
        except Refused:
            return True
        return value is not None and value != 0 and not _FINEST < abs(value) < 1 / _FINEST
    inside = (inside or node.kind in SIDES or node.kind == "func") and bool(symbols(node))
    return any(_too_fine(child, inside) for child in children(node))


_FINEST = Fraction(1, 10**7)
