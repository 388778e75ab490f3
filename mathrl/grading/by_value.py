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

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import chain, combinations, pairwise
from typing import Any

from mathrl.core.hashing import hash_text
from mathrl.grading.evaluate import (
    HIGH_PRECISION,
    UNIT_BRANCHES,
    UNKNOWN,
    Numeric,
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
from mathrl.grading.syntax import (
    Node,
    children,
    explain,
    find,
    is_complex,
    key,
    kinds,
    neg,
    num,
    of_matrices,
    substitute,
    symbols,
)

TASK_OPERATORS = frozenset("sum prod int iint iiint oint lim derivative det gcd lcm mod bigcap limsup liminf".split())
_COMPLEX = frozenset(["func:conj", "func:Re", "func:Im", "func:arg"])
_SIDES = frozenset(["cases", "abs", "floor", "ceil", "func:max", "func:min"])  # kinks with a value on both sides
_FINE = _SIDES | {"func"}
_WHOLE = frozenset(["fact", "fact2", "binom", "unit"])  # unit: "n even" in a case


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
    if "cases" in both and any(
        _has_words(part[0]) for node in (a, b) for case in find(node, "cases") for part in case.args[0]
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
        if "pow" in both and (of_matrices(a) or of_matrices(b)):
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
    sides = bool(kinds(a) & _SIDES) and agree is nearly_equal
    factorials = "fact" not in kinds(b) or "fact" in kinds(a)
    if not factorials and not whole_names(b) <= INTEGER_NAMES:
        return False
    for real, needed, points in _stages(a, b):
        compared = left_out = undefined = 0
        for values in points:
            pair = _pair(a, b, values, real, log_base)
            if pair is None:
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
        if left_out > 1 or (not factorials and undefined > compared):  # a factorial leaves out most points
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
    elif both & _WHOLE:
        whole = whole_names(a) | whole_names(b) | (names & INTEGER_NAMES)
        yield "const:i" not in both, 4, whole_points(names, whole)
    elif both & _COMPLEX:
        yield False, 4, complex_points(names)
    else:
        points = real_points(names)
        if "const:i" not in both:
            yield True, 2, chain(points, branch_points(a, b, names) if has_kinks(both, a, b) else ())
            if names & INTEGER_NAMES:
                yield True, 4, whole_points(names, names & INTEGER_NAMES)
        yield False, 2, points[:4]


# Letters that usually stand for integers.
INTEGER_NAMES = frozenset("nkmjl")
_WHOLE_POINTS = 24

# Values by pattern, from a random fraction in (0, 1) and the random number that it was made of.
_PATTERNS: dict[str, Callable[[Fraction, int], Fraction]] = {
    "positive": lambda small, random: 2 * small + Fraction(1, 7),
    "small": lambda small, random: small,
    "negative": lambda small, random: -2 * small,
    "mixed": lambda small, random: 3 * small * (1 if random & 4096 else -1),
    "large": lambda small, random: 1 + 5 * small,
    "far": lambda small, random: 10 + 1000 * small,
    "far negative": lambda small, random: -10 - 1000 * small,
    "tiny": lambda small, random: small / 500 * (1 if random & 8192 else -1),
}


def _fraction(random: int) -> Fraction:
    return Fraction(random % 4093 + 1, 4099)


def real_points(names: Iterable[str]) -> list[Point]:
    """Random rational points, one per pattern; a name has the same value in every pair of expressions."""
    points: list[Point] = []
    for pattern, value in _PATTERNS.items():
        numbers = {name: hash_text(f"{pattern}:{name}") for name in names}
        points.append({name: value(_fraction(n), n) for name, n in numbers.items()})
    return points


def complex_points(names: Iterable[str]) -> list[Point]:
    """Random points: z and w off the real line, in all four quadrants, the other names on it."""
    points: list[Point] = []
    for i in range(6):
        numbers = {name: hash_text(f"complex {i}:{name}") for name in names}
        points.append(
            {
                name: (_signed_fraction(n), _signed_fraction(n >> 24) if is_complex(name) else Fraction(0))
                for name, n in numbers.items()
            }
        )
    return points


def _signed_fraction(random: int) -> Fraction:
    return (2 * _fraction(random) + Fraction(1, 7)) * (1 if random & 4096 else -1)


def whole_points(names: Iterable[str], whole: frozenset[str]) -> list[Point]:
    """Points with integers from 0 to 12 for the names in `whole`; the other names get fractions of both signs."""
    points: list[Point] = []
    for i in range(_WHOLE_POINTS):
        numbers = {name: hash_text(f"whole {i}:{name}") for name in names}
        below = 6 if i % 2 else 13
        points.append(
            {name: Fraction(n % below) if name in whole else _signed_fraction(n) for name, n in numbers.items()}
        )
    return points


def whole_names(node: Node) -> frozenset[str]:
    """The names in factorials and binomials."""
    if node.kind in _WHOLE:
        return symbols(node)
    return frozenset[str]().union(*map(whole_names, children(node)))


# Points on every side of the kinks and branches. |x - 190| changes its form where x - 190 is zero, \lfloor x/5 \rfloor
# where x/5 is 0 or 1, \max(a, b) where a - b is zero, \arcsin u where u is 1 or -1. Between such breaks an expression
# is analytic, so that a point in each interval shows a difference there. Breaks are sought along lines: one name
# varies, the others stay at a base point.
KINKS = frozenset(["abs", "root", "floor", "ceil", "cases"]) | {
    f"func:{name}"
    for name in "max min ln log log10 arcsin arccos arctan arccot arcsec arccsc arccosh arctanh arccoth arcsech".split()
}
_GRID = [0.05, 0.3, 0.7, 1.2, 1.9, 2.7, 3.6, 4.6, 6.1, 8.3, 11.0, 16.0, 25.0, 45.0, 90.0, 200.0, 500.0, 1500.0, 1e4]

_MAX_BREAKS = 16
_MAX_POINTS = 48
_POLYNOMIAL = frozenset(["num", "sym", "add", "mul", "div", "pow", "percent"])


def has_kinks(both: frozenset[str], *nodes: Node) -> bool:
    """Whether the trees, of these kinds, have a kink or branch."""
    return bool(both & KINKS) or ("pow" in both and any(map(_fractional_power, nodes)))


def _fractional_power(node: Node) -> bool:
    if node.kind == "pow" and not _is_integer(node.args[1]):
        return True
    return any(map(_fractional_power, children(node)))


def _is_integer(node: Node) -> bool:
    return node.kind == "num" and bool(node.args[0].denominator == 1)


def branch_points(a: Node, b: Node, names: frozenset[str]) -> Iterator[Point]:
    """A point, or two, in each interval between breaks; at most 48, spread over the lines.

    They are sought when the first is asked for: most unequal pairs differ before.
    """
    switches = [switch for switch in dict.fromkeys([*_switches(a), *_switches(b)]) if symbols(switch)]
    steps = not {"floor", "ceil", "cases"}.isdisjoint(
        kinds(a) | kinds(b)
    )  # their value at a break is another than beside it
    points: list[Point] = []
    bases = real_points(sorted(names))
    for base in bases[:1] if len(names) == 1 else [bases[i] for i in (0, 2, 3, 4)]:
        for name in sorted(names):
            breaks = _breaks(switches, name, base)
            values = [*_between(breaks), *(breaks if steps else ())]
            points += [base | {name: Fraction(value).limit_denominator(10**6)} for value in values]
    step = max(1, -(-len(points) // _MAX_POINTS))
    yield from points[::step]


def _switches(node: Node) -> Iterator[Node]:
    """The expressions whose zeros are breaks, innermost first."""
    for child in children(node):
        yield from _switches(child)
    kind, args = node.kind, node.args
    if kind == "abs" or kind == "root" or (kind == "pow" and not _is_integer(args[1])):
        yield from _factors(args[0])
    elif kind == "div":
        yield from _factors(args[1])
    elif kind in ("floor", "ceil"):
        yield args[0]
        yield from (_minus(args[0], num(value)) for value in (1, -1))
    elif kind == "cases":
        for relation in find(args[0], "rel"):
            yield from (_minus(left, right) for left, right in pairwise(relation.args[1]))
    elif kind == "func":
        name, *values = args
        if name in ("max", "min"):
            yield from (_minus(left, right) for left, right in combinations(values[:5], 2))
        elif name in ("ln", "log", "log10"):
            for value in values:
                yield from _factors(value)
        elif name in UNIT_BRANCHES:
            yield from (_minus(values[0], num(value)) for value in (1, -1))


def _has_words(node: Node) -> bool:
    return bool(kinds(node) & {"unit", "text"})


def _too_fine(node: Node, inside: bool = False) -> bool:
    """Whether a number in a kink or function of names is so small or large that points may miss what it does."""
    if inside and not symbols(node):
        try:
            value = exact_value(node)
        except Refused:
            return True
        return value is not None and value != 0 and not _FINEST < abs(value) < 1 / _FINEST
    inside = (inside or node.kind in _SIDES or node.kind == "func") and bool(symbols(node))
    return any(_too_fine(child, inside) for child in children(node))


_FINEST = Fraction(1, 10**7)


def _factors(node: Node) -> Iterator[Node]:
    """The factors of a product, quotient or power: together they have its zeros and poles."""
    if node.kind in ("mul", "div"):
        for child in children(node):
            yield from _factors(child)
    elif node.kind in ("pow", "root"):
        yield from _factors(node.args[0])
    else:
        yield node


def _minus(left: Node, right: Node) -> Node:
    return Node("add", ((left, neg(right)),))


def _breaks(switches: list[Node], name: str, base: Point) -> list[float]:
    """Where a switch changes its sign or comes close to zero along a line, in order."""
    breaks: list[float] = []
    for switch in switches:
        if name not in symbols(switch):
            continue
        others = {other: num(value) for other, value in base.items() if other != name and isinstance(value, Fraction)}
        line = substitute(switch, others) if others else switch
        roots = _polynomial_roots(line, name) if kinds(line) <= _POLYNOMIAL else None
        for value in _search_breaks(line, name, breaks) if roots is None else roots:
            if all(abs(value - other) > 1e-9 * (1 + abs(value)) for other in breaks):
                insort(breaks, value)
    return breaks


def _between(breaks: list[float]) -> Iterator[float]:
    """Values in each interval, and at two distances beyond the outermost breaks."""
    if not breaks:
        return
    reach = 1 + abs(breaks[0]) + abs(breaks[-1])
    yield from (breaks[0] - 0.37, breaks[0] - 3.1 * reach, breaks[-1] + 0.41, breaks[-1] + 2.9 * reach)
    step = max(1, -(-len(breaks) // _MAX_BREAKS))
    for low, high in list(pairwise(breaks))[::step]:
        yield from (low + 0.31 * (high - low), low + 0.77 * (high - low))


def _polynomial_roots(line: Node, name: str) -> list[float] | None:
    """The real roots and turning points of a polynomial of degree four or less; None where it is not one."""
    values: list[Fraction] = []
    try:
        for x in range(7):
            value = exact_value(substitute(line, {name: num(x)}))
            if value is None:
                return None
            values.append(value)
    except Refused:
        return None
    coefficients: list[Fraction] = []  # of Newton's form, by divided differences
    for order in range(7):
        coefficients.append(values[0])
        values = [(right - left) / (order + 1) for left, right in pairwise(values)]
    if any(coefficients[5:]):
        return None
    powers = [Fraction(0)] * 5
    for order in reversed(range(5)):  # Horner: powers * (x - order) + coefficient
        powers = [low - order * high for low, high in zip([Fraction(0), *powers[:4]], powers, strict=True)]
        powers[0] += coefficients[order]
    try:
        return _roots([float(power) for power in powers])
    except OverflowError:
        return None


def _roots(powers: list[float]) -> list[float]:
    """Real roots of a polynomial and of its derivatives; `powers` are its coefficients from the constant up."""
    while powers and powers[-1] == 0:
        powers = powers[:-1]
    if len(powers) < 2:
        return []
    if len(powers) == 2:
        return [-powers[0] / powers[1]]

    def value(x: float) -> float:
        total = 0.0
        for power in reversed(powers):
            total = total * x + power
        return total

    turning = sorted(_roots([i * power for i, power in enumerate(powers)][1:]))
    bound = 1 + max(abs(power / powers[-1]) for power in powers)
    ends = [-bound, *turning, bound]
    return turning + [_find_crossing(value, low, high) for low, high in pairwise(ends) if value(low) * value(high) < 0]


def _find_crossing(value: Callable[[float], float], low: float, high: float) -> float:
    positive = value(high) > 0
    for _ in range(40):
        middle = (low + high) / 2
        if (value(middle) > 0) == positive:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _search_breaks(line: Node, name: str, breaks: list[float]) -> list[float]:
    """Changes of sign and smallest absolute values of an expression on a grid, refined."""
    if len(symbols(line)) > 1:
        return []

    def value(x: float) -> float:
        return quick_value(line, name, x)

    grid = sorted({*_GRID, *(-x for x in _GRID), *breaks, *_between(breaks)})
    values = [value(x) for x in grid]
    places: list[float] = []
    for i, (low, high) in enumerate(pairwise(grid)):
        if len(places) == _MAX_BREAKS:
            break
        if values[i] * values[i + 1] < 0:
            places.append(_find_crossing(value, low, high))
        elif i and abs(values[i - 1]) > abs(values[i]) <= abs(values[i + 1]) and values[i - 1] * values[i] >= 0:
            places.append(_smallest(value, grid[i - 1], high))
    return places


def _smallest(value: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(24):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if abs(value(first)) <= abs(value(second)):
            high = second
        else:
            low = first
    return (low + high) / 2


def quick_value(node: Node, name: str, value: float) -> float:
    """The real value in 53-bit arithmetic where one name has a value; not a number where there is none."""
    from mpmath import fp  # type: ignore[import-untyped]  # 60 ms, seldom needed

    try:
        return float(Numeric({name: Fraction(value)}, True, 0, fp)(node).real)
    except (Refused, OutsideDomain, OverflowError, ZeroDivisionError, TypeError):
        return float("nan")
