r"""Sets of real numbers: intervals, points, unions, inequalities in one variable, in one form; tests of integers.

x \neq 5   ->   (-inf, 5) and (5, inf)      \{1,2\} \cup [0,3]   ->   [0, 3]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cmp_to_key
from itertools import product
from math import isqrt
from typing import Any, NamedTuple

from mathrl.grading.evaluate import HIGH_PRECISION, Refused, exact_value, nearly_equal, numeric_value
from mathrl.grading.syntax import MINUS_ONE, Node, children, infinity_sign, key, neg, num, substitute, symbols

_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
INEQUALITIES = frozenset(["<", ">", "<=", ">=", "!="])
_INF = float("inf")
_COMPLEMENTS = frozenset(["c", "C", "\\complement"])
MOST_SETS = 6


class Piece(NamedTuple):
    """An interval with its ends; a point is [a, a]. Ends are Fractions, 1,280-bit floats, or +-inf."""

    low: Any
    low_closed: bool
    high: Any
    high_closed: bool


class NotASet(ValueError):
    """The tree is not a set of real numbers with closed ends."""


def _end(node: Node) -> Any:
    sign = infinity_sign(node)
    if sign:
        return sign * _INF
    if symbols(node):
        raise NotASet("an end with symbols")
    try:
        value: Any = exact_value(node)
        if value is None:
            value = numeric_value(node, HIGH_PRECISION)
    except Refused as error:
        raise NotASet(str(error)) from error
    if hasattr(value, "imag") and value.imag != 0:
        raise NotASet("a complex end")
    return value if isinstance(value, Fraction) else value.real


def _compare(a: Any, b: Any) -> int:
    """-1, 0 or 1; values that differ by rounding alone are equal."""
    if a == b:
        return 0
    if isinstance(a, float) or isinstance(b, float):  # an infinity
        return -1 if (a == -_INF or b == _INF) else 1
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return -1 if a < b else 1
    context = (a if not isinstance(a, Fraction) else b).context
    with context.workprec(HIGH_PRECISION):
        left, right = (context.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else x for x in (a, b))
        if nearly_equal(left, right, HIGH_PRECISION):
            return 0
        return -1 if left < right else 1


def _merge(pieces: list[Piece]) -> list[Piece]:
    """Sorted and joined where they touch."""

    def order(a: Piece, b: Piece) -> int:
        return _compare(a.low, b.low) or (int(b.low_closed) - int(a.low_closed))

    merged: list[Piece] = []
    for piece in sorted(pieces, key=cmp_to_key(order)):
        if merged:
            last = merged[-1]
            gap = _compare(piece.low, last.high)
            if gap < 0 or (gap == 0 and (piece.low_closed or last.high_closed)):
                ends = _compare(piece.high, last.high)
                high_closed = piece.high_closed if ends > 0 else last.high_closed or (ends == 0 and piece.high_closed)
                merged[-1] = last._replace(high=piece.high if ends > 0 else last.high, high_closed=high_closed)
                continue
        merged.append(piece)
    return merged


def _complement(pieces: list[Piece]) -> list[Piece]:
    gaps, low, closed = [], -_INF, False
    for piece in _merge(pieces):
        order = _compare(low, piece.low)
        if order < 0 or (order == 0 and closed and not piece.low_closed):
            gaps.append(Piece(low, closed, piece.low, not piece.low_closed))
        low, closed = piece.high, not piece.high_closed
    if low != _INF:
        gaps.append(Piece(low, closed, _INF, False))
    return gaps


def _interval(low: Any, low_closed: bool, high: Any, high_closed: bool) -> list[Piece]:
    order = _compare(low, high)
    if order > 0 or (order == 0 and not (low_closed and high_closed)):
        raise NotASet("ends reversed")
    return [Piece(low, low_closed and low != -_INF, high, high_closed and high != _INF)]


def real_set(node: Node) -> list[Piece]:
    """The merged pieces of a tree that denotes a set of reals.

    Raises:
        NotASet: it does not, or an end is not a closed real expression.
    """
    return _merge(_pieces(node))


def _pieces(node: Node) -> list[Piece]:
    kind, args = node.kind, node.args
    if kind == "tuple" and len(args[2]) == 2:
        low, high = (_end(part) for part in args[2])
        return _interval(low, args[0] == "[", high, args[1] == "]")
    if kind == "set":
        points = [_end(part) for part in args[0]]
        return [Piece(point, True, point, True) for point in points]
    if kind == "reals":
        return [Piece(-_INF, False, _INF, False)]
    if kind == "union":
        return _pieces(args[0]) + _pieces(args[1])
    if kind == "inter":
        outside = _complement(_pieces(args[0])) + _complement(_pieces(args[1]))
        return _complement(outside)
    if kind == "minus":
        return _complement(_complement(_pieces(args[0])) + _pieces(args[1]))
    if kind == "rel":
        return _relation(node)
    if kind == "list" and all(part.kind == "rel" for part in args[0]):
        pieces = [_pieces(part) for part in args[0]]
        if len({next((key(m) for m in part.args[1] if symbols(m)), "") for part in args[0]}) != 1:
            raise NotASet("two variables")
        if all(part.args[0] == ("!=",) for part in args[0]):
            return _complement([hole for part in pieces for hole in _complement(part)])
        together = [piece for part in pieces for piece in part]
        joiner = args[1] if len(args) > 1 else ","
        if joiner == "or" or (joiner == "," and _complement(together)):
            return together
        return _complement([hole for part in pieces for hole in _complement(part)]) or together
    raise NotASet(kind)


def is_contradiction(node: Node) -> bool:
    """Whether conditions that are joined by "and" hold for no number: x < -1 and x > 2.

    Raises:
        NotASet: see `real_set`.
    """
    if node.kind != "list" or node.args[1:] != ("and",) or any(part.kind != "rel" for part in node.args[0]):
        return False
    return not _complement([hole for part in node.args[0] for hole in _complement(_pieces(part))])


def _relation(node: Node) -> list[Piece]:
    operators, members = node.args
    if operators == ("in",):
        if members[0].kind not in ("sym", "app"):
            raise NotASet("no variable")
        return _pieces(members[1])
    if operators == ("=",) and members[0].kind == "sym":
        return _pieces(Node("set", ((members[1],),)))
    if not all(op in INEQUALITIES for op in operators):
        raise NotASet("no inequality")
    outside: list[Piece] = []
    for op, left, right in zip(operators, members, members[1:], strict=False):
        if bool(symbols(left)) == bool(symbols(right)):
            raise NotASet("not in one variable")
        if not symbols(left):
            left, right, op = right, left, _FLIP[op]
        if left.kind == "abs":
            outside += _absolute(op, left.args[0], right)
            continue
        slope, shift = _linear(left)
        if slope < 0:
            op = _FLIP[op]
        if slope != 1 or shift != 0:
            sign = infinity_sign(right)
            right = (
                (right if slope > 0 else neg(right))
                if sign
                else Node("div", (Node("add", ((right, num(-shift)),)), num(slope)))
            )
        end = _end(right)
        closed = op in ("<=", ">=")
        if op == "!=":
            outside.append(Piece(end, True, end, True))
        elif op in ("<", "<="):
            outside += _complement([Piece(-_INF, False, end, closed)])
        else:
            outside += _complement([Piece(end, closed, _INF, False)])
    return _complement(outside)


def _absolute(op: str, inside: Node, bound: Node) -> list[Piece]:
    """What |inside| < bound (or >, …) leaves out."""
    if op in ("<", "<="):
        pair = _relation(Node("rel", ((op, op), (neg(bound), inside, bound))))
        return _complement(pair)
    if op == "!=":
        raise NotASet("not an interval")
    low = _relation(Node("rel", ((_FLIP[op],), (inside, neg(bound)))))
    return _complement(low + _relation(Node("rel", ((op,), (inside, bound)))))


def _linear(node: Node) -> tuple[Fraction, Fraction]:
    """Slope and shift of an expression linear in its one variable with rational coefficients."""
    if node.kind in ("sym", "app"):
        return Fraction(1), Fraction(0)
    names = symbols(node)
    if len(names) != 1:
        raise NotASet("several variables")
    try:
        values = [exact_value(substitute(node, {next(iter(names)): num(x)})) for x in (0, 1, 5)]
    except Refused as error:
        raise NotASet(str(error)) from error
    at0, at1, at5 = values
    if at0 is None or at1 is None or at5 is None or at5 - at0 != 5 * (at1 - at0) or at1 == at0:
        raise NotASet("not linear")
    return at1 - at0, at0


def same_real_set(a: list[Piece], b: list[Piece]) -> bool:
    return len(a) == len(b) and all(
        _compare(p.low, q.low) == 0
        and _compare(p.high, q.high) == 0
        and p.low_closed == q.low_closed
        and p.high_closed == q.high_closed
        for p, q in zip(a, b, strict=True)
    )


# Conditions on integers.
_WORD_TESTS: dict[str, Callable[[int], bool]] = {
    "even": lambda n: n % 2 == 0,
    "odd": lambda n: n % 2 == 1,
    "prime": lambda n: n > 1 and all(n % d for d in range(2, isqrt(n) + 1)),
    "composite": lambda n: n > 3 and any(n % d == 0 for d in range(2, isqrt(n) + 1)),
    "positive": lambda n: n > 0,
    "negative": lambda n: n < 0,
    "integer": lambda n: True,
}


def word_test(text: str) -> Callable[[int], bool] | None:
    """The test of integers that words such as "is an even number" state, or None."""
    words = [word for word in text.lower().split() if word not in ("is", "a", "an", "number", "integer", "and")]
    return _WORD_TESTS.get(words[0] if words else "integer") if len(words) < 2 else None


def holds(clause: Node) -> bool | None:
    """Whether a closed condition on integers holds; None where it is not one that is known."""
    if clause.kind == "unit":
        value, test = exact_value(clause.args[0]), word_test(clause.args[1])
        return test(int(value)) if test is not None and value is not None and value.denominator == 1 else None
    if clause.kind in ("logic", "list") and len(clause.args) > 1:
        joiner, parts = clause.args if clause.kind == "logic" else reversed(clause.args)
        truths = [holds(part) for part in parts]
        return None if None in truths else any(truths) if joiner == "or" else all(truths)
    if clause.kind != "rel":
        return None
    operators, members = clause.args
    if operators == ("==",) and members[1].kind == "op" and members[1].args[0] == "mod":
        left, right, modulus = map(exact_value, (members[0], *members[1].args[1:]))
        return None if left is None or right is None or not modulus else (left - right) % modulus == 0
    values = [exact_value(member) for member in members]
    truths = []
    for operator, left, right in zip(operators, values, values[1:], strict=False):
        relation = _TESTS.get(operator)
        if relation is None or left is None or right is None or (operator == "mid" and left == 0):
            return None
        truths.append(relation(left, right))
    return all(truths)


_TESTS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "mid": lambda a, b: b % a == 0,
    "nmid": lambda a, b: b % a != 0,
}


def same_members(truth: Node, answer: Node) -> bool | None:
    r"""Whether two formulas of named sets have the same members, by all cases; None where they are no such formulas.

    >>> from mathrl.grading.parser import parse
    >>> same_members(parse("A \\setminus B"), parse("A \\cap B^c")), same_members(parse("A \\cup B"), parse("(0,1)"))
    (True, None)
    """
    if not {truth.kind, answer.kind} & {"union", "inter", "minus"}:
        return None
    names = sorted(_set_names(truth) | _set_names(answer))
    if len(names) > MOST_SETS:
        return None
    try:
        for case in product((False, True), repeat=len(names)):
            inside = dict(zip(names, case, strict=True))
            if _is_member(truth, inside) != _is_member(answer, inside):
                return False
    except NotASet:
        return None
    return True


def _set_names(node: Node) -> set[str]:
    """The names of sets, but not the c of A^c."""
    if node.kind == "sym":
        return {node.args[0].removesuffix("'")}
    if node.kind == "pow" and node.args[1].kind == "sym" and node.args[1].args[0] in _COMPLEMENTS:
        return _set_names(node.args[0])
    return set[str]().union(*map(_set_names, children(node)))


def _is_member(node: Node, inside: Mapping[str, bool]) -> bool:
    kind, args = node.kind, node.args
    if kind == "sym" and args[0] in inside:
        return inside[args[0]]
    if kind == "sym" and args[0].removesuffix("'") in inside:
        return not inside[args[0].removesuffix("'")]
    if kind == "list" and len(args[0]) == 1:
        return _is_member(args[0][0], inside)
    if kind in ("union", "inter", "minus"):
        first, second = (_is_member(part, inside) for part in args)
        return {"union": first or second, "inter": first and second, "minus": first and not second}[kind]
    if kind == "add" and len(args[0]) == 2 and args[0][1].kind == "mul" and args[0][1].args[0][0] == MINUS_ONE:
        first, second = args[0][0], args[0][1].args[0][1:]  # A - B
        if len(second) == 1:
            return _is_member(first, inside) and not _is_member(second[0], inside)
    opposite = (kind == "pow" and args[1].kind == "sym" and args[1].args[0] in _COMPLEMENTS) or (
        kind == "app" and args[0] in ("overline", "bar")
    )
    if opposite or (kind == "op" and args[0] == "prime"):
        return not _is_member(args[0] if kind == "pow" else args[1], inside)
    raise NotASet("no formula of sets")
