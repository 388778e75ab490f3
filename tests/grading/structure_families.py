r"""Families of pairs whose meaning is data or membership: sets, intervals, tuples, matrices, equations, units."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tests.grading.pairs import Pair, number

STRUCTURES: dict[str, Callable[[random.Random, bool], Pair | None]] = {}


def family(make: Callable[[random.Random, bool], Pair | None]) -> Callable[[random.Random, bool], Pair | None]:
    STRUCTURES[make.__name__] = make
    return make


def _rational(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(-20, 20), rng.choice([1, 1, 1, 2, 3, 4, 5, 7]))


def _spelled(rng: random.Random, value: Fraction) -> str:
    """One of the spellings of a rational number."""
    k = rng.randint(2, 6)
    forms = [number(value).tex, f"\\frac{{{value.numerator * k}}}{{{value.denominator * k}}}"]
    if value.denominator in (1, 2, 4, 5):
        forms.append(f"{float(value):.1f}" if value.denominator == 1 else str(float(value)))
    if value.denominator == 1:
        forms.append(f"{value.numerator + k}-{k}")
    return rng.choice(forms)


def _other(rng: random.Random, value: Fraction) -> Fraction:
    opposite, twice = -value or Fraction(7), 2 * value or Fraction(3)
    return rng.choice([value + 1, value - 1, opposite, value + Fraction(1, 10), twice])


def _data(truth: str, answer: str, equal: bool, left: Any, right: Any) -> Pair:
    return Pair("", truth, answer, equal, (left, right))


@family
def rationals(rng: random.Random, equal: bool) -> Pair:
    value = _rational(rng)
    second = value if equal else _other(rng, value)
    truth = number(value).tex
    return _data(truth, _spelled(rng, second), equal, value, second)


@family
def large_integers(rng: random.Random, equal: bool) -> Pair:
    value = rng.randint(10_000, 10**9)
    second = value if equal else rng.choice([value + 1, value * 10, value - 1000, -value])
    text = rng.choice([str(second), *(f"{second:,}".replace(",", comma) for comma in (",", "{,}", "\\,"))])
    return _data(str(value), text, equal, value, second)


@family
def sets(rng: random.Random, equal: bool) -> Pair:
    values = rng.sample(sorted({_rational(rng) for _ in range(8)}), 3)
    second = rng.sample(values, 3)
    if not equal:
        i = rng.randrange(3)
        other, rest = _other(rng, second[i]), second[:i] + second[i + 1 :]
        second = rng.choice([rest, [*rest, other], [*second, other]])
    shape = rng.choice(["\\{#\\}", "#"])
    texts = (shape.replace("#", ", ".join(_spelled(rng, value) for value in items)) for items in (values, second))
    return _data(*texts, equal, sorted(values), sorted(set(second)))


@family
def solutions(rng: random.Random, equal: bool) -> Pair:
    p, q = rng.randint(1, 20), rng.randint(1, 20)
    forms = [(f"x=\\pm {p}", {p, -p}), (f"x={p} \\text{{ or }} x={-q}", {p, -q}), (f"{p}, {-q}", {p, -q})]
    truth, both = rng.choice(forms)
    kept = sorted(both) if equal else rng.choice([[p], sorted({p, q}), sorted({p + 1, -q}), [*sorted(both), 0]])
    text = rng.choice([", ".join(map(str, kept)), " \\text{ or } ".join(f"x={value}" for value in kept)])
    return _data(truth, text, equal, both, set(kept))


def _interval(rng: random.Random, ends: tuple[Fraction, Fraction], shut: tuple[bool, bool], plain: bool) -> str:
    low, high = (_spelled(rng, end) for end in ends)
    if plain or rng.random() < 0.5:
        return ("[" if shut[0] else "(") + f"{low},{high}" + ("]" if shut[1] else ")")
    left, right = ("\\le" if closed else "<" for closed in shut)
    return f"{low} {left} x {right} {high}"


@family
def intervals(rng: random.Random, equal: bool) -> Pair:
    cuts = sorted({_rational(rng) for _ in range(6)})[:4]
    if len(cuts) < 4:
        cuts = [Fraction(i) for i in (-3, 1, 4, 9)]
    pieces = [(tuple(cuts[i : i + 2]), (rng.random() < 0.5, rng.random() < 0.5)) for i in (0, 2)][: rng.choice([1, 2])]
    second = list(pieces)
    if not equal:
        i = rng.randrange(len(pieces))
        (low, high), (left, right) = pieces[i]
        ends = rng.choice([(low - 1, high), (low, high + Fraction(1, 2)), (-high, -low)])
        shut = rng.choice([(not left, right), (left, not right)])
        second[i] = rng.choice([((low, high), shut), (ends, (left, right))])
    plain = len(pieces) > 1
    texts = [[_interval(rng, *piece, plain or items is pieces) for piece in items] for items in (pieces, second)]
    if equal:
        texts[1].reverse()
    return _data("\\cup ".join(texts[0]), "\\cup ".join(texts[1]), equal, pieces, second)


@family
def rays(rng: random.Random, equal: bool) -> Pair:
    """A linear inequality, a distance or a ray, and its interval."""
    end, slope, shift = rng.randint(-9, 9), rng.choice([2, 3, -2, -5]), rng.randint(-9, 9)
    op = rng.choice(["<", ">", "\\le ", "\\ge "])
    right = (op in ("<", "\\le ")) == (slope < 0)  # the ray to the right
    open_end = op in ("<", ">")
    place, to_right, is_open = end, right, open_end
    if not equal:
        changes = [(end + 1, right, open_end), (end, not right, open_end), (end, right, not open_end)]
        place, to_right, is_open = rng.choice(changes)
    sign = "+" if shift >= 0 else "-"
    answer = rng.choice([f"{slope}x {sign} {abs(shift)} {op} {slope * end + shift}", f"{slope}x {op} {slope * end}"])
    truth = f"({place},\\infty)" if is_open else f"[{place},\\infty)"
    if not to_right:
        truth = f"(-\\infty,{place})" if is_open else f"(-\\infty,{place}]"
    return _data(truth, answer, equal, (end, right, open_end), (place, to_right, is_open))


@family
def points_beside(rng: random.Random, equal: bool) -> Pair:
    a, gap = rng.randint(-9, 9), rng.randint(1, 6)
    point = a + gap
    second = point if equal else rng.choice([point + 1, a])
    name = rng.choice("xat")
    truth = f"(-\\infty,{a}]\\cup\\{{{point}\\}}"
    return _data(truth, f"{name}\\le {a} \\text{{ or }} {name}={second}", equal, point, second)


@family
def tuples(rng: random.Random, equal: bool) -> Pair:
    values = [_rational(rng) for _ in range(rng.choice([2, 3]))]
    second = list(values)
    if not equal:
        i = rng.randrange(len(values))
        second[i] = _other(rng, second[i])
        second = rng.choice([second, values[::-1], [*values[:-1], values[-1] + 1]])
    texts = ["(" + ", ".join(_spelled(rng, value) for value in items) + ")" for items in (values, second)]
    return _data(*texts, equal, values, second)


@family
def matrices(rng: random.Random, equal: bool) -> Pair:
    rows = [[_rational(rng) for _ in range(2)] for _ in range(2)]
    second = [list(row) for row in rows]
    if not equal:
        transposed = [list(row) for row in zip(*rows, strict=True)]
        second = rng.choice([transposed, rows[::-1], [[_other(rng, rows[0][0]), rows[0][1]], rows[1]]])
    return _data(_matrix(rng, rows), _matrix(rng, second), equal, rows, second)


def _matrix(rng: random.Random, rows: list[list[Fraction]]) -> str:
    kind = rng.choice(["pmatrix", "bmatrix"])
    body = "\\\\".join(" & ".join(_spelled(rng, cell) for cell in row) for row in rows)
    return f"\\begin{{{kind}}}{body}\\end{{{kind}}}"


def _gauss(real: Fraction | int, imaginary: Fraction | int) -> str:
    sign = "-" if imaginary < 0 else "+"
    return f"{real}{sign}{abs(imaginary)}i"


@family
def complex_numbers(rng: random.Random, equal: bool) -> Pair:
    a, b, c, d = (rng.choice([-1, 1]) * rng.randint(1, 9) for _ in range(4))
    z, w = complex(a, b), complex(c, d)
    first, other = _gauss(a, b), _gauss(c, d)
    forms = [(f"({first})({other})", z * w), (f"\\overline{{{first}}}", z.conjugate()), (f"({first})^2", z * z)]
    forms += [(f"({first})+({other})", z + w), (f"i({first})", 1j * z)]
    text, value = rng.choice(forms)
    wrong = rng.choice([value.conjugate(), -value, value * 1j, value + 1])
    second = value if equal else wrong
    return _data(_gauss(int(second.real), int(second.imag)), text, equal, second, value)


@family
def equations(rng: random.Random, equal: bool) -> Pair:
    a, b, c = (rng.choice([-1, 1]) * rng.randint(1, 9) for _ in range(3))
    k = rng.choice([2, 3, -1, -4])
    square = rng.choice(["", "^2"])
    left = f"{a}x{square}{b:+d}y = {c}"
    p, q, r = a * k, b * k, c * k
    if not equal:
        p, q, r = rng.choice([(p + 1, q, r), (p, -q, r), (p, q, r + 1), (a, b, r)])
    right = rng.choice([f"{p}x{square}{q:+d}y = {r}", f"{p}x{square}{q:+d}y{-r:+d} = 0", f"{p}x{square} = {r}{-q:+d}y"])
    return _data(left, right, equal, True, a * q == b * p and a * r == c * p)


@family
def equation_or_value(rng: random.Random, equal: bool) -> Pair | None:
    if equal:
        return None
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 30)
    side = f"{a}x+{b}y"
    truth, answer = rng.choice([(f"{c}={side}", side), (f"{side}={c}", str(c)), (side, f"{c}={side}")])
    return _data(truth, answer, False, "equation", "value")


@family
def functions(rng: random.Random, equal: bool) -> Pair:
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    truth_name, answer_name = rng.sample("xtnu", 2)
    slope, shift = (a, b) if equal else rng.choice([(a + 1, b), (a, -b), (b + a, a)])
    truth = f"f({truth_name})={a}{truth_name}+{b}"
    answer = rng.choice([f"{slope}{answer_name}{shift:+d}", f"{shift}+{slope}{answer_name}"])
    return _data(truth, f"f({answer_name})={answer}", equal, (a, b), (slope, shift))


@family
def periods(rng: random.Random, equal: bool) -> Pair:
    n, k = rng.sample("nkm", 2)
    a, b = rng.choice([2, 3, 4, 6]), rng.choice([1, 2])
    c = a if equal else _next(a)
    start, second = (f"\\frac{{\\pi}}{{{value}}}+{b if b > 1 else ''}{name}\\pi" for value, name in ((a, n), (c, k)))
    return _data(start, second, equal, a, c)


def _next(value: int) -> int:
    return {2: 3, 3: 6, 4: 6, 6: 3}[value]


_UNITS = [("m", "cm", 100), ("km", "m", 1000), ("kg", "g", 1000), ("hours", "minutes", 60), ("m", "mm", 1000)]
_UNITS += [("dollars", "cents", 100), ("m/s", "cm/s", 100), ("m^2", "cm^2", 10_000)]


@family
def units(rng: random.Random, equal: bool) -> Pair:
    large, small, size = rng.choice(_UNITS)
    value = rng.randint(2, 40)
    second = value * size if equal else rng.choice([value, value * size + 1, value * size * 10])
    return _data(f"{value}\\text{{ {large}}}", f"{second}\\text{{ {small}}}", equal, value * size, second)


@family
def counted(rng: random.Random, equal: bool) -> Pair:
    p, q = rng.sample(range(2, 30), 2)
    first, second = rng.sample(["goats", "helicopters", "red pens", "boys", "cups"], 2)
    a, b = (p, q) if equal else rng.choice([(q, p), (p + 1, q), (p, q - 1)])
    counted_shape = "{} \\text{{ {} and }} {} \\text{{ {}}}"
    labelled_shape = "\\text{{{1}}}: {0}, \\text{{{3}}}: {2}"
    shape = rng.choice([counted_shape, labelled_shape])
    truth, answer = shape.format(p, first, q, second), shape.format(a, first, b, second)
    if rng.random() < 0.5:
        answer = shape.format(b, second, a, first)
    return _data(truth, answer, equal, (p, q), (a, b))


@family
def percentages(rng: random.Random, equal: bool) -> Pair:
    value = Fraction(rng.randint(1, 199), rng.choice([1, 2, 4]))
    second = value if equal else _other(rng, value)
    fraction = f"\\frac{{{second.numerator}}}{{{second.denominator}}}\\%"
    shapes = [f"{float(second):g}\\%", number(second / 100).tex, fraction]
    text = rng.choice(shapes if equal or second * 100 != value else shapes[:1])
    return _data(f"{float(value):g}\\%", text, equal, value, second)


@family
def angles(rng: random.Random, equal: bool) -> Pair:
    degrees, minutes = rng.randint(1, 170), rng.choice([6, 12, 15, 30, 42, 45])
    second = minutes if equal else (minutes + 6) % 60
    value = Fraction(degrees) + Fraction(second, 60)
    return _data(f"{degrees}^\\circ {minutes}'", f"{float(value):g}^\\circ", equal, minutes, second)


@family
def bases(rng: random.Random, equal: bool) -> Pair:
    base, value = rng.choice([2, 3, 5, 8]), rng.randint(10, 400)
    second = value if equal else value + rng.choice([1, -1, base])
    return _data(f"{_digits(value, base)}_{base}", f"{_digits(second, base)}_{{{base}}}", equal, value, second)


def _digits(value: int, base: int) -> str:
    return (_digits(value // base, base) if value >= base else "") + str(value % base)


@family
def chains(rng: random.Random, equal: bool) -> Pair:
    links = [rng.randint(1, 9) for _ in range(3)]
    total = sum(links)
    second = total if equal else rng.choice([total + 1, links[0], -total])
    working = "+".join(map(str, links)) + " = " if equal else ""
    return _data(str(total), f"x = {working}{second}", equal, total, second)
