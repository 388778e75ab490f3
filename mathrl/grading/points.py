r"""Points at which expressions are compared: random ones, integers, and those on every side of kinks and branches.

Points are exact rational numbers that depend on the names alone, so that a verdict is the same on every machine.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import combinations, pairwise, product
from math import prod

from mathrl.core.hashing import hash_text
from mathrl.grading.evaluate import UNIT_BRANCHES, Numeric, OutsideDomain, Point, Refused, exact_value
from mathrl.grading.syntax import Node, children, find, is_complex, kinds, neg, num, substitute, symbols

SIDES = frozenset(["cases", "abs", "floor", "ceil", "func:max", "func:min"])  # kinks with a value on both sides
WHOLE = frozenset(["fact", "fact2", "binom", "unit"])  # unit: "n even" in a case
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


def rounding_points(a: Node, b: Node, names: frozenset[str]) -> list[Point]:
    """Integers, of every remainder by what the expressions may divide by; none where that takes too many."""
    reach = {1: 130, 2: 12}.get(len(names), 0)
    for node in (a, b):
        if prod(max(1, abs(n.args[0].numerator)) * n.args[0].denominator for n in find(node, "num")) > 2 * reach:
            return []
    values = [Fraction(n) for n in (*range(reach + 1), *range(-1, -reach - 1, -1))]
    return [dict(zip(sorted(names), point, strict=True)) for point in product(values, repeat=len(names))]


def whole_names(node: Node) -> frozenset[str]:
    """The names in factorials and binomials."""
    if node.kind in WHOLE:
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
