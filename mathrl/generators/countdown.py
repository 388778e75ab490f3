"""Countdown: make the target from each given number once, with + - * /; a solver keeps one way."""

import json
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from mathrl.core.types import Control
from mathrl.generators.draft import Draft
from mathrl.params.generators import CountdownGameOptions

# (value, expression, precedence: 2 a number, 1 a product, 0 a sum)
Term = tuple[Fraction, str, int]
LARGEST_STEP = 1_000  # intermediate results of the way that makes a problem


class Countdown(CountdownGameOptions):
    """Level: how many numbers are given.

    The accepted answer is the task itself as JSON, which the reward checks an expression against; the
    expression that made it stands in `control.demonstrated_answer`.
    """

    @property
    def levels(self) -> tuple[int, ...]:
        return self.numbers

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        numbers = [rng.randint(1, self.largest_number) for _ in range(level)]
        # A random way to combine them gives the target, so that it can be reached.
        terms: list[Term] = [(Fraction(n), str(n), 2) for n in numbers]
        steps = []
        while len(terms) > 1:
            first = terms.pop(rng.randrange(len(terms)))
            second = terms.pop(rng.randrange(len(terms)))
            integral = [t for t in _combine(first, second) if t[0].denominator == 1 and 0 < t[0] <= LARGEST_STEP]
            if not integral:
                return None
            term = rng.choice(integral)
            steps.append(f"{_show_fraction(first[0])}{_operation(first, second, term)}={_show_fraction(term[0])}")
            terms.append(term)
        value, expression, _ = terms[0]
        if value > self.largest_target or value in numbers:
            return None
        parts = _parts(numbers, int(value), expression)
        return Draft(parts["question"], parts["answers"][0], "; ".join(steps), control=parts["control"])


def problem_parts(numbers: Sequence[int], target: int) -> dict[str, Any] | None:
    """Question, answers and what the countdown reward needs; None when there is no way."""
    expression = solve(numbers, target)
    return None if expression is None else _parts(numbers, target, expression)


def solve(numbers: Sequence[int], target: int) -> str | None:
    """An expression that uses each number once and makes the target, or None after trying all ways.

    >>> solve([3, 7, 2], 20)
    '2*(3+7)'
    """
    return _search([(Fraction(n), str(n), 2) for n in sorted(numbers)], Fraction(target), set())


def _search(terms: list[Term], target: Fraction, dead: set[tuple[Fraction, ...]]) -> str | None:
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == target else None
    key = tuple(sorted(term[0] for term in terms))
    if key in dead:
        return None
    for i in range(len(terms)):
        for j in range(len(terms)):
            if i == j:
                continue
            rest = [term for k, term in enumerate(terms) if k not in (i, j)]
            for combined in _combine(terms[i], terms[j]):
                if expression := _search([*rest, combined], target, dead):
                    return expression
    dead.add(key)
    return None


def _combine(first: Term, second: Term) -> Iterator[Term]:
    (a, left, low), (b, right, high) = first, second
    yield a + b, f"{left}+{right}", 0
    yield a - b, f"{left}-{_wrap(right, high, 1)}", 0
    yield a * b, f"{_wrap(left, low, 1)}*{_wrap(right, high, 1)}", 1
    if b:
        yield a / b, f"{_wrap(left, low, 1)}/{_wrap(right, high, 2)}", 1


def _wrap(text: str, precedence: int, minimum: int) -> str:
    return text if precedence >= minimum else f"({text})"


def _operation(first: Term, second: Term, result: Term) -> str:
    a, b, value = first[0], second[0], result[0]
    sign = next(s for s, v in (("+", a + b), ("-", a - b), ("*", a * b), ("/", a / b if b else None)) if v == value)
    return f"{sign}{_show_fraction(b)}"


def _show_fraction(value: Fraction) -> str:
    return str(value) if value >= 0 and value.denominator == 1 else f"({value})"


def _parts(numbers: Sequence[int], target: int, expression: str) -> dict[str, Any]:
    listed = ", ".join(str(n) for n in numbers)
    question = (
        f"Using the numbers [{listed}], make an expression that equals {target}. "
        "Use + - * / and brackets, and each number exactly once."
    )
    truth = json.dumps({"numbers": list(numbers), "target": target})
    control = Control(task="countdown", demonstrated_answer=expression)
    return {"question": question, "answers": [truth], "control": control}
