"""Chained arithmetic, worked strictly from left to right: 7+5-3*4= is ((7+5)-3)*4."""

import operator
import random
from collections.abc import Sequence

from mathrl.data.generators.draft import Draft
from mathrl.params.generators import ChainOptions

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
