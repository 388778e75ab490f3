r"""The families of pairs: each makes an equal or an unequal pair from a random generator, or None if it has none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tests.grading.pairs import Pair, Term, apply, closed, number, variable
from tests.grading.structure_families import STRUCTURES
from tests.grading.text_families import TEXTS

Family = Callable[[random.Random, bool], Pair | None]
FAMILIES: dict[str, Family] = {}


def family(make: Family) -> Family:
    FAMILIES[make.__name__] = make
    return make


def _pair(truth: Term, answer: Term, equal: bool, names: str, **options: bool) -> Pair:
    return Pair("", truth.tex, answer.tex, equal, (truth.value, answer.value), tuple(names), **options)


def _either(rng: random.Random, first: Term, second: Term, equal: bool, names: str, **options: bool) -> Pair:
    """The two in either role."""
    if rng.random() < 0.5:
        first, second = second, first
    return _pair(first, second, equal, names, **options)


def _name(rng: random.Random) -> str:
    return rng.choice("xyabtpqr")


def _near(rng: random.Random, value: int) -> int:
    """Another integer: off by one or so, or of the other sign."""
    return rng.choice([value + 1, value - 1, -value or 5, value + 10, 2 * value or 3])


def _linear(rng: random.Random, name: str) -> Term:
    slope, shift = rng.choice([1, 1, 2, 3, -1, -2, 5]), rng.randint(-9, 9)
    line = variable(name) if slope == 1 else number(slope) * variable(name)
    return line + number(shift) if shift else line


def _polynomial(coefficients: list[int], name: str) -> Term:
    """The polynomial with these coefficients from the constant up, the highest power first."""
    terms = []
    for power, coefficient in enumerate(coefficients):
        if coefficient:
            sign = "-" if coefficient < 0 else ""
            factor = "" if abs(coefficient) == 1 and power else str(abs(coefficient))
            terms.append(f"{sign}{factor}" + (f"{name}^{{{power}}}" if power > 1 else name if power else ""))
    text = "+".join(reversed(terms)).replace("+-", "-") or "0"
    return Term(text, lambda env: sum(c * env[name] ** p for p, c in enumerate(coefficients)), 2)


@family
def factored(rng: random.Random, equal: bool) -> Pair:
    name = _name(rng)
    roots = [rng.randint(-9, 9) for _ in range(rng.choice([2, 2, 3]))]
    scale = rng.choice([1, 1, 2, -3])
    coefficients = [scale]
    for root in roots:
        coefficients = [low - root * high for low, high in zip([0, *coefficients], [*coefficients, 0], strict=True)]
    product = number(scale) if scale != 1 else None
    for root in roots:
        factor = variable(name) - number(root) if root >= 0 else variable(name) + number(-root)
        product = factor if product is None else product * factor
    assert product is not None
    if not equal:
        i = rng.randrange(len(coefficients))
        coefficients[i] = _near(rng, coefficients[i])
    return _either(rng, _polynomial(coefficients, name), product, equal, name)


@family
def freshman(rng: random.Random, equal: bool) -> Pair:
    a, b = rng.sample("xyab", 2)
    power = rng.choice([2, 2, 3])
    total = (variable(a) + number(rng.choice([1, 2, 3])) * variable(b)) ** power
    c = int(total.value({a: 0, b: 1}) ** (1 / power) + 0.5)
    if equal and power == 2:
        right = variable(a) ** 2 + number(2 * c) * variable(a) * variable(b) + number(c * c) * variable(b) ** 2
    elif equal:
        right = variable(a) ** 3 + number(3 * c) * variable(a) ** 2 * variable(b)
        right = right + number(3 * c * c) * variable(a) * variable(b) ** 2 + number(c**3) * variable(b) ** 3
    else:
        right = variable(a) ** power + number(c**power) * variable(b) ** power
    return _either(rng, total, right, equal, a + b)


@family
def rational(rng: random.Random, equal: bool) -> Pair:
    name = _name(rng)
    p, q = rng.sample(range(-9, 10), 2)
    u, v = (variable(name) + number(value) for value in (p, q))
    left = number(1) / u + number(1) / v
    shift = p + q if equal else _near(rng, p + q)
    return _either(rng, left, (number(2) * variable(name) + number(shift)) / (u * v), equal, name)


@family
def radical_number(rng: random.Random, equal: bool) -> Pair:
    k, m = rng.randint(2, 12), rng.choice([2, 3, 5, 6, 7, 10, 11])
    outside = k if equal else _near(rng, k)
    left = apply("sqrt", number(k * k * m))
    shapes = [number(outside) * apply("sqrt", number(m)), number(outside * m) / apply("sqrt", number(m))]
    return _either(rng, left, rng.choice(shapes), equal, "")


@family
def conjugate_radicals(rng: random.Random, equal: bool) -> Pair:
    a, b = rng.sample([2, 3, 5, 6, 7, 10, 11, 13], 2)
    p, q = apply("sqrt", number(a)), apply("sqrt", number(b))
    wrong = [(p - q) / number(a - b), p + q, apply("sqrt", number(a + b))]
    right = (p + q) / number(a - b) if equal else rng.choice(wrong)
    return _either(rng, number(1) / (p - q), right, equal, "")


@family
def radical_split(rng: random.Random, equal: bool) -> Pair:
    a, b = rng.sample("xyab", 2)
    u, v = variable(a), variable(b)
    if equal:
        return _either(rng, apply("sqrt", u**2 * v**4), apply("abs", u) * v**2, True, a + b)
    wrong = [(u**2 + v**2, u + v), (u + v, apply("sqrt", u) + apply("sqrt", v)), (u**2 * v**2, u * v)]
    inside, right = rng.choice(wrong)
    return _either(rng, apply("sqrt", inside), right, False, a + b)


def _argument(rng: random.Random, name: str) -> Term:
    slope = rng.choice([1, 1, 2, 3])
    line = variable(name) if slope == 1 else number(slope) * variable(name)
    return line if rng.random() < 0.6 else line + number(rng.randint(1, 7))


@family
def trigonometry(rng: random.Random, equal: bool) -> Pair:
    name = _name(rng)
    u = _argument(rng, name)
    s, c, two = apply("sin", u), apply("cos", u), number(2)
    double = number(2) * u
    one, phase = number(1), Term("\\pi", closed(math.pi))
    rules = [
        (apply("sin", double), two * s * c, [two * s, s * c, two * s * s]),
        (apply("cos", double), one - two * s**2, [one - s**2, two * s**2 - one, two * c]),
        (s**2, one - c**2, [one + c**2, c**2 - one, one - c]),
        (apply("tan", u), s / c, [c / s, s * c, s]),
        (apply("sin", u + phase), number(-1) * s, [s, c, number(-1) * c]),
        (apply("cos", u + phase / two), number(-1) * s, [s, c]),
        (apply("sin", u + two * phase), s, [number(-1) * s, s + one]),
        (s**4 - c**4, s**2 - c**2, [c**2 - s**2, s**2 + c**2]),
    ]
    left, right, wrong = rng.choice(rules)
    return _either(rng, left, right if equal else rng.choice(wrong), equal, name)


@family
def far_period(rng: random.Random, equal: bool) -> Pair | None:
    if equal:
        return None
    name, k = _name(rng), rng.choice([1, 2, 5, 12])
    wave = Term(f"\\pi {name}", lambda env: math.pi * env[name])
    u = wave if k == 1 else number(k) * wave
    flat = number(rng.randint(1, 4))
    cosine = apply("cos", number(2 * k) * wave)
    made = rng.choice([(apply("sin", u) + flat, flat), (cosine, number(1)), (cosine, apply("cos", u))])
    return _either(rng, *made, False, name)


@family
def inverse_functions(rng: random.Random, equal: bool) -> Pair:
    name = _name(rng)
    u = _linear(rng, name)
    half_pi = Term("\\frac{\\pi}{2}", closed(math.pi / 2))
    if equal:
        first = half_pi - apply("arcsin", u)
        rules = [(apply("arccos", u), first), (apply("sin", apply("arcsin", u)), u)]
        rules.append((apply("tan", apply("arctan", u)), u))
    else:
        rules = [(apply("arctan", apply("tan", u)), u), (apply("arcsin", apply("sin", u)), u)]
        rules += [(apply("arccos", apply("cos", u)), u), (apply("arctan", u) + apply("arctan", number(1) / u), half_pi)]
    return _either(rng, *rng.choice(rules), equal, name)


@family
def logarithms(rng: random.Random, equal: bool) -> Pair:
    a, b = rng.sample("xyab", 2)
    u, v = variable(a), variable(b)
    k = rng.randint(2, 5)
    lu, lv = apply("ln", u), apply("ln", v)
    rules = [
        (apply("ln", u * v), lu + lv, [lu * lv, apply("ln", u + v)]),
        (apply("ln", u / v), lu - lv, [lu / lv, lv - lu]),
        (apply("ln", u**k), number(k) * lu, [lu**k, number(k + 1) * lu]),
        (apply("exp", lu + lv), u * v, [u + v]),
        (apply("ln", apply("sqrt", u)), lu / number(2), [apply("sqrt", lu), number(2) * lu]),
    ]
    left, right, wrong = rng.choice(rules)
    return _either(rng, left, right if equal else rng.choice(wrong), equal, a + b)


@family
def hyperbolic(rng: random.Random, equal: bool) -> Pair:
    name = _name(rng)
    u = _argument(rng, name)
    s, c, rest = apply("sinh", u), apply("cosh", u), _linear(rng, name)
    rules = [
        (c**2 - s**2 + rest, number(1) + rest, [rest, rest - number(1)]),
        (apply("exp", u), c + s, [c - s, c * s]),
        (apply("sinh", number(2) * u), number(2) * s * c, [number(2) * s, s * c]),
        (apply("tanh", u), s / c, [c / s]),
    ]
    left, right, wrong = rng.choice(rules)
    return _either(rng, left, right if equal else rng.choice(wrong), equal, name)


@family
def shifted_abs(rng: random.Random, equal: bool) -> Pair:
    name, a = _name(rng), rng.choice([1, 2, 3, 5, 8, 12, 40, 190, 1000, 12345])
    x = variable(name)
    u = rng.choice([x + number(a), x - number(a), number(a) - x, number(3) * x + number(a), x**2 - number(a)])
    folded = apply("abs", u)
    rest = rng.choice([number(0), number(a), x])
    if equal:
        right = rng.choice([apply("sqrt", u**2), apply("abs", number(-1) * u), _extreme("max", u, number(-1) * u)])
    else:
        right = rng.choice([u, number(-1) * u, apply("abs", u + number(1)) - number(1), apply("sqrt", u) ** 2 * u / u])
    if rest.tex != "0":
        folded, right = folded + rest, right + rest
    return _either(rng, folded, right, equal, name)


def _extreme(kind: str, first: Term, second: Term) -> Term:
    choose: Callable[..., Any] = max if kind == "max" else min
    return Term(f"\\{kind}({first.tex},{second.tex})", lambda env: choose(first.value(env), second.value(env)))


@family
def far_difference(rng: random.Random, equal: bool) -> Pair:
    name, far = _name(rng), rng.choice([7, 50, 190, 999, 2500])
    x, n = variable(name), number(far)
    if equal:
        half = ((x + n) + apply("abs", x - n)) / number(2)
        pairs = [(_extreme("max", x, n), half), (_extreme("min", x, n), x + n - _extreme("max", x, n))]
    else:
        pairs = [(_extreme("max", x, n), n), (_extreme("min", x, n), x), (apply("floor", x / n), number(0))]
        pairs += [(apply("abs", x - n), n - x), (_extreme("max", x, n), x), (apply("ceil", x / n), number(1))]
        pairs += [(apply("abs", apply("abs", x - n) - number(5)), apply("abs", x - n) - number(5))]
    return _either(rng, *rng.choice(pairs), equal, name)


@family
def steps(rng: random.Random, equal: bool) -> Pair:
    name, k = _name(rng), rng.randint(1, 9)
    x = variable(name)
    low, high = apply("floor", x), apply("ceil", x)
    if equal:
        pairs = [(apply("floor", x + number(k)), low + number(k)), (high, number(-1) * apply("floor", number(-1) * x))]
    else:
        pairs = [(low + number(1), high), (apply("floor", number(2) * x), number(2) * low), (low, x), (low, high)]
    return _either(rng, *rng.choice(pairs), equal, name)


@family
def binomials(rng: random.Random, equal: bool) -> Pair:
    n, k = variable("n"), variable("k")

    def choose(top: Term, bottom: Term) -> Term:
        return Term(f"\\binom{{{top}}}{{{bottom}}}", lambda env: math.comb(top.value(env), bottom.value(env)))

    def fact(inside: Term) -> Term:
        return Term(f"{inside.bound()}!", lambda env: math.factorial(inside.value(env)))

    one, two = number(1), number(2)
    rules = [
        (choose(n, k), choose(n, n - k), [choose(n, k + one), choose(n - one, k), choose(n + one, k)]),
        (choose(n, k) + choose(n, k + one), choose(n + one, k + one), [choose(n + one, k), choose(n, k + one)]),
        (choose(n, two), n * (n - one) / two, [n * (n + one) / two, n**2 / two]),
        (fact(n + one), (n + one) * fact(n), [n * fact(n), fact(n) + one]),
        (choose(n, k), fact(n) / (fact(k) * fact(n - k)), [fact(n) / fact(k), fact(n) / fact(n - k)]),
        (fact(n) / fact(n - two), n * (n - one), [n**2, n * (n - two)]),
    ]
    left, right, wrong = rng.choice(rules)
    return _either(rng, left, right if equal else rng.choice(wrong), equal, "nk", whole=True)


@family
def letters(rng: random.Random, equal: bool) -> Pair:
    names = rng.sample("abcdkmpqrtxy", 3)
    first, second, third = map(variable, names)
    left = first * second
    wrong = [first * third, first + second, first - second, number(-1) * first * second, second - first]
    right = second * first if equal else rng.choice(wrong)
    return _either(rng, left, right, equal, "".join(names))


@family
def rewritten(rng: random.Random, equal: bool) -> Pair:
    """A random tree, and the same with one place rewritten into an equal or a different form."""
    names = "".join(rng.sample("xyt", rng.choice([1, 2])))
    changed = [False]

    def grow(depth: int) -> tuple[Term, Term]:
        if depth == 0 or rng.random() < 0.15:
            leaf = variable(rng.choice(names)) if rng.random() < 0.6 else number(rng.randint(1, 9))
            if not equal and not changed[0] and rng.random() < 0.4:
                changed[0] = True
                others = [leaf + number(1), number(2) * leaf, number(-1) * leaf, apply("abs", leaf - number(3))]
                return leaf, rng.choice(others)
            return leaf, leaf
        shape = rng.choice(["add", "sub", "mul", "div", "square", "function"])
        (a, b), (c, d) = grow(depth - 1), grow(depth - 1)
        if shape == "add":
            return a + c, d + b
        if shape == "sub":
            return a - c, rng.choice([b - d, number(-1) * (d - b)])
        if shape == "mul":
            return a * c, rng.choice([d * b, b * d])
        if shape == "div":
            return a / c, rng.choice([b / d, b * (number(1) / d)])
        if shape == "square":
            return a**2, rng.choice([b**2, b * b])
        name = rng.choice(["sqrt", "sin", "abs", "exp", "ln", "arctan", "cbrt", "floor"])
        return apply(name, a), apply(name, b)

    left, right = grow(3)
    return _either(rng, left, right, equal, names)


@family
def near_numbers(rng: random.Random, equal: bool) -> Pair | None:
    """Decimals of fewer than twelve digits, famous fractions and tiny additions beside an irrational number."""
    if equal:
        return None
    text, value = rng.choice(
        [(f"\\sqrt{{{m}}}", math.sqrt(m)) for m in (2, 3, 5, 7, 11)]
        + [("\\pi", math.pi), ("e", math.e), ("\\ln 2", math.log(2)), ("\\frac{1+\\sqrt5}{2}", (1 + math.sqrt(5)) / 2)]
    )
    places = rng.randint(2, 9)
    tiny = f"{text}{rng.choice('+-')}10^{{-{rng.randint(10, 300)}}}"
    fraction = Fraction(value).limit_denominator(rng.choice([10, 500, 10**5]))
    answer = rng.choice([f"{value:.{places}f}", tiny, number(fraction).tex])
    return Pair("", text, answer, False, ("irrational", "another"))


FAMILIES |= STRUCTURES | TEXTS
