r"""Families of pairs of words, order and structure: units, qualifiers, set-builders, congruences and logic.

Each pair carries its meaning as plain data: a quantity in base units with its qualifiers, the members of a set in a
long window, a truth table, an ordered tuple.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

from tests.grading.pairs import Pair

TEXTS: dict[str, Callable[[random.Random, bool], Pair | None]] = {}
Family = Callable[[random.Random, bool], Pair | None]


def family(make: Family) -> Family:
    TEXTS[make.__name__] = make
    return make


def _data(truth: str, answer: str, equal: bool, left: Any, right: Any) -> Pair:
    return Pair("", truth, answer, equal, (left, right))


# Spellings -> (quantity, size in a base unit).
_UNITS = {
    "mm": ("length", Fraction(1, 1000)), "cm": ("length", Fraction(1, 100)), "meters": ("length", Fraction(1)),
    "km": ("length", Fraction(1000)), "g": ("mass", Fraction(1, 1000)), "kg": ("mass", Fraction(1)),
    "seconds": ("time", Fraction(1)), "minutes": ("time", Fraction(60)), "hours": ("time", Fraction(3600)),
    "km/h": ("speed", Fraction(5, 18)), "m/s": ("speed", Fraction(1)), "dollars": ("dollar", Fraction(1)),
    "cents": ("dollar", Fraction(1, 100)), "euros": ("euro", Fraction(1)), "J": ("energy", Fraction(1)),
    "kJ": ("energy", Fraction(1000)), "cm^2": ("area", Fraction(1, 10**4)), "m^2": ("area", Fraction(1)),
    "square meters": ("area", Fraction(1)), "liters": ("volume", Fraction(1, 1000)), "m^3": ("volume", Fraction(1)),
}  # fmt: skip
_QUALIFIERS = (
    "north south east west more less profit loss increase decrease above below left right odd even wrong faster slower"
).split()
_NOUNS = "apples pears boys girls books pencils cats dogs tickets marbles".split()


def _number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


@family
def units(rng: random.Random, equal: bool) -> Pair:
    unit = rng.choice(list(_UNITS))
    value = Fraction(rng.randint(1, 90))
    kind, size = _UNITS[unit]
    alike = [name for name, (other, _) in _UNITS.items() if other == kind]
    others = [name for name in _UNITS if name not in alike]
    second = rng.choice(alike) if equal or (len(alike) > 1 and rng.random() < 0.5) else rng.choice(others)
    other_kind, other_size = _UNITS[second]
    amount = value * size / other_size if equal else value
    texts = f"{value} \\text{{ {unit}}}", f"{_number(amount)} \\text{{ {second}}}"
    return _data(*texts, equal, (kind, value * size), (other_kind, amount * other_size))


@family
def qualifiers(rng: random.Random, equal: bool) -> Pair:
    value, unit = rng.randint(2, 99), rng.choice(["", "km ", "dollars ", "m "])
    first = rng.choice(_QUALIFIERS)
    second = first if equal else rng.choice([*_QUALIFIERS, ""])
    spaced = rng.choice([" ", "\\ ", "\\,"])
    return _data(
        f"{value} \\text{{ {unit}{first}}}",
        f"{value}{spaced}\\text{{{unit}{second}}}",
        equal,
        (value, first),
        (value, second),
    )


@family
def counted(rng: random.Random, equal: bool) -> Pair:
    value, noun = rng.randint(2, 99), rng.choice(_NOUNS)
    second, other = (
        (value, rng.choice([noun, noun, "ways"]))
        if equal
        else rng.choice([(value, rng.choice([n for n in _NOUNS if n != noun])), (value + 1, noun)])
    )
    meant = noun if other == "ways" else other
    return _data(f"{value} \\text{{ {noun}}}", f"{second} \\text{{ {other}}}", equal, (value, noun), (second, meant))


_CHANGES: dict[str, Callable[[int], Fraction]] = {
    "squared": lambda n: Fraction(n**2), "cubed": lambda n: Fraction(n**3), "dozen": lambda n: Fraction(12 * n),
    "tenths": lambda n: Fraction(n, 10), "hundredths": lambda n: Fraction(n, 100),
    "hundred": lambda n: Fraction(100 * n), "thousand": lambda n: Fraction(1000 * n),
    "million": lambda n: Fraction(10**6 * n),
}  # fmt: skip


@family
def number_words(rng: random.Random, equal: bool) -> Pair:
    n, word = rng.randint(2, 30), rng.choice(list(_CHANGES))
    value = _CHANGES[word](n)
    other = value if equal else rng.choice([Fraction(n), value + 1, value * 10])
    return _data(_number(other), f"{n} \\text{{ {word}}}", equal, other, value)


_RANGE = range(-600, 601)


@family
def congruences(rng: random.Random, equal: bool) -> Pair:
    modulus, remainder = rng.randint(2, 12), rng.randint(-9, 20)
    m, r = modulus, remainder
    if equal:
        r += modulus * rng.randint(-3, 3)
    else:
        m, r = rng.choice([(modulus, remainder + rng.randint(1, modulus - 1)), (2 * modulus, remainder)])
    name = rng.choice("kmn")
    plus = f"+{r}" if r > 0 else str(r) if r else ""
    forms = [
        f"x\\equiv {r}\\pmod{{{m}}}", f"x\\equiv {r} \\pmod {m}", f"x={m}{name}{plus}, {name}\\in\\mathbb{{Z}}",
        f"x = {m}{name}{plus} \\text{{ for }} {name} \\in \\mathbb{{Z}}",
    ]  # fmt: skip
    members = [{x for x in _RANGE if (x - b) % a == 0} for a, b in ((modulus, remainder), (m, r))]
    return _data(f"x\\equiv {remainder}\\pmod{{{modulus}}}", rng.choice(forms), equal, *members)


_TESTS: dict[str, tuple[str, Callable[[int], bool]]] = {
    "even": ("n \\text{ is even}", lambda n: n % 2 == 0),
    "odd": ("n \\text{ is odd}", lambda n: n % 2 == 1),
    "three": ("3 \\mid n", lambda n: n % 3 == 0),
    "square": ("n^2 < 50", lambda n: n * n < 50),
    "range": ("-3 \\le n \\le 8", lambda n: -3 <= n <= 8),
    "large": ("n > 4", lambda n: n > 4),
    "prime": ("n \\text{ is prime}", lambda n: n > 1 and all(n % d for d in range(2, n))),
    "class": ("n \\equiv 2 \\pmod 5", lambda n: n % 5 == 2),
}
_IMAGES: dict[str, tuple[str, Callable[[int], int]]] = {
    "even": ("2k", lambda k: 2 * k), "odd": ("2k+1", lambda k: 2 * k + 1), "odd again": ("2k-5", lambda k: 2 * k - 5),
    "three": ("3k", lambda k: 3 * k), "class": ("5k-3", lambda k: 5 * k - 3), "squares": ("k^2", lambda k: k * k),
    "cubes": ("k^3", lambda k: k**3), "negative": ("-2k+4", lambda k: -2 * k + 4),
}  # fmt: skip


def _built(rng: random.Random) -> tuple[str, set[int]]:
    if rng.random() < 0.5:
        tex, test = rng.choice(list(_TESTS.values()))
        bar = rng.choice([":", "\\mid"]) if "mid" not in tex else ":"
        return f"\\{{n \\in \\mathbb{{Z}} {bar} {tex}\\}}", {n for n in _RANGE if abs(n) < 100 and test(n)}
    tex, image = rng.choice(list(_IMAGES.values()))
    return f"\\{{{tex} : k \\in \\mathbb{{Z}}\\}}", {image(k) for k in _RANGE if abs(image(k)) < 100}


@family
def builders(rng: random.Random, equal: bool) -> Pair | None:
    """Sets of integers: the members below a hundred tell these apart."""
    first, members = _built(rng)
    for _ in range(60):
        second, others = _built(rng)
        if (members == others) == equal and (not equal or first != second):
            return _data(first, second, equal, members, others)
    return None


@family
def planes(rng: random.Random, equal: bool) -> Pair:
    """Sets of pairs, by a pattern or by an equation."""
    a, b = rng.sample(range(1, 9), 2)
    first = (a, b) if rng.random() < 0.5 else (b, a)
    second = first if equal else (first[1], first[0])
    names = rng.choice([("t", "t"), ("t", "s")])

    def tex(pair: tuple[int, int], name: str) -> str:
        terms = [name if n == 1 else f"{n}{name}" for n in pair]
        return f"\\{{({terms[0]}, {terms[1]}) : {name} \\in \\mathbb{{R}}\\}}"

    return _data(tex(first, names[0]), tex(second, names[1]), equal, first, second)


@family
def nested_sets(rng: random.Random, equal: bool) -> Pair:
    parts = rng.sample(range(1, 20), 3)
    shapes = [
        (f"\\{{{parts[0]}, {parts[1]}\\}}", frozenset(parts[:2])),
        (f"\\{{\\{{{parts[0]}\\}}, {parts[1]}\\}}", frozenset([frozenset(parts[:1]), parts[1]])),
        (f"\\{{{parts[1]}, \\{{{parts[0]}\\}}\\}}", frozenset([frozenset(parts[:1]), parts[1]])),
        (f"\\{{\\{{{parts[0]}, {parts[1]}\\}}\\}}", frozenset([frozenset(parts[:2])])),
        (f"\\{{\\{{{parts[1]}, {parts[0]}\\}}\\}}", frozenset([frozenset(parts[:2])])),
        (f"\\{{{parts[1]}, {parts[0]}\\}}", frozenset(parts[:2])),
        ("\\{\\emptyset\\}", frozenset([frozenset()])),
        ("\\emptyset", frozenset()),
        ("\\{\\}", frozenset()),
    ]
    first, meaning = rng.choice(shapes)
    fitting = [shape for shape in shapes if (shape[1] == meaning) == equal]
    second, other = rng.choice(fitting)
    return _data(first, second, equal, meaning, other)


_FORMULAS: list[tuple[str, Callable[[bool, bool], bool]]] = [
    ("p \\land q", lambda p, q: p and q), ("q \\land p", lambda p, q: p and q), ("p \\lor q", lambda p, q: p or q),
    ("q \\lor p", lambda p, q: p or q), ("p \\implies q", lambda p, q: not p or q),
    ("q \\implies p", lambda p, q: not q or p), ("q \\impliedby p", lambda p, q: not p or q),
    ("p \\iff q", lambda p, q: p == q), ("q \\iff p", lambda p, q: p == q),
    ("\\neg p \\land q", lambda p, q: not p and q),
    ("q \\land \\neg p", lambda p, q: not p and q), ("p \\land \\neg q", lambda p, q: p and not q),
]  # fmt: skip


@family
def logic(rng: random.Random, equal: bool) -> Pair | None:
    first, left = rng.choice(_FORMULAS)
    table = [left(p, q) for p, q in product((False, True), repeat=2)]
    tables = {tex: [value(p, q) for p, q in product((False, True), repeat=2)] for tex, value in _FORMULAS}
    fitting = [tex for tex, other in tables.items() if (other == table) == equal]
    second = rng.choice(fitting)
    return _data(first, second, equal, table, tables[second])


_DIRECTED = [
    ("\\subset", "\\supset"),
    ("\\subseteq", "\\supseteq"),
    ("<", ">"),
    ("\\le", "\\ge"),
    ("\\implies", "\\impliedby"),
]


@family
def directions(rng: random.Random, equal: bool) -> Pair:
    """A relation and its mirror image; one that reads the other way, or another relation."""
    i = rng.randrange(len(_DIRECTED))
    there, back = _DIRECTED[i]
    other = _DIRECTED[i - 1][0]
    right = rng.choice([("A", there, "B"), ("B", back, "A")])
    wrong = rng.choice([("B", there, "A"), ("A", back, "B"), ("A", other, "B")])
    made = right if equal else wrong
    meaning = (made[0], made[1], made[2]) if made[1] != back else (made[2], there, made[0])
    return _data(f"A {there} B", " ".join(made), equal, ("A", there, "B"), meaning)


@family
def ordered_names(rng: random.Random, equal: bool) -> Pair:
    """Angles, rays and segments by their points; derivatives by their names; cross products."""
    points = rng.sample("ABCDEF", 3)
    angle = rng.random() < 0.5
    shape = "\\angle {}" if angle else "\\overrightarrow{{{}}}"
    second = rng.choice([points, points[::-1] if angle else points])
    if not equal:
        second = rng.choice([points[::-1], [points[1], points[0], points[2]]])

    def keep(names: list[str]) -> list[str]:
        return min(names, names[::-1]) if angle else names

    texts = [shape.format("".join(group)) for group in (points, second)]
    return _data(*texts, equal, keep(points), keep(second))


@family
def derivatives(rng: random.Random, equal: bool) -> Pair:
    y, x = rng.sample("yuvtxs", 2)
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    right = rng.choice([f"{a}{x}+{b}", f"{b}+{a}{x}", f"{a}\\left({x}+\\frac{{{b}}}{{{a}}}\\right)"])
    meaning = (y, x, 1, a, b)
    if equal:
        return _data(f"\\frac{{d{y}}}{{d{x}}}={a}{x}+{b}", f"\\frac{{d{y}}}{{d{x}}} = {right}", True, meaning, meaning)
    changed = rng.choice([(x, y, 1, a, b), (y, x, 2, a, b), (y, x, 1, a + 1, b), (y, x, 1, a, b + 1)])
    top, below, order, slope, shift = changed
    mark = f"\\frac{{d^2{top}}}{{d{below}^2}}" if order == 2 else f"\\frac{{d{top}}}{{d{below}}}"
    return _data(f"\\frac{{d{y}}}{{d{x}}}={a}{x}+{b}", f"{mark}={slope}{x}+{shift}", False, meaning, changed)


@family
def piecewise(rng: random.Random, equal: bool) -> Pair:
    """Two pieces, in either order; |x - c| in cases; another cut, another value, another end."""
    cut, a, b = rng.randint(-5, 5), rng.randint(-9, 9), rng.randint(1, 9)
    changed = (cut, a, b) if equal else rng.choice([(cut + 1, a, b), (cut, a + 1, b), (cut, a, b + 1)])

    def tex(case: tuple[int, int, int], swapped: bool, words: bool) -> str:
        c, low, slope = case
        slope_text = "" if slope == 1 else str(slope)
        lower, upper = (f"{low}", f"x < {c}"), (f"{slope_text}x", f"x \\ge {c}")
        rows = [upper, lower] if swapped else [lower, upper]
        link = " & \\text{if } " if words else " & "
        return "\\begin{cases}" + " \\\\ ".join(link.join(row) for row in rows) + "\\end{cases}"

    def values(case: tuple[int, int, int]) -> list[int]:
        c, low, slope = case
        return [low if x < 10 * c else slope * x for x in range(-80, 81)]

    texts = tex((cut, a, b), False, False), tex(changed, rng.random() < 0.5, rng.random() < 0.5)
    return _data(*texts, equal, values((cut, a, b)), values(changed))


@family
def vectors(rng: random.Random, equal: bool) -> Pair:
    """Columns, transposed rows and unit vectors."""
    parts = [rng.randint(-9, 9) or 3 for _ in range(3)]
    second = list(parts)
    if not equal:
        i = rng.randrange(3)
        second = rng.choice([[*second[:i], second[i] + 1, *second[i + 1 :]], second[::-1]])
    row = ", ".join(map(str, second))
    forms = [
        f"({row})^T", f"\\begin{{bmatrix}}{' & '.join(map(str, second))}\\end{{bmatrix}}^T", f"\\langle {row}\\rangle",
        "\\begin{pmatrix}" + " \\\\ ".join(map(str, second)) + "\\end{pmatrix}",
    ]  # fmt: skip
    column = "\\begin{pmatrix}" + " \\\\ ".join(map(str, parts)) + "\\end{pmatrix}"
    hats = ["\\hat{i}", "\\hat{j}", "\\hat{k}"], ["\\mathbf{i}", "\\mathbf{j}", "\\mathbf{k}"]
    if rng.random() < 0.5:
        texts = [
            "".join(f"{value:+d}{name}" for value, name in zip(values, names, strict=True)).lstrip("+")
            for values, names in zip((parts, second), hats, strict=True)
        ]
        return _data(texts[0], texts[1], equal, parts, second)
    return _data(column, rng.choice(forms), equal, parts, second)


@family
def periods(rng: random.Random, equal: bool) -> Pair:
    """Families beside pi: multiples of pi/12 within one turn of 24."""
    step, start = rng.choice([(12, 2), (12, 3), (24, 4), (24, 8), (6, 3), (12, 6)])
    other_step, other_start = step, start + step * rng.randint(-2, 2)
    if not equal:
        other_step, other_start = rng.choice(
            [(step, start + 1), (step, start + step // 2), (24 if step != 24 else 12, start)]
        )

    def tex(period: int, shift: int, name: str) -> str:
        parts = [Fraction(shift, 12), Fraction(period, 12)]
        first, second = (
            ("" if part == 1 else str(part.numerator)) + "\\pi" if part.denominator == 1
            else f"\\frac{{{part.numerator}\\pi}}{{{part.denominator}}}" for part in parts
        )  # fmt: skip
        return f"x = {first} + {second} {name}" if shift else f"x = {second} {name}"

    members = [frozenset((b + a * i) % 48 for i in range(48)) for a, b in ((step, start), (other_step, other_start))]
    domain = ", k \\in \\mathbb{Z}", ", n \\in \\mathbb{Z}"
    return _data(tex(step, start, "k") + domain[0], tex(other_step, other_start, "n") + domain[1], equal, *members)
