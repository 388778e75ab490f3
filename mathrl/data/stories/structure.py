"""What a structure of word problems is, and how its worked solution is recorded."""

import random
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import Field

from mathrl.data.stories.formula import Formula
from mathrl.params.section import Section

TRIES = 400  # draws of a structure's numbers until all its steps are whole and positive
Range = tuple[int, int] | tuple[int, int, int]  # smallest, largest, and the step between


class Unfit(Exception):
    """The numbers do not fit: a result is not whole, or not positive."""


class Work:
    """Computes the steps of a solution and writes each down as an equation.

    >>> work = Work()
    >>> work.step("-", 50, work.step("*", 3, 12)), work.lines
    (14, ['3 * 12 = 36', '50 - 36 = 14'])
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: list[int] = []

    def step(self, sign: str, a: int, b: int) -> int:
        if sign == "/" and a % b:
            raise Unfit
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]
        if value <= 0:
            raise Unfit
        self.lines.append(f"{a} {sign} {b} = {value}")
        self.values.append(value)
        return value


class Structure(Section):
    """A story with its numbers still open, as the YAML files of this folder have it under its name.

    Example:
        change:
          kind: money
          text: >-
            {name} buys {a} pens at {b} dollars each and pays with a {c}-dollar note. How many dollars does {they} get
            back?
          numbers: {a: [2, 9], b: [2, 9], c: [50, 100, 50]}
          work: c - a * b
          distractor: "{They} is in the shop for {z} minutes."
    """

    name: str
    kind: str
    text: str = Field(description="What is told and asked; {name}, {friend} and {they} are people.")
    numbers: Mapping[str, Range] = Field(description="Smallest and largest value per number, and the step between.")
    work: str = Field(description="Formula of the answer; its operations are the steps, whose number is the level.")
    fits: str = Field("", description="Formula that must hold for the numbers.")
    distractor: str = Field(description="Sentence after the first that changes nothing, with the number {z}.")
    z: Range = Field((2, 30), description="Range of the distractor's number.")
    words: Mapping[str, tuple[str, ...]] = Field({}, description="Words of the text that are drawn from their choices.")
    language: str = "en"

    @cached_property
    def _formulas(self) -> tuple[Formula, Formula]:
        return Formula(self.work), Formula(self.fits or "1")

    def draw(self, rng: random.Random) -> tuple[dict[str, int], Work, int]:
        """Numbers that fit, the work, and the answer.

        Raises:
            Unfit: no numbers were found, which a test excludes.
        """
        formula, fits = self._formulas
        for _ in range(TRIES):
            drawn = {name: rng.randrange(low, high + 1, *step) for name, (low, high, *step) in self.numbers.items()}
            work = Work()
            try:
                if fits.value(drawn):
                    return drawn, work, formula.value(drawn, work.step)
            except Unfit:
                continue
        raise Unfit(self.name)

    def steps(self) -> int:
        """The number of steps, which is the same for all numbers."""
        return len(self.draw(random.Random(0))[1].lines)

    def told(self, numbers: Mapping[str, int], people: Mapping[str, str], rng: random.Random, distracted: bool) -> str:
        """The question with its numbers, after the first sentence the distractor where asked for."""
        words: dict[str, Any] = {name: rng.choice(choices) for name, choices in self.words.items()}
        text = self.text
        if distracted:
            low, high, *step = self.z
            words["z"] = rng.randrange(low, high + 1, *step)
            first, stop, rest = text.partition(". ")
            text = f"{first}. {self.distractor} {rest}" if stop else f"{self.distractor} {text}"
        return text.format(**numbers, **people, **words)
