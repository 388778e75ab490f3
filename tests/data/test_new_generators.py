"""Geometry, combinatorics and unit conversion: solved again by coordinates, by counting and by a table of units."""

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import sympy

from mathrl.core.types import Problem
from mathrl.generators import generate
from mathrl.grading import grade


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def area(*corners: tuple[Any, Any]) -> Any:
    return abs(sympy.Polygon(*(sympy.Point(*corner) for corner in corners)).area)


def turned(angle: int) -> Any:
    return sympy.Integer(180) - angle


def circle(radius: int) -> Any:
    return sympy.Circle(sympy.Point(0, 0), radius).area


# By a part of the question: what sympy's geometry gives for its numbers, in their order.
GEOMETRY: dict[str, Any] = {
    "What is its area in square centimetres?": lambda a, b: area((0, 0), (a, 0), (a, b), (0, b)),
    "What is its perimeter": lambda a, b: sympy.Polygon((0, 0), (a, 0), (a, b), (0, b)).perimeter,
    "has a base of": lambda a, h: area((0, 0), (a, 0), (3, h)),
    "trapezium": lambda a, b, h: area((0, 0), (a, 0), (b, h), (0, h)),
    "is the third?": lambda a, b: 180 - a - b,
    "isosceles": lambda a: sympy.Rational(180 - a, 2),
    "regular polygon": lambda n: 180 * sympy.RegularPolygon((0, 0), 1, n).interior_angle / sympy.pi,
    "quadrilateral": lambda a, b, c: 360 - (a + b + c),
    "hypotenuse": lambda a, b: sympy.Point(0, 0).distance(sympy.Point(a, b)),
    "mast": lambda c, a: sympy.sqrt(c * c - a * a),
    "field": lambda a, c: a * sympy.sqrt(c * c - a * a),
    "area between them": lambda a, b: circle(a) - circle(b),
    "sector": lambda r, angle: circle(r) * sympy.Rational(angle, 360),
    "casts a shadow": lambda a, b, c: sympy.Rational(a, b) * c,
    "vertices": lambda a, b, c, d, e, f: area((a, b), (c, d), (e, f)),
    "closed box": lambda a, b, c: 2 * (a * b + b * c + c * a),
    "cone": lambda h, r: circle(r) * h / 3,
}


def solver_of(solvers: dict[str, Any], problem: Problem) -> str:
    (name,) = (name for name in solvers if name in problem.question)
    return name


def test_geometry_by_coordinates() -> None:
    seen = Counter[str]()
    for problem in generate("geometry", {"rl": 250}, {}, seed=5):
        name = solver_of(GEOMETRY, problem)
        truth = GEOMETRY[name](*numbers(problem.question))
        given = sympy.sympify(problem.answers[0].replace("\\pi", "*pi"))
        assert sympy.simplify(truth - given) == 0, problem
        assert grade(f"\\boxed{{{problem.answers[0]}}}", problem.answers[0]).correct
        seen[name] += 1
    assert set(seen) == set(GEOMETRY)


@functools.cache
def rows(people: int) -> list[Sequence[int]]:
    return list(itertools.permutations(range(people)))


def places(row: Sequence[int], group: int) -> list[int]:
    """Where those of the group, which have the first numbers, stand in the row."""
    return sorted(row.index(member) for member in range(group))


def paths(right: int, up: int, x: int, y: int) -> int:
    """Paths through the point, counted step by step over the grid."""
    ways = {(0, 0): 1}
    for i, j in itertools.product(range(right + 1), range(up + 1)):
        around_it = (i > x and j < y) or (i < x and j > y)  # from there no path meets the point
        if (i, j) != (0, 0):
            ways[i, j] = 0 if around_it else ways.get((i - 1, j), 0) + ways.get((i, j - 1), 0)
    return ways[right, up]


def compositions(total: int, parts: int) -> int:
    """Ways to write the total as an ordered sum of that many positive numbers."""
    if parts == 1:
        return 1
    return sum(compositions(total - first, parts - 1) for first in range(1, total - parts + 2))


COMBINATORICS: dict[str, Any] = {
    "starters": lambda a, b, c: len(list(itertools.product(range(a), range(b), range(c)))),
    "symbols": lambda length, n: sum(1 for _ in itertools.product(range(n), repeat=length)),
    "gold": lambda n: sum(1 for _ in itertools.permutations(range(n), 3)),
    "handshakes": lambda n: sum(1 for _ in itertools.combinations(range(n), 2)),
    "be chosen from": lambda k, n: sum(1 for _ in itertools.combinations(range(n), k)),
    "best pupils": lambda i, a, *rest: (
        len(list(itertools.combinations(range(a), i))) * len(list(itertools.combinations(range(rest[-1]), rest[0])))
        if len(rest) > 1
        else len(list(itertools.combinations(range(a), i))) * rest[0]
    ),
    "all the": lambda n, group: sum(places(row, group)[-1] - places(row, group)[0] < group for row in rows(n)),
    "no two of the girls": lambda boys, girls: sum(
        all(b - a > 1 for a, b in itertools.pairwise(places(row, girls))) for row in rows(boys + girls)
    ),
    "how many paths lead": lambda _a, _b, right, up, x, y: paths(right, up, x, y),
    "identical": compositions,
}


def test_combinatorics_by_counting() -> None:
    seen = Counter[str]()
    for problem in generate("combinatorics", {"rl": 150}, {}, seed=5):
        if "the letters" in problem.question:
            letters = re.findall(r"\b[A-Z]\b", problem.question)
            seen["letters"] += 1
            if len(letters) <= 7:
                assert problem.answers == (str(len(set(itertools.permutations(letters)))),), problem
            continue
        name = solver_of(COMBINATORICS, problem)
        seen[name] += 1
        if math.log10(int(problem.answers[0])) < 4.7:
            assert problem.answers == (str(COMBINATORICS[name](*numbers(problem.question))),), problem
    assert set(seen) == {*COMBINATORICS, "letters"}


# In the smallest unit of each dimension.
SIZES: dict[str, Fraction] = {
    name: Fraction(size)
    for table in (
        {"millimetres": 1, "centimetres": 10, "metres": 1000, "kilometres": 10**6},
        {"inches": 1, "feet": 12, "yards": 36},
        {"milligrams": 1, "grams": 1000, "kilograms": 10**6, "tonnes": 10**9},
        {"ounces": 1, "pounds": 16},
        {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 604800},
        {"millilitres": 1, "centilitres": 10, "litres": 1000, "hectolitres": 10**5},
    )
    for name, size in table.items()
}
UNIT = "([a-z]+)"


def converted(question: str) -> Fraction | None:
    """What the question asks for, or None where it asks for a rate."""
    if match := re.fullmatch(rf"Convert (\d+) {UNIT} to {UNIT}\.", question):
        return int(match[1]) * SIZES[match[2]] / SIZES[match[3]]
    if match := re.fullmatch(rf"How many full {UNIT} are there in (\d+) {UNIT}\?", question):
        return Fraction(int(match[2]) * SIZES[match[3]] // SIZES[match[1]])
    if match := re.fullmatch(rf"How many {UNIT} are there in (\d+) {UNIT} and (\d+) {UNIT}\?", question):
        return (int(match[2]) * SIZES[match[3]] + int(match[4]) * SIZES[match[5]]) / SIZES[match[1]]
    if match := re.fullmatch(rf"How many {UNIT} are there in (\d+) {UNIT}\?", question):
        return int(match[2]) * SIZES[match[3]] / SIZES[match[1]]
    return None


# By a part of the question: a closed formula in its numbers, which are in their order.
SEVERAL_UNITS: dict[str, Any] = {
    "area in square centimetres": lambda a, b: 100 * a * b,
    "volume in litres": lambda a, b, c: a / 10 * b / 10 * c / 10,
    "area in hectares": lambda a, b: a / 100 * b / 100,
    "metres does it travel in": lambda v, t: v / Fraction("3.6") * t,
    "kilometres does it travel": lambda v, t: v * Fraction("3.6") * t / 60,
    "cubic metres does it deliver": lambda v, t: v * Fraction("0.06") * t,
    "cubic centimetres of it weigh": lambda d, n: d * n / 1000,
}


def of_several_units(question: str) -> tuple[str, Fraction]:
    numbers = [Fraction(number) for number in re.findall(r"\d+(?:\.\d+)?", question)]
    name = next(name for name in sorted(SEVERAL_UNITS, key=len, reverse=True) if name in question)
    return name, SEVERAL_UNITS[name](*numbers)


def test_units_by_a_table_of_their_sizes() -> None:
    seen = Counter[str]()
    for problem in generate("unit_conversion", {"rl": 600}, {}, seed=5):
        truth = converted(problem.question)
        if truth is None:
            name, truth = of_several_units(problem.question)
            seen[name] += 1
        assert Fraction(problem.answers[0]) == truth, problem
    assert set(seen) == set(SEVERAL_UNITS) and seen.total() == 240


@pytest.mark.parametrize("name", ["geometry", "combinatorics", "unit_conversion"])
def test_every_equation_of_a_worked_solution_is_true_and_the_last_gives_the_answer(name: str) -> None:
    for problem in generate(name, {"rl": 150}, {}, seed=6):
        lines = (problem.solution or "").splitlines()
        for line in lines:
            left, right = (sympy.nsimplify(sympy.sympify(side, rational=True)) for side in line.split(" = "))
            assert left == right, (problem, line)
        assert lines[-1].rpartition(" = ")[2].replace("*pi", "\\pi") == problem.answers[0]
