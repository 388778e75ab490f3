"""The points at which two expressions are compared: of both signs and several scales, whole, or complex."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from mathrl.grading.finite_field import hash_text
from mathrl.grading.numeric import Point
from mathrl.grading.syntax import Node, children, is_complex, symbols

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
            {name: (_signed(n), _signed(n >> 24) if is_complex(name) else Fraction(0)) for name, n in numbers.items()}
        )
    return points


def _signed(random: int) -> Fraction:
    return (2 * _fraction(random) + Fraction(1, 7)) * (1 if random & 4096 else -1)


def whole_points(names: Iterable[str], whole: frozenset[str]) -> list[Point]:
    """Points with integers from 0 to 12 for the names in `whole`; the other names get fractions of both signs."""
    points: list[Point] = []
    for i in range(_WHOLE_POINTS):
        numbers = {name: hash_text(f"whole {i}:{name}") for name in names}
        below = 6 if i % 2 else 13
        points.append({name: Fraction(n % below) if name in whole else _signed(n) for name, n in numbers.items()})
    return points


def whole_names(node: Node) -> frozenset[str]:
    """The names in factorials and binomials."""
    if node.kind in ("fact", "fact2", "binom"):
        return symbols(node)
    return frozenset[str]().union(*map(whole_names, children(node)))
