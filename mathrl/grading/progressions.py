"""Unions of arithmetic progressions over all integers: 7k-4 and 7k+3, pi/2 + k pi and -pi/2 + n pi.

And the members of other families of integers in a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

from mathrl.grading.evaluate import Refused, check_clock, exact_value, numeric_value
from mathrl.grading.sets import holds
from mathrl.grading.syntax import (
    Node,
    children,
    choose_sign,
    find,
    is_expression,
    kinds,
    num,
    rebuild,
    substitute,
    sym,
    symbols,
)

WINDOW = 400
MODERATE = 40  # numbers up to this; larger ones could hide a difference outside of the window
# A real number p + q pi, and b + a Z as (a, b).
Pair = tuple[Fraction, Fraction]


def progressions_of(values: Sequence[Node], domains: Mapping[str, str]) -> list[tuple[Pair, Pair]] | None:
    """The arithmetic progressions over all integers of which a family consists; None where it is none of these."""
    if list(domains.values()) != ["Z"]:
        return None
    (name,) = domains
    progressions = []
    for value in values:
        for branch in _branches(value, name):
            points = [_in_pi(substitute(branch, {name: num(i)})) for i in (0, 1, 2, 7)]
            if any(point is None for point in points):
                return None
            at = [point for point in points if point is not None]
            step = _minus(at[1], at[0])
            if _minus(at[2], at[1]) != step or _minus(at[3], at[2]) != _times(step, 5) or not any(step):
                return None
            progressions.append((step, at[0]))
    return progressions


def _branches(value: Node, name: str) -> Iterator[Node]:
    """Both signs of plus-minus; and of (-1)^k, the even and the odd k."""
    if "pm" in kinds(value):
        for minus in (False, True):
            yield from _branches(choose_sign(value, minus), name)
    elif "pow" in kinds(value) and name in _exponent_names(value):
        for odd in (0, 1):
            twice = Node("add", ((Node("mul", ((num(2), sym(name)),)), num(odd)),))
            yield substitute(value, {name: twice})
    else:
        yield value


def _exponent_names(node: Node) -> frozenset[str]:
    return frozenset[str]().union(*(symbols(power.args[1]) for power in find(node, "pow")))


def _in_pi(node: Node) -> Pair | None:
    """A closed value as p + q pi; None where it is not of this form."""
    values = []
    for number in (0, 1, 3):
        try:
            value = exact_value(_with_pi(node, number))
        except Refused:
            return None
        if value is None:
            return None
        values.append(value)
    slope = values[1] - values[0]
    return (values[0], slope) if values[2] == values[0] + 3 * slope else None


def _with_pi(node: Node, number: int) -> Node:
    if node.kind == "const" and node.args[0] == "pi":
        return num(number)
    if node.kind == "degree":
        return Node("mul", ((_with_pi(node.args[0], number), num(Fraction(number, 180))),))
    return rebuild(node, lambda part: _with_pi(part, number))


def _minus(left: Pair, right: Pair) -> Pair:
    return left[0] - right[0], left[1] - right[1]


def _times(pair: Pair, factor: int) -> Pair:
    return pair[0] * factor, pair[1] * factor


def _over(pair: Pair, step: Pair) -> Fraction | None:
    """pair / step where it is rational."""
    if step[0] * pair[1] != step[1] * pair[0]:
        return None
    return pair[0] / step[0] if step[0] else pair[1] / step[1]


def same_progressions(first: list[tuple[Pair, Pair]], second: list[tuple[Pair, Pair]]) -> bool:
    """Whether two unions of progressions are the same set: their residues modulo a common step are."""
    unit, origin = first[0]
    classes = []
    for progressions in (first, second):
        members = []
        for step, start in progressions:
            ratio, offset = _over(step, unit), _over(_minus(start, origin), unit)
            if ratio is None:
                return False
            members.append((abs(ratio), start if offset is None else None, offset))
        classes.append(members)
    ratios = [ratio for members in classes for ratio, _, _ in members]
    common = Fraction(lcm(*(ratio.numerator for ratio in ratios)), gcd(*(ratio.denominator for ratio in ratios)))
    if max(common / ratio for ratio in ratios) > 200:
        return False
    residues = [
        {
            (start, (offset + i * ratio) % common if offset is not None else i * ratio % common)
            for ratio, start, offset in members
            for i in range(int(common / ratio))
        }
        for members in classes
    ]
    return residues[0] == residues[1]


def _is_moderate(node: Node) -> bool:
    """Whether every number that an expression or a condition states is small: 2^{10} is not."""
    if symbols(node) or not is_expression(node):
        return all(map(_is_moderate, children(node)))
    try:
        return bool(abs(numeric_value(node)) <= MODERATE)
    except Refused:
        return False


def members_in_window(value: Node, name: str, domain: str, conditions: Sequence[Node]) -> frozenset[Fraction] | None:
    """The members up to the size of the window of a family of integers or rationals; None where that cannot be told."""
    if domain not in ("Z", "Z+", "N0") or not all(map(_is_moderate, (value, *conditions))):
        return None
    literals = [number.args[0] for number in find((value, *conditions), "num")]
    period = lcm(*(int(abs(number)) for number in literals if number.denominator == 1 and number))
    if period > WINDOW:
        return None
    if not is_expression(value) or symbols(value) - {name}:
        return None
    found: list[Fraction] = []
    low = {"Z": -WINDOW, "Z+": 1, "N0": 0}[domain]
    try:
        for k in range(low, WINDOW + 1):
            check_clock()
            given = {name: num(k)}
            truths = [holds(substitute(clause, given)) for clause in conditions]
            if None in truths:
                return None
            if all(truths):
                member = exact_value(substitute(value, given))
                if member is None:
                    return None
                found.append(member)
    except Refused:
        return None
    if value == sym(name):
        return frozenset(member for member in found if abs(member) < WINDOW // 2)
    ends = [exact_value(substitute(value, {name: num(end)})) for end in (low if low < 0 else WINDOW, WINDOW)]
    reach = [abs(end) for end in ends if end is not None] + [Fraction(WINDOW // 2)]
    return frozenset(member for member in found if abs(member) < min(reach))
