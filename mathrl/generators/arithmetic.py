"""Arithmetic: chains worked from left to right (7+5-3*4= is ((7+5)-3)*4), products, powers, fractions, equations."""

import operator
import random
from collections.abc import Sequence
from fractions import Fraction

from mathrl.generators.draft import Draft
from mathrl.params.generators import ChainOptions, FractionsOptions, LinearEquationOptions, ProductOptions

LEFT_TO_RIGHT = "Work strictly from left to right: "
_RESULT = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Chain(ChainOptions):
    """Draws the operation first and then a number that fits."""

    @property
    def levels(self) -> tuple[int, ...]:
        return self.steps

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        value = rng.randint(1, min(self.largest_number, self.largest_result))
        first, done = value, list[tuple[str, int, int]]()
        for _ in range(level):
            moves = [
                (operation, number, result)
                for operation in self.operations
                for number in range(1, self.largest_number + 1)
                if 0 <= (result := _RESULT[operation](value, number)) <= self.largest_result
            ]
            if not moves:
                return None
            # The operation first, so that + and * are as frequent as - although fewer numbers fit.
            operation = rng.choice(sorted({move[0] for move in moves}))
            _, number, result = rng.choice([move for move in moves if move[0] == operation])
            done.append((operation, number, result))
            value = result
        written = [f"{operation}{number}" for operation, number, _ in done]
        values = [first, *(result for _, _, result in done)]
        if self.working == "rest":
            lines = [self._expression(result, written[index:]) for index, (*_, result) in enumerate(done, start=1)]
        else:
            lines = [f"{values[index]}{written[index]}={result}" for index, (*_, result) in enumerate(done)]
        task = LEFT_TO_RIGHT if self.notation == "words" else ""
        question = f"{task}{self._expression(first, written)}="
        return Draft(question=question, answer=str(value), solution=";".join(lines))

    def _expression(self, first: int, written: Sequence[str]) -> str:
        """The chain, with brackets around every sum that is multiplied where the notation has brackets."""
        expression, is_sum = str(first), False
        for part in written:
            if part[0] == "*" and is_sum and self.notation == "brackets":
                expression = f"({expression})"
            expression, is_sum = expression + part, part[0] != "*"
        return expression


class Product(ProductOptions):
    """Draws the factors, and whether the worked solution calls Python, independently of each other."""

    @property
    def levels(self) -> tuple[int, ...]:
        return self.kinds

    def draw(self, rng: random.Random, level: int) -> Draft:
        if level == 3:
            exponent = rng.randint(2, 3)
            base = rng.randint(11, 9999 if exponent == 2 else 999)
            question, code, value = f"{base}^{exponent}=", f"{base}**{exponent}", base**exponent
        else:
            first, second = rng.randint(100 if level == 2 else 10, 999 if level == 2 else 99), rng.randint(11, 99)
            question, code, value = f"{first}*{second}=", f"{first}*{second}", first * second
        solution = f"{question}{value}"
        if rng.random() < self.calls:
            solution = f"```python\n{code}\n```\n```output\n{value}\n```\n{value}"
        return Draft(question=question, answer=str(value), solution=solution)


class Fractions(FractionsOptions):
    """Level 1: a product or quotient; 2: a sum; 3: a percentage; 4: percentage change; 5: three fractions."""

    @property
    def levels(self) -> tuple[int, ...]:
        return self.kinds

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        return (self._product, self._sum, self._percent, self._change, self._three)[level - 1](rng)

    def _product(self, rng: random.Random) -> Draft:
        a, b, sign = self._fraction(rng), self._fraction(rng), rng.choice("*:")
        factor = b if sign == "*" else 1 / b
        top, bottom = a.numerator * factor.numerator, a.denominator * factor.denominator
        value = a * factor
        turned = "" if sign == "*" else f"({a}) / ({b}) = {a} * {factor}\n"
        steps = f"{turned}{_chain(f'{a} * {factor}', f'{top}/{bottom}', str(value))}"
        question = f"Compute ({a}) {'*' if sign == '*' else 'divided by'} ({b}) in lowest terms."
        return Draft(question, str(value), steps, "product")

    def _sum(self, rng: random.Random) -> Draft:
        a, b, sign = self._fraction(rng), self._fraction(rng), rng.choice("+-")
        value, steps = _add(a, b, sign)
        return Draft(f"Compute {a} {sign} {b} in lowest terms.", str(value), steps, "sum")

    def _percent(self, rng: random.Random) -> Draft:
        percent, base = rng.randint(1, 99), rng.randint(4, 2_000) * 5
        value = Fraction(percent * base, 100)
        steps = f"{percent}/100 * {base} = {percent * base}/100 = {decimal(value)}"
        return Draft(f"What is {percent}% of {base}?", decimal(value), steps, "percentage")

    def _change(self, rng: random.Random) -> Draft:
        price, percent = rng.randint(2, 2_000) * 20, rng.choice((5, 10, 15, 20, 25, 30, 40, 50))
        then = rng.choice((5, 10, 20, 25, 50))
        first = price + Fraction(price * percent, 100)
        second = first - first * then / 100
        steps = (
            f"{price} + {percent}/100 * {price} = {decimal(first)}\n"
            f"{decimal(first)} - {then}/100 * {decimal(first)} = {decimal(second)}"
        )
        question = (
            f"A price of {price} dollars rises by {percent}% and then falls by {then}%. What is the final price, in "
            "dollars?"
        )
        return Draft(question, decimal(second), steps, "percentage change")

    def _three(self, rng: random.Random) -> Draft:
        a, b, c = (self._fraction(rng) for _ in range(3))
        first_sign, second_sign = rng.choice("+-"), rng.choice("+-")
        first, steps = _add(a, b, first_sign)
        value, more = _add(first, c, second_sign)
        question = f"Compute {a} {first_sign} {b} {second_sign} {c} in lowest terms."
        return Draft(question, str(value), f"{steps}\n{more}", "sum of three")

    def _fraction(self, rng: random.Random) -> Fraction:
        bottom = rng.randint(2, self.largest_denominator)
        return Fraction(rng.randint(1, bottom - 1), bottom)


def _add(a: Fraction, b: Fraction, sign: str) -> tuple[Fraction, str]:
    value = a + b if sign == "+" else a - b
    common = a.denominator * b.denominator
    left, right = a.numerator * b.denominator, b.numerator * a.denominator
    top = left + right if sign == "+" else left - right
    assert Fraction(top, common) == value
    return value, _chain(f"{a} {sign} {b}", f"{left}/{common} {sign} {right}/{common}", f"{top}/{common}", str(value))


def _chain(*sides: str) -> str:
    """An equation, each side once.

    >>> _chain("1/2 + 1/3", "3/6 + 2/6", "5/6", "5/6")
    '1/2 + 1/3 = 3/6 + 2/6 = 5/6'
    """
    return " = ".join(dict.fromkeys(sides))


def decimal(value: Fraction) -> str:
    """Exact: the denominators here are divisors of powers of 10."""
    scaled = value * 10_000
    assert scaled.denominator == 1
    return f"{scaled.numerator / 10_000:.4f}".rstrip("0").rstrip(".")


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
            left, right = f"{_term(a)} {_with_sign(b)}", f"{_term(c)} {_with_sign(d)}"
        elif level == 3:
            assert x is not None
            solution, d = Fraction(x), a * (x + b) - c * x
            left, right = f"{_factor(a)}(x {_with_sign(b)})", _side(c, d)
        else:
            assert x is not None
            solution, d = Fraction(x), (a - c) * x + b
            left, right = f"{_term(a)} {_with_sign(b)}", _side(c, d)
        constant = a * b if level == 3 else b
        steps = [f"{left} = {right}"]
        if level == 3:
            steps.append(f"{_term(a)} {_with_sign(constant)} = {right}")
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
        first, second = f"{_term(a)} {_with_sign(b, 'y')} = {e}", f"{_term(c)} {_with_sign(d, 'y')} = {f}"
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


def _with_sign(b: int, name: str = "") -> str:
    size = str(abs(b)) if not name or abs(b) != 1 else ""
    return f"{'+' if b >= 0 else '-'} {size}{name}"


def _side(c: int, d: int) -> str:
    if c == 0:
        return str(d)
    return f"{_term(c)} {_with_sign(d)}" if d else _term(c)
