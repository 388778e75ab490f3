"""Greatest common divisors, least common multiples, remainders, powers modulo n, sums of divisors."""

import math
import random

from mathrl.data.generators.draft import Draft
from mathrl.params.generators import NumberTheoryOptions


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
