r"""Pairs of answers that are equal or unequal by construction, seeded, any number of them.

Each pair carries its meaning in plain Python beside its LaTeX: functions of an environment of values, membership of a
set, or data. `proved` judges by that meaning alone: an unequal pair needs a point where the two differ, an equal pair
must agree at many points. What chance makes otherwise (3 + 0 x for 3) is dropped.

>>> pair = next(pairs(0, equal=False))
>>> pair.equal, proved(pair, random.Random(0))
(False, True)
"""

from __future__ import annotations

import cmath
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

Env = dict[str, Any]
NAMES = ("x", "y", "z", "n", "k", "m", "a", "b", "t")
_SCALES = (0.3, 1.0, 3.0, 10.0, 100.0, 3000.0)


class Term(NamedTuple):
    """An expression: its LaTeX, its value as Python computes it, and how it binds (0 atom, 1 product, 2 sum)."""

    tex: str
    value: Callable[[Env], Any]
    level: int = 0

    def __str__(self) -> str:
        return self.tex

    def bound(self, level: int = 0) -> str:
        """The LaTeX, in parentheses where it binds less tightly than `level`."""
        return self.tex if self.level <= level else f"\\left({self.tex}\\right)"

    def __add__(self, other: Term) -> Term:
        plus = "" if other.tex.startswith("-") else "+"
        return Term(f"{self.tex}{plus}{other.tex}", lambda env: self.value(env) + other.value(env), 2)

    def __sub__(self, other: Term) -> Term:
        right = other.bound(1) if not other.tex.startswith("-") else f"({other.tex})"
        return Term(f"{self.tex}-{right}", lambda env: self.value(env) - other.value(env), 2)

    def __mul__(self, other: Term) -> Term:
        left, right = self.bound(1), other.bound(1)
        if right.startswith("-"):
            right = f"({right})"
        apart = right[0].isdigit() or (self.level == 1 and other.level == 1) or right.startswith("\\frac")
        if (left[-1].isdigit() and apart) or right[0].isdigit():
            return Term(f"{left}\\cdot {right}", lambda env: self.value(env) * other.value(env), 1)
        return Term(f"{left} {right}", lambda env: self.value(env) * other.value(env), 1)

    def __truediv__(self, other: Term) -> Term:
        return Term(f"\\frac{{{self}}}{{{other}}}", lambda env: _quotient(self.value(env), other.value(env)), 0)

    def __pow__(self, exponent: int) -> Term:
        base = self.tex if self.level == 0 and len(self.tex) == 1 else f"\\left({self.tex}\\right)"
        return Term(f"{base}^{{{exponent}}}", lambda env: self.value(env) ** exponent, 1)


def _quotient(above: Any, below: Any) -> Any:
    exact = isinstance(above, int | Fraction) and isinstance(below, int | Fraction)
    return Fraction(above) / Fraction(below) if exact else above / below


class Pair(NamedTuple):
    """A truth and an answer: Pair("algebra", "(x+1)^2", "x^2+2x+1", True, (f, g)). `names` take integers if `whole`."""

    family: str
    truth: str
    answer: str
    equal: bool
    meaning: tuple[Any, Any]
    names: tuple[str, ...] = ()
    whole: bool = False
    complex: bool = False


def number(value: int | Fraction) -> Term:
    """An integer or a fraction."""
    value = Fraction(value)
    if value.denominator == 1:
        return Term(str(value.numerator), lambda env: value.numerator, 0 if value >= 0 else 2)
    sign = "-" if value < 0 else ""
    tex = f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    return Term(tex, lambda env: value, 1 if value < 0 else 0)


def variable(name: str) -> Term:
    return Term(name, lambda env: env[name])


def apply(name: str, inside: Term) -> Term:
    r"""\sin(u), \sqrt{u}, |u|, \lfloor u \rfloor …"""
    function, shape = _FUNCTIONS[name]
    level = 0 if shape[-1] in ")}|r" else 1
    return Term(shape.replace("#", inside.tex), lambda env: function(inside.value(env)), level)


def _log(value: Any) -> Any:
    return cmath.log(value) if isinstance(value, complex) else math.log(value)


def _cbrt(value: float) -> float:
    return math.copysign(abs(value) ** (1 / 3), value)


_FUNCTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    name: (getattr(math, name), f"\\{name}\\left(#\\right)") for name in "sin cos tan sinh cosh tanh".split()
} | {
    "sqrt": (math.sqrt, "\\sqrt{#}"),
    "cbrt": (_cbrt, "\\sqrt[3]{#}"),
    "abs": (abs, "\\left|#\\right|"),
    "ln": (_log, "\\ln\\left(#\\right)"),
    "exp": (math.exp, "e^{#}"),
    "floor": (math.floor, "\\lfloor #\\rfloor"),
    "ceil": (math.ceil, "\\lceil #\\rceil"),
    "arctan": (math.atan, "\\arctan\\left(#\\right)"),
    "arcsin": (math.asin, "\\arcsin\\left(#\\right)"),
    "arccos": (math.acos, "\\arccos\\left(#\\right)"),
}


def closed(value: Any) -> Callable[[Env], Any]:
    return lambda env: value


def environments(pair: Pair, rng: random.Random) -> Iterator[Env]:
    """Points of both signs and all scales: whole ones too, complex ones where asked."""
    for i in range(60):
        scale = _SCALES[i % 6]
        env: Env = {}
        for name in pair.names:
            if pair.whole:
                env[name] = rng.randrange(12)
            elif pair.complex:
                env[name] = complex(rng.uniform(-2, 2), rng.uniform(-2, 2))
            else:
                exact = Fraction(rng.randrange(-(10**6), 10**6), 10**6) * Fraction(scale)  # t * (1/t) is 1, not nearly
                env[name] = rng.randrange(-20, 20) if i % 7 == 0 else exact
        yield env


def proved(pair: Pair, rng: random.Random) -> bool:
    """Whether the meanings bear out what the pair claims."""
    left, right = pair.meaning
    if not callable(left):
        return bool(left == right) == pair.equal
    compared = 0
    for env in environments(pair, rng):
        try:
            first, second = left(env), right(env)
            if isinstance(first, bool):
                differ = first != second
            elif isinstance(first, int | Fraction) and isinstance(second, int | Fraction):
                if not pair.whole and abs(first) > 1e7:  # a floor of what floats round
                    continue
                differ = first != second
            else:
                gap, size = abs(first - second), 1 + abs(first) + abs(second)
                if not math.isfinite(size):
                    continue
                if size > 1e7 or 1e-9 * size < gap < 1e-6 * size:  # rounding could decide
                    continue
                differ = bool(gap >= 1e-6 * size)
        except (ValueError, ZeroDivisionError, OverflowError):
            continue
        compared += 1
        if differ:
            return not pair.equal
    return pair.equal and compared >= (1 if not pair.names else 6)


def pairs(seed: int, equal: bool | None = None) -> Iterator[Pair]:
    """Proved pairs without end, each family in turn; of one kind alone if `equal` is given."""
    from tests.grading.pair_families import FAMILIES

    rng = random.Random(seed)
    while True:
        for name, family in FAMILIES.items():
            wanted = rng.random() < 0.5 if equal is None else equal
            for _ in range(20):
                made = family(rng, wanted)
                if made is None:
                    break
                pair = made._replace(family=name)
                if pair.equal == wanted and proved(pair, rng):
                    yield pair
                    break
