"""Two single values: exact equality, the digits of a decimal truth, percent, degrees, units, ratios."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from mathrl.grading.by_value import TASK_OPERATORS, same_expression
from mathrl.grading.evaluate import exact_value, numeric_value
from mathrl.grading.syntax import Node, children, explain, find, infinity_sign, key, kinds, num, same_tree, sym, symbols
from mathrl.grading.unit_sizes import unit_entry
from mathrl.grading.units import SINGLE_LETTER_UNITS, Meaning, compatible, meaning

# A decimal for an irrational truth, or for 1/3, must show at least this many significant digits.
LONG_DECIMAL = 12


class Restated(ValueError):
    """The answer repeats the task (a sum, a determinant …) instead of carrying it out."""


def refuse_restated(truth: Node, answer: Node) -> None:
    r"""House rule: an operator that states a task is no answer, unless the truth has it too.

    Raises:
        Restated: e.g. ``\sum_{k=1}^{100} k`` for 5050, ``\gcd(84, 126)`` for 42, ``\log_2 1024`` for 10.
    """
    answer_kinds, truth_kinds = kinds(answer), kinds(truth)
    if "op" in answer_kinds and "op" not in truth_kinds:
        for kind in answer_kinds:
            if kind.startswith("op:") and kind[3:] in TASK_OPERATORS:
                raise Restated(f"the answer restates the task ({kind[3:]})")
    if "func:log" in answer_kinds - truth_kinds and _log_with_base(answer) and exact_value(truth) is not None:
        raise Restated("the answer restates the task (log)")


def carried_out(node: Node, other: Node) -> Node:
    """113 (mod 1000) as 113 beside a number; 1113 (mod 1000) restates the task."""
    if node.kind != "op" or node.args[0] != "mod" or "op:mod" in kinds(other):
        return node
    _, value, modulus = node.args
    reduced = value.kind == modulus.kind == "num" and 0 <= value.args[0] < modulus.args[0]
    return value if reduced else node


def _log_with_base(node: Node) -> bool:
    if node.kind == "func" and node.args[0] == "log" and len(node.args) > 2:
        return True
    return any(map(_log_with_base, children(node)))


def same_scalar(truth: Node, answer: Node) -> bool | None:
    """Whether two values are equal under the house rules for units, percent, degrees and decimals.

    Raises:
        Refused: a value is undefined or too large.
        Restated: see `refuse_restated`.
    """
    if truth.kind == "unit" or answer.kind == "unit":
        return _same_quantity(truth, answer)
    if truth.kind == "percent" or answer.kind == "percent":
        return _same_marked(truth, answer, "percent", num(Fraction(1, 100)))
    if truth.kind == "degree" or answer.kind == "degree":
        radian = Node("div", (Node("const", ("pi",)), num(180)))
        return _same_marked(truth, answer, "degree", radian)
    if truth.kind == "ratio" or answer.kind == "ratio":
        return _same_ratio(truth, answer)
    if same_tree(truth, answer):
        return True
    if infinity_sign(truth) or infinity_sign(answer):
        return infinity_sign(truth) == infinity_sign(answer)
    refuse_restated(truth, answer)
    if truth.kind == answer.kind == "op" and truth.args[0] == answer.args[0] == "derivative":
        return key(truth.args[1]) == key(answer.args[1]) and same_scalar(truth.args[2], answer.args[2])
    verdict = same_expression(truth, answer)
    if verdict is not False or symbols(truth):
        return verdict
    if symbols(answer):
        quantity = _letters_as_unit(answer)
        return same_scalar(truth, quantity) if quantity is not None else False
    return _same_digits(truth, answer)


def _literal(node: Node) -> tuple[Fraction, int, int] | None:
    """Value, places and significant digits of a number written as a decimal."""
    value, places, digits = node.args if node.kind == "num" else (Fraction(0), 0, 0)
    if node.kind == "mul" and [factor.kind for factor in node.args[0]] == ["num", "pow"]:  # 2.78 \times 10^{-6}
        (value, places, digits), power = node.args[0][0].args, node.args[0][1]
        if key(power.args[0]) != "10" or power.args[1].kind != "num" or not places:
            return None
        exponent = int(power.args[1].args[0])
        return (value * Fraction(10) ** exponent, places - exponent, digits) if digits > 2 else None
    return (value, places, digits) if places > 0 else None


def _same_digits(truth: Node, answer: Node) -> bool:
    """A decimal truth fixes the digits that count; a long decimal may stand for an irrational truth.

    0.87 accepts sqrt(3)/2, 7.78 accepts 70/9 and 7.7778; 2.5 does not accept 2.51.
    """
    truth_decimal, answer_decimal = _literal(truth), _literal(answer)
    if truth_decimal is not None:
        value, places, digits = truth_decimal
        if (
            (places < 2 and truth.kind == "num")
            or digits < 2
            or (answer_decimal is not None and (digits < 3 or answer_decimal[1] <= places))
        ):
            return False
        return _within(answer, value, Fraction(1, 2) / Fraction(10) ** places)
    if answer_decimal is not None and answer_decimal[2] >= LONG_DECIMAL:
        value, places, _ = answer_decimal
        return _within(truth, value, Fraction(1, 10**places), strict=True)
    return False


def _within(node: Node, value: Fraction, distance: Fraction, strict: bool = False) -> bool:
    rational = exact_value(node)
    if rational is not None:
        gap = abs(rational - value)
        return gap < distance or (gap == distance and not strict)
    number = numeric_value(node)
    if number.imag != 0:
        return False
    context = number.context
    target = context.mpf(value.numerator) / value.denominator
    return bool(abs(number.real - target) < context.mpf(distance.numerator) / distance.denominator)


def _same_marked(truth: Node, answer: Node, kind: str, factor: Node) -> bool | None:
    """Percent and degrees: with the mark on both sides the numbers decide; else p may be p or p * factor.

    A percentage is never its number where the other side is a share, below 1: 0.02% is not 0.02. Nor are degrees where
    the other side is a multiple of pi.
    """
    left = truth.args[0] if truth.kind == kind else truth
    right = answer.args[0] if answer.kind == kind else answer
    other = right if truth.kind == kind else left
    share = kind == "percent" and truth.kind != kind and _is_share(truth)
    radians = kind == "degree" and truth.kind != answer.kind and "const:pi" in kinds(other)
    verdict = False if share or radians else same_scalar(left, right)
    if verdict or truth.kind == answer.kind:
        return verdict
    if truth.kind == kind:
        left = Node("mul", ((left, factor),))
    else:
        right = Node("mul", ((right, factor),))
    return same_scalar(left, right)


def _is_share(node: Node) -> bool:
    """Whether a number lies strictly between -1 and 1, and is not 0."""
    value = None if symbols(node) else exact_value(node)
    return value is not None and 0 < abs(value) < 1


_NO_WORDS = Meaning("", Fraction(1), frozenset(), ())


def _same_quantity(truth: Node, answer: Node) -> bool | None:
    """Values with words beside them: the words may not contradict one another, and units of one dimension convert."""
    if truth.kind != answer.kind:
        quantity, other = (truth, answer) if truth.kind == "unit" else (answer, truth)
        letters = quantity.args[2] and quantity.args[1]
        if letters and symbols(other) == set(filter(str.isalpha, letters)):  # 6yd is a product beside 6dy
            spelled = spelled_out(quantity)
            return same_scalar(*((spelled, other) if quantity is truth else (other, spelled)))
        measured = _letters_as_unit(other) if symbols(other) else None
        if measured is not None:
            return _same_quantity(*((quantity, measured) if quantity is truth else (measured, quantity)))
        if other.kind == "degree" and meaning(quantity.args[1]).dimension == "rad":
            turned = Node("mul", ((other.args[0], Node("const", ("pi",)), num(Fraction(1, 180))),))
            return same_scalar(*((quantity.args[0], turned) if quantity is truth else (turned, quantity.args[0])))
        if other.kind in ("percent", "degree") and quantity.args[0].kind != other.kind:
            said = meaning(quantity.args[1])
            if said.dimension or said.names:
                explain(f"other words: {quantity.args[1]} / {other.kind}")
                return False
    left, right = (node.args[0] if node.kind == "unit" else node for node in (truth, answer))
    own, other_words = (meaning(node.args[1]) if node.kind == "unit" else _NO_WORDS for node in (truth, answer))
    contradiction = compatible(own, other_words)
    if contradiction:
        explain(contradiction)
        return False
    if own.dimension and other_words.dimension and own.size != other_words.size:
        left = Node("mul", ((left, num(own.size)),))
        right = Node("mul", ((right, num(other_words.size)),))
    return same_scalar(left, right)


_LETTER_POWER = re.compile(r"([A-Za-z])(?:\^\{?(-?\d+)\}?)?")


def letters_in_formula(node: Node) -> bool:
    r"""Whether letters that could be a unit are factors in a fraction, root or function: \frac{3mg}{2}, \sqrt{2mn}."""
    if "unit" not in kinds(node):
        return False
    formulas = [part for kind in ("div", "root", "func") for part in find(node, kind)]
    return any(part.args[2] for formula in formulas for part in find(formula, "unit"))


def spelled_out(node: Node) -> Node:
    """The tree with the letters that were read as units as factors: mv^2 of a mass and a speed."""
    if node.kind == "unit" and node.args[2]:
        powers = [
            Node("pow", (sym(name), num(-int(power or 1) if below else int(power or 1))))
            for below, part in enumerate(node.args[1].split("/"))
            for name, power in _LETTER_POWER.findall(part)
        ]
        return Node("mul", ((spelled_out(node.args[0]), *powers),))
    if "unit" not in kinds(node):
        return node
    factors = node.kind in ("add", "mul", "div", "pow", "root", "func")

    def spell(part: Any) -> Any:
        if isinstance(part, Node):
            return part if part.kind == "unit" and not factors else spelled_out(part)
        return tuple(map(spell, part)) if isinstance(part, tuple) else part

    return Node(node.kind, tuple(map(spell, node.args)))


def _letters_as_unit(node: Node) -> Node | None:
    """5m, 5 m^2 or 5 m/s with its letters as a unit; None where other names are in it, or no number."""
    numbers: list[Node] = []
    letters: list[str] = []

    def read(part: Node, power: int) -> bool:
        if part.kind == "mul":
            return all(read(factor, power) for factor in part.args[0])
        if part.kind == "div":
            return read(part.args[0], power) and read(part.args[1], -power)
        if part.kind == "pow" and part.args[1].kind == "num" and part.args[0].kind == "sym":
            exponent = part.args[1].args[0]
            return exponent.denominator == 1 and abs(exponent) < 4 and read(part.args[0], power * int(exponent))
        if part.kind == "sym" and part.args[0] in SINGLE_LETTER_UNITS and unit_entry(part.args[0]):
            letters.append(f"{part.args[0]}^{power}")
            return True
        numbers.append(part if power == 1 else Node("pow", (part, num(power))))
        return not symbols(part)

    if node.kind not in ("mul", "div") or not read(node, 1) or not numbers or not letters:
        return None
    value = numbers[0] if len(numbers) == 1 else Node("mul", (tuple(numbers),))
    return Node("unit", (value, " ".join(letters), False))


def _same_ratio(truth: Node, answer: Node) -> bool | None:
    """3:4 equals 6:8 and 3/4; what looks like a clock time on both sides must be the same time."""
    if truth.kind == answer.kind:
        left, right = truth.args[0], answer.args[0]
        if len(left) != len(right):
            return False
        zero = any(part.kind == "num" and part.args[0] == 0 for part in (*left, *right))
        if zero or (_clock(left) and _clock(right)):
            return [key(part) for part in left] == [key(part) for part in right]
        pairs = [
            same_expression(Node("mul", ((left[0], right[i]),)), Node("mul", ((right[0], left[i]),)))
            for i in range(1, len(left))
        ]
        return None if None in pairs else all(pairs)
    ratio, value = (truth, answer) if truth.kind == "ratio" else (answer, truth)
    if len(ratio.args[0]) != 2:
        return False
    return same_scalar(Node("div", ratio.args[0]), value)


def _clock(parts: tuple[Node, ...]) -> bool:
    return (
        len(parts) == 2
        and all(part.kind == "num" and part.args[0].denominator == 1 for part in parts)
        and 0 <= parts[0].args[0] < 24
        and 10 <= parts[1].args[0] < 60
    )
