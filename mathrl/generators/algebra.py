"""Linear equations with their steps, and number theory: divisors, multiples, remainders, powers modulo n."""

import math
import random
from fractions import Fraction

from mathrl.generators.draft import Draft
from mathrl.params.generators import LinearEquationOptions, NumberTheoryOptions

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


class NumberTheory(NumberTheoryOptions):
    """Level 1: remainder; 2: gcd; 3: lcm; 4: remainder of a power; 5: sum of divisors."""

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        return (self._remainder, self._gcd, self._lcm, self._power, self._divisors)[level - 1](rng)

    def _remainder(self, rng: random.Random) -> Draft:
        n, m = rng.randint(10, 10 * self.largest_number), rng.randint(3, self.largest_number // 4)
        steps = f"{n} = {m}*{n // m} + {n % m}"
        return Draft(f"What is the remainder when {n} is divided by {m}?", str(n % m), steps, "remainder")

    def _gcd(self, rng: random.Random) -> Draft | None:
        shared = rng.randint(1, 20)
        a, b = (shared * rng.randint(2, max(3, self.largest_number // shared)) for _ in range(2))
        if a == b:
            return None
        question = f"What is the greatest common divisor of {a} and {b}?"
        return Draft(question, str(math.gcd(a, b)), _euclid(a, b), "greatest common divisor")

    def _lcm(self, rng: random.Random) -> Draft | None:
        a, b = (rng.randint(4, self.largest_number) for _ in range(2))
        if a == b:
            return None
        divisor = math.gcd(a, b)
        steps = f"{_euclid(a, b)}\nlcm = {a}*{b}/{divisor} = {math.lcm(a, b)}"
        question = f"What is the least common multiple of {a} and {b}?"
        return Draft(question, str(math.lcm(a, b)), steps, "least common multiple")

    def _power(self, rng: random.Random) -> Draft | None:
        base, exponent = rng.randint(2, 30), rng.randint(5, 200)
        m = rng.randint(self.largest_number // 4, self.largest_number)
        if base % m < 2:
            return None  # all its powers are alike
        steps = [_modulo(base, "", m)] if base >= m else []
        value, square, rest = None, base % m, exponent
        while rest:
            if value is None:
                value = square if rest % 2 else None
            elif rest % 2:
                steps.append(_modulo(value * square, f"{value}*{square}", m))
                value = value * square % m
            rest //= 2
            if rest:
                steps.append(_modulo(square * square, f"{square}^2", m))
                square = square * square % m
        question = f"What is the remainder when {base}^{exponent} is divided by {m}?"
        return Draft(question, str(value), "\n".join(steps), "power modulo n")

    def _divisors(self, rng: random.Random) -> Draft | None:
        n = rng.randint(12, 1_000 * self.largest_number)
        factors = _factors(n)
        if factors == [(n, 1)]:
            return None  # a prime
        written = " * ".join(f"{p}^{e}" if e > 1 else str(p) for p, e in factors)
        sums = [sum(p**power for power in range(e + 1)) for p, e in factors]
        steps = [
            f"{'+'.join(str(p**power) for power in range(e + 1))} = {s}"
            for (p, e), s in zip(factors, sums, strict=True)
        ]
        total = math.prod(sums)
        if len(sums) > 1:
            steps.append(f"{'*'.join(map(str, sums))} = {total}")
        question = f"What is the sum of all positive divisors of {n}, including {n} itself?"
        return Draft(question, str(total), "\n".join([f"{n} = {written}", *steps]), "sum of divisors")


def _modulo(value: int, written: str, m: int) -> str:
    """A congruence, each side once.

    >>> _modulo(36, "6^2", 23), _modulo(16, "4^2", 23), _modulo(25, "", 23)
    ('6^2 = 36 = 13 (mod 23)', '4^2 = 16 (mod 23)', '25 = 2 (mod 23)')
    """
    sides = dict.fromkeys((written, str(value), str(value % m)))
    return f"{' = '.join(side for side in sides if side)} (mod {m})"


def _euclid(a: int, b: int) -> str:
    a, b = max(a, b), min(a, b)
    steps = []
    while b:
        steps.append(f"{a} = {b}*{a // b} + {a % b}")
        a, b = b, a % b
    return "\n".join([*steps, f"gcd = {a}"])


def _factors(n: int) -> list[tuple[int, int]]:
    factors, prime = [], 2
    while prime * prime <= n:
        power = 0
        while n % prime == 0:
            n //= prime
            power += 1
        if power:
            factors.append((prime, power))
        prime += 1
    return [*factors, (n, 1)] if n > 1 else factors
