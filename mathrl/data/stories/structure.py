"""What a structure of word problems is, and how its worked solution is recorded."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TRIES = 400  # draws of a structure's numbers until all its steps are whole and positive
Range = tuple[int, int] | tuple[int, int, int]  # smallest, largest, and the step between


class Unfit(Exception):
    """The numbers do not fit: a result is not whole, or not positive."""


class Work:
    """Computes the steps of a solution and writes each down as an equation.

    >>> work = Work()
    >>> work.sub(50, work.mul(3, 12)), work.lines
    (14, ['3 * 12 = 36', '50 - 36 = 14'])
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, a: int, b: int) -> int:
        return self._step(f"{a} + {b}", a + b)

    def sub(self, a: int, b: int) -> int:
        return self._step(f"{a} - {b}", a - b)

    def mul(self, a: int, b: int) -> int:
        return self._step(f"{a} * {b}", a * b)

    def div(self, a: int, b: int) -> int:
        if a % b:
            raise Unfit
        return self._step(f"{a} / {b}", a // b)

    def _step(self, written: str, value: int) -> int:
        if value <= 0:
            raise Unfit
        self.lines.append(f"{written} = {value}")
        return value


@dataclass(frozen=True)
class Structure:
    """A story with its numbers still open.

    Example:
        Structure("change", "money", "{name} buys {a} pens at {b} dollars each and pays with a {c}-dollar note. How "
                  "many dollars does {they} get back?", {"a": (2, 9), "b": (2, 9), "c": (50, 100, 50)},
                  lambda w, a, b, c: w.sub(c, w.mul(a, b)), "{They} is in the shop for {z} minutes.")

    `solve` gets a `Work` and the numbers; its steps are the level. `distractor` is a sentence after the first that
    changes nothing, with the number z from `distractor_range`. `words` are drawn from their choices.
    """

    name: str
    kind: str
    text: str
    numbers: Mapping[str, Range]
    solve: Callable[..., int]
    distractor: str
    distractor_range: Range = (2, 30)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fits: Callable[..., bool] = lambda **_: True
    language: str = "en"

    def draw(self, rng: random.Random) -> tuple[dict[str, int], Work, int]:
        """Numbers that fit, the work, and the answer.

        Raises:
            Unfit: no numbers were found, which a test excludes.
        """
        for _ in range(TRIES):
            drawn = {name: rng.randrange(low, high + 1, *step) for name, (low, high, *step) in self.numbers.items()}
            work = Work()
            try:
                if self.fits(**drawn):
                    return drawn, work, self.solve(work, **drawn)
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
            low, high, *step = self.distractor_range
            words["z"] = rng.randrange(low, high + 1, *step)
            first, stop, rest = text.partition(". ")
            text = f"{first}. {self.distractor} {rest}" if stop else f"{self.distractor} {text}"
        return text.format(**numbers, **people, **words)
