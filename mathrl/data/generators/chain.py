"""Chained arithmetic, worked strictly from left to right: 7+5-3*4= is ((7+5)-3)*4."""

import random
from typing import Literal

from pydantic import Field, field_validator

from mathrl.data.generators.draft import Draft
from mathrl.params.section import Section


class Chain(Section):
    """Level: the number of steps. Every intermediate result stays within 0 and largest_result."""

    steps: tuple[int, ...] = Field((2, 3, 4, 5, 6), min_length=1, description="Numbers of operations.")
    operations: tuple[Literal["+", "-", "*"], ...] = Field(("+", "-", "*"), min_length=1)
    largest_number: int = Field(9, ge=1, description="Operands are 1 to this.")
    largest_result: int = Field(40, ge=1, description="Bound of every intermediate result.")
    working: Literal["steps", "rest"] = Field(
        "steps", description="steps: 7+5=12;12-3=9;9*4=36. rest: what is left to do, 12-3*4;9*4;36."
    )

    @field_validator("steps")
    @classmethod
    def _positive(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if any(count < 1 for count in steps) or len(set(steps)) < len(steps):
            raise ValueError("steps are different whole numbers from 1 up")
        return steps

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
                if 0 <= (result := _apply(value, operation, number)) <= self.largest_result
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
            lines = [f"{result}{''.join(written[index:])}" for index, (*_, result) in enumerate(done, start=1)]
        else:
            lines = [f"{values[index]}{written[index]}={result}" for index, (*_, result) in enumerate(done)]
        return Draft(question=f"{first}{''.join(written)}=", answer=str(value), solution=";".join(lines))


def _apply(value: int, operation: str, number: int) -> int:
    if operation == "+":
        return value + number
    return value - number if operation == "-" else value * number
