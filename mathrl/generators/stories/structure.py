"""What a structure of word problems is, how it is read from YAML, and how its worked solution is recorded."""

import random
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from mathrl.generators.stories.formula import Formula
from mathrl.params.load import read_yaml, validate_section
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

    def tell(self, numbers: Mapping[str, int], people: Mapping[str, str], rng: random.Random, distracted: bool) -> str:
        """The question with its numbers, after the first sentence the distractor where asked for."""
        words: dict[str, Any] = {name: rng.choice(choices) for name, choices in self.words.items()}
        text = self.text
        if distracted:
            low, high, *step = self.z
            words["z"] = rng.randrange(low, high + 1, *step)
            first, stop, rest = text.partition(". ")
            text = f"{first}. {self.distractor} {rest}" if stop else f"{self.distractor} {text}"
        return text.format(**numbers, **people, **words)


ENGLISH = ("rates", "units", "trade", "comparisons")
TRANSLATIONS = ("de", "fr", "es")


@cache
def structures() -> tuple[Structure, ...]:
    """The English structures in the order of their files, then the translated ones.

    Raises:
        UserError: an entry is no structure, or translates none.
    """
    rows = {name: row for file in ENGLISH for name, row in _read(file).items()}
    english = [_structure(name, row, "en") for name, row in rows.items()]
    translated = []
    for language in TRANSLATIONS:
        texts = _read(language)
        translated += [_structure(name, {**rows[name], **texts[name]}, language) for name in rows if name in texts]
    return (*english, *translated)


def _read(file: str) -> Mapping[str, Mapping[str, Any]]:
    return read_yaml(Path(__file__).with_name(f"{file}.yaml"))


def _structure(name: str, row: Mapping[str, Any], language: str) -> Structure:
    return validate_section(Structure, {"name": name, "language": language, **row}, f"structure {name} ({language})")


@cache
def by_steps() -> Mapping[int, tuple[Structure, ...]]:
    """The structures of each number of steps."""
    steps = [structure.steps() for structure in structures()]
    return {
        level: tuple(structure for structure, length in zip(structures(), steps, strict=True) if length == level)
        for level in sorted(set(steps))
    }
