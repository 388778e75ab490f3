"""Structures of word problems: what is told and asked, the formula of its work, and how the work is written down.

A formula is read as Python's arithmetic and computed here, operation by operation: it is never run as code.
"""

import ast
import operator
import random
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from mathrl.core.errors import UserError
from mathrl.params.load import read_yaml, validate_section
from mathrl.params.section import Section

STORIES = Path(__file__).with_name("stories")  # YAML files
SIGNS: Mapping[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
Step = Callable[[str, int, int], int]
TRIES = 400  # draws of a structure's numbers until all its steps are whole and positive
Range = tuple[int, int] | tuple[int, int, int]  # smallest, largest, and the step between


class Formula:
    """Lines `NAME = FORMULA` separated by semicolons, and a last one whose value is that of the whole.

    >>> Formula("total = a * b; total - total / 2").value({"a": 4, "b": 3})
    6.0
    >>> Formula("60 <= a / b <= 240").value({"a": 300, "b": 2})
    True
    """

    def __init__(self, text: str) -> None:
        """Raises UserError: `text` is no formula."""
        self.text = text
        try:
            self.lines = ast.parse(text).body
        except SyntaxError:
            raise self._error("not a formula") from None

    def value(self, numbers: Mapping[str, int], step: Step | None = None) -> Any:
        """The value for these numbers. With `step` that function computes each +, -, * and /, in the order of the work;
        // and % are what a person sees at once.

        Raises:
            UserError: it has something other than arithmetic and comparisons of `numbers`.
        """
        values: dict[str, Any] = dict(numbers)
        result = None
        for line in self.lines:
            match line:
                case ast.Assign(targets=[ast.Name(id=name)], value=formula):
                    values[name] = self._evaluate(formula, values, step)
                case ast.Expr(value=formula):
                    result = self._evaluate(formula, values, step)
                case _:
                    raise self._error(f"{ast.unparse(line)!r} is neither NAME = FORMULA nor a formula")
        return result

    def _evaluate(self, node: ast.expr, values: Mapping[str, Any], step: Step | None) -> Any:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                a, b = (self._evaluate(side, values, step) for side in (left, right))
                return step(SIGNS[type(op)], a, b) if step and type(op) in SIGNS else OPERATORS[type(op)](a, b)
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self._evaluate(part, values, step) for part in parts)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in OPERATORS for op in ops):
                sides = [self._evaluate(side, values, step) for side in (left, *others)]
                return all(OPERATORS[type(op)](a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
        raise self._error(f"{ast.unparse(node)!r} is neither a number of the structure nor arithmetic")

    def _error(self, problem: str) -> UserError:
        return UserError(f"formula {self.text!r}: {problem}")


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
    """A story with its numbers still open, as the YAML files of stories/ have it under its name.

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
    return read_yaml(STORIES / f"{file}.yaml")


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
