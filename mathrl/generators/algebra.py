"""Linear equations with their steps."""

import random
from fractions import Fraction

from mathrl.generators.draft import Draft
from mathrl.params.generators import LinearEquationOptions

LEVELS = {1: "ax + b = c", 2: "ax + b = cx + d", 3: "a(x + b) = cx + d", 4: "system of two", 5: "rational solution"}


class LinearEquation(LinearEquationOptions):
    """Level 1: ax + b = c; 2: unknown on both sides; 3: brackets; 4: two unknowns; 5: a rational solution."""

    @property
    def levels(self) -> tuple[int, ...]:
        return self.forms

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        if level == 4:
            return self._system(rng)
        x = self._number(rng) if level != 5 else None
        a, b, c = self._number(rng), self._number(rng), self._number(rng) if level > 1 else 0
        if a == c:
            return None
        if level == 3 and abs(a) == 1:
            return None  # brackets without a factor
        if level == 5:
            d = self._number(rng)
            solution = Fraction(d - b, a - c)
            if solution.denominator == 1:
                return None
            left, right = f"{_term(a)} {_signed(b)}", f"{_term(c)} {_signed(d)}"
        elif level == 3:
            assert x is not None
            solution, d = Fraction(x), a * (x + b) - c * x
            left, right = f"{_factor(a)}(x {_signed(b)})", _side(c, d)
        else:
            assert x is not None
            solution, d = Fraction(x), (a - c) * x + b
            left, right = f"{_term(a)} {_signed(b)}", _side(c, d)
        constant = a * b if level == 3 else b
        steps = [f"{left} = {right}"]
        if level == 3:
            steps.append(f"{_term(a)} {_signed(constant)} = {right}")
        steps += [f"{_term(a - c)} = {d - constant}", f"x = {solution}"]
        question = f"Solve for x: {left} = {right}"
        return Draft(question, str(solution), "\n".join(dict.fromkeys(steps)), LEVELS[level])

    def _system(self, rng: random.Random) -> Draft | None:
        x, y = self._number(rng), self._number(rng)
        a, b, c, d = (self._number(rng) for _ in range(4))
        determinant = a * d - b * c
        if determinant == 0:
            return None
        e, f = a * x + b * y, c * x + d * y
        first, second = f"{_term(a)} {_signed(b, 'y')} = {e}", f"{_term(c)} {_signed(d, 'y')} = {f}"
        placed = f"{a * x}" if a * x >= 0 else f"({a * x})"
        steps = [
            f"Multiply the first equation by {d} and the second by {b} and subtract: "
            f"{_term(determinant)} = {e * d - f * b}",
            f"x = {x}",
            f"Substitute x into the first equation: {_term(b, 'y')} = {e} - {placed} = {e - a * x}",
            f"y = {y}",
            f"x + y = {x + y}",
        ]
        question = f"Solve the system {first} and {second}. Find x + y."
        return Draft(question, str(x + y), "\n".join(steps), LEVELS[4])

    def _number(self, rng: random.Random) -> int:
        """Not 0."""
        return rng.randint(1, self.largest_number) * rng.choice((1, -1))


def _factor(a: int) -> str:
    return {1: "", -1: "-"}.get(a, str(a))


def _term(a: int, name: str = "x") -> str:
    return f"{_factor(a)}{name}"


def _signed(b: int, name: str = "") -> str:
    size = str(abs(b)) if not name or abs(b) != 1 else ""
    return f"{'+' if b >= 0 else '-'} {size}{name}"


def _side(c: int, d: int) -> str:
    if c == 0:
        return str(d)
    return f"{_term(c)} {_signed(d)}" if d else _term(c)
