"""An extracted answer against one accepted answer: the cheap exact steps, in order of cost."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from mathrl.grading.countdown import read_truth
from mathrl.grading.dates import same_date, same_time
from mathrl.grading.evaluate import OutOfTime, Refused, start_clock, stop_clock
from mathrl.grading.extract import after_negation, prose_words
from mathrl.grading.instructions import read_instructions
from mathrl.grading.normalize import COMMA_GROUPS, canonical, merge_thousands, squeeze
from mathrl.grading.notations import as_tuple, same_clauses, same_notation, same_spelling
from mathrl.grading.parser import parse
from mathrl.grading.running_text import last_value
from mathrl.grading.scalar import Restated
from mathrl.grading.structure import same_answer
from mathrl.grading.syntax import explanation, kinds, symbols
from mathrl.grading.units import meaning
from mathrl.grading.words import (
    SPACING,
    fraction_in_words,
    labelled_option,
    leading_option,
    number_in_words,
    option,
    plain_words,
    roman_number,
    same_words,
    unwrap,
)

MAX_ANSWER = 4000
TIME_LIMIT = 0.3
Reading = Literal["mathematics", "option", "words", "task", "not parsed"]
MOST_WORDS = 4  # of an answer that a model can be expected to repeat


class Match(NamedTuple):
    """`equal` is None where only the symbolic engine could still show equality.

    Match(True, "number", "") or Match(False, "structure", "a power too large")
    """

    equal: bool | None
    rule: str
    reason: str


_SPACED_DIGITS = re.compile(r"\d(?:\s|\\[,;: ])+\d")
_INTEGER = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"([-+]?)[$]?(\d{1,30}|[1-9]\d{0,2}(?:,\d{3}){1,8})?(\.\d{1,30})?")
_FRACTION = re.compile(r"([-+]?)(?:(\d{1,30})/(\d{1,30})|\\frac\{(\d{1,30})\}\{(\d{1,30})\})")
_HEDGE = re.compile(
    r"\(\)|__|[;@#]|\b(?:import|lambda|eval|exec|if|else)\b"
    r"|\b(?:or|possibly|maybe|perhaps|either|between|any|not sure)\b",
    re.IGNORECASE,
)


def _integer_text(text: str) -> str:
    """Digits without sign noise and leading zeros, so that integers of any length compare as text."""
    sign = "-" if text.startswith("-") else ""
    digits = text.lstrip("+-").lstrip("0")
    return sign + digits if digits else "0"


@lru_cache(maxsize=16384)
def _plain_number(text: str) -> tuple[Fraction, str] | None:
    """The value of a plain number, with sign, dollar and thousands commas or not, and its form.

    >>> _plain_number("-1/2"), _plain_number("1,000"), _plain_number("x")
    ((Fraction(-1, 2), 'fraction'), (Fraction(1000, 1), 'integer'), None)
    """
    match = _NUMBER.fullmatch(text)
    if match is not None and (match[2] or match[3]):
        value, form = (
            Fraction((match[2] or "0").replace(",", "") + (match[3] or "")),
            "decimal" if match[3] else "integer",
        )
    else:
        match = _FRACTION.fullmatch(text)
        above, below = (int(match[2] or match[4]), int(match[3] or match[5])) if match is not None else (0, 0)
        if match is None or below == 0:
            return None
        value, form = Fraction(above, below), "fraction"
    return (-value if match[1] == "-" else value), form


def compare(truth: str, answer: str) -> Match:
    r"""The verdict on one pair of texts, without the symbolic engine.

    >>> compare("\\frac{1}{2}", "0.5").equal, compare("1,2", "2,1").equal, compare("[1,2]", "(1,2)").equal
    (True, True, False)
    """
    if not truth.strip() or not answer.strip():
        return Match(False, "empty", "no answer or no accepted answer")
    if len(answer) <= 60 and len(truth) <= 60:
        left, right = _plain_number(truth.strip()), _plain_number(answer.strip())
        if left is not None and right is not None and "fraction" not in (left[1], right[1]):
            if left[0] == right[0]:
                return Match(True, "number", "")
            if left[1] == right[1] == "integer":
                return Match(False, "number", "different numbers")
    truth, answer = truth[:20000], answer[:20000]
    truth_text, answer_text = canonical(truth), canonical(answer)
    if not truth_text or not answer_text:
        return Match(False, "empty", "no answer or no accepted answer")
    if truth_text == answer_text or (squeeze(truth) == squeeze(answer) and not _SPACED_DIGITS.search(answer)):
        return Match(True, "same text", "")
    if _INTEGER.fullmatch(truth_text) and _INTEGER.fullmatch(answer_text):
        equal = _integer_text(truth_text) == _integer_text(answer_text)
        return Match(equal, "number", "" if equal else "different numbers")
    left, right = _plain_number(truth_text), _plain_number(answer_text)
    if left is not None and right is not None and left[0] == right[0]:
        return Match(True, "structure", "")
    if len(answer_text) > max(MAX_ANSWER, 2 * len(truth_text)):
        return Match(False, "guard", "the answer is too long")
    try:
        return _compare_in_time(truth_text, answer_text)
    except OutOfTime:  # once more: a pause of the garbage collector must not decide
        try:
            return _compare_in_time(truth_text, answer_text)
        except OutOfTime as error:
            return Match(False, "structure", str(error))


def _compare_in_time(truth: str, answer: str) -> Match:
    start_clock(TIME_LIMIT)
    try:
        return _compare_texts(truth, answer)
    finally:
        stop_clock()


_EITHER = re.compile(r"\s*\(?\s*\\text\s*\{\s*(?:or|or equivalently|i\.e\.),?\s*\}\s*|\s+or\s+")


def _compare_texts(truth: str, answer: str) -> Match:
    labelled = labelled_option(truth)
    if labelled is not None:
        letter, content = labelled
        claimed = option(answer) or leading_option(answer)
        return Match(claimed == letter, "option", "") if claimed else compare(content, answer)
    notation = same_notation(truth, answer)
    if notation is not None:
        return Match(notation, "notation", "" if notation else "another molecule, permutation or order")
    truth, answer = (as_tuple(text) for text in same_spelling(truth, answer))
    time = same_time(truth, answer)
    if time is not None:
        return Match(time, "time", "" if time else "different times")
    date = same_date(truth, answer)
    if date is not None:
        return Match(date, "date", "" if date else "different dates")
    plain = _symbols_of_words(truth), _symbols_of_words(answer)
    words = same_words(truth, answer) if plain[0] == truth or plain[1] == answer else None
    words = same_clauses(truth, answer) if words is None else words
    if words is not None:
        return Match(words, "words", "" if words else "different words")
    truth, answer = plain
    try:
        verdict = _compare_trees(truth, answer)
    except (Refused, Restated) as error:
        return Match(False, "structure", str(error))
    spellings = _EITHER.split(answer)
    if len(spellings) == 2 and all(compare(truth, spelling).equal for spelling in spellings):
        return Match(True, "one value in two spellings", "")
    if verdict is not None and verdict.equal is not None:
        return verdict
    if _as_text(truth) == _as_text(answer):
        return Match(True, "same text", "")
    return _match_words(truth, answer) or verdict or Match(False, "structure", "not in the grammar")


def _readings(text: str) -> tuple[str, str]:
    merged = merge_thousands(text, commas=True)
    return merged, merge_thousands(text, commas=False) if COMMA_GROUPS.search(text) else merged


# What the symbolic engine would drop or read in another way.
_OPAQUE = frozenset(
    (
        "union inter minus reals text unit builder logic cases app ellipsis rel base ratio op:derivative op:mod "
        "op:cases"
    ).split()
)
_INDEXED = re.compile(r"[A-Za-z]+_[a-z]")
_DECIMAL_COMMA = re.compile(r"-?(?:\d{1,3}(?:[ .]\d{3})+|\d+),\d+")
_POINT = re.compile(r"-?\d*\.\d+")


def _decimal_point(text: str, counterpart: str) -> str:
    """A decimal comma written as a point, where the other side is a decimal: 1 000,5 as 1000.5."""
    if _DECIMAL_COMMA.fullmatch(text) and _POINT.fullmatch(counterpart.replace(",", "")):
        return text.replace(" ", "").replace(".", "").replace(",", ".")
    return text


def _compare_trees(truth: str, answer: str) -> Match | None:
    """The match of the parsed texts, in each reading of the commas (thousands, list, decimal)."""
    result: Match | None = None
    for left, right in dict.fromkeys(zip(_readings(truth), _readings(answer), strict=True)):
        left_tree, right_tree = parse(left), parse(right)
        if left_tree is None or right_tree is None:
            continue
        explanation()
        equal = same_answer(left_tree, right_tree)
        if equal:
            return Match(True, "structure", "")
        if result is None or equal is None:
            result = Match(equal, "structure", explanation() or "not equal")
            if equal is None:
                open_trees = kinds(left_tree) | kinds(right_tree)
                opaque = open_trees & _OPAQUE
                names = symbols(left_tree) | symbols(right_tree)
                if "op" in open_trees and any(map(_INDEXED.match, names)):
                    opaque |= {"terms of a sequence"}  # a_n, which the engine takes for a constant
                if names:  # which the engine takes for 1
                    opaque |= open_trees & {"op:gcd", "op:lcm"}
                result = Match(
                    False if opaque else None, "structure", f"not settled by evaluation: {', '.join(sorted(opaque))}"
                )
    pointed = _decimal_point(truth, answer), _decimal_point(answer, truth)
    if pointed != (truth, answer):
        left_tree, right_tree = (parse(merge_thousands(text, True)) for text in pointed)
        if left_tree is not None and right_tree is not None and same_answer(left_tree, right_tree):
            return Match(True, "decimal comma", "")
    return result


_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s+(?=\d)")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_LONG_WORD = re.compile(r"[A-Za-z]{3,}")


_SYMBOLS = dict.fromkeys(["reals", "real numbers", "any real number"], "\\mathbb{R}")
_SYMBOLS |= {
    f"{sign} real{numbers}": interval
    for numbers in ("s", " numbers")
    for signs, interval in (
        ("positive", "(0,\\infty)"),
        ("negative", "(-\\infty,0)"),
        ("nonnegative|non negative", "[0,\\infty)"),
        ("nonpositive|non positive", "(-\\infty,0]"),
        ("nonzero|non zero", "\\mathbb{R}\\setminus\\{0\\}"),
    )
    for sign in signs.split("|")
}
_SYMBOLS |= {"positive integers": "\\mathbb{Z}^+", "positive integers n": "\\mathbb{Z}^+"}
_SYMBOLS |= dict.fromkeys(["infinity", "positive infinity", "plus infinity"], "\\infty")
_SYMBOLS |= dict.fromkeys(["negative infinity", "minus infinity"], "-\\infty")
_ANY_REAL = re.compile(r"(?:\$?[a-z]\$? (?:is|can be|may be) )?(?:any|all|every) reals?(?: numbers?)?")
_PARITY = re.compile(
    r"(?:\$?n\$? (?:is |must be )?)?(?:an )?(?:all |every |any )?(odd|even)(?: integers?| whole numbers?)?(?: \$?n\$?)?"
)
_MULTIPLES = re.compile(
    r"(?:\$?n\$? (?:is )?)?(?:a )?(?:all |every |any )?(?:the )?(positive )?multiples? of \$?(\d+)\$?"
)
_ALL_BUT = re.compile(
    r"(?:all|any|every) real (?:numbers? |values? )?(?:of )?\$?(?:[a-z]\$? )?"
    r"(?:except|excluding|other than)(?: for| when)? \$?(?:[a-z] ?= ?)?([^$]+)\$?"
)
_FEET = re.compile(r"(\d+)\s?' ?(\d+)\s?(?:''|\")")
_DIVISION = re.compile(r"(\d+),?(?: (?:and|with))?(?: a| the)? ?(?:R|r|remainder)\.?(?: of| is)? ?(\d+)")
_TO = re.compile(r"(\d+(?:\.\d+)?) to (\d+(?:\.\d+)?)")


_QUANTITIES = re.compile(r"(\d+) ?([a-z]+)\.?,?(?: and)? (\d+(?:\.\d+)?) ?([a-z]+)\.?")
_POSITIONAL = re.compile(r"\(?([0-9A-F]*[0-9][0-9A-F]*|[A-F]{2,}(?=\)?_\{?16))\)?_\{?(1[1-6])\}?")


def _dimension(unit: str) -> str:
    return meaning(unit).dimension


def _symbols_of_words(text: str) -> str:
    """The text in symbols if it spells a number, a ratio, infinity or a set of reals in words, else as it is."""
    words = plain_words(text) or ""
    if symbol := _SYMBOLS.get(words.removeprefix("all ")):
        return symbol
    spaced = " ".join(unwrap(text).split())
    if left_out := _ALL_BUT.fullmatch(spaced):
        values = left_out[1].replace(" and ", ", ")
        return f"\\mathbb{{R}} \\setminus \\{{{values}\\}}" if not prose_words(values) else text
    if feet := _FEET.fullmatch(spaced):
        return f"{feet[1]} \\text{{ ft }} {feet[2]} \\text{{ in }}"
    if division := _DIVISION.fullmatch(spaced):
        return f"\\text{{ quotient }} {division[1]}, \\text{{ remainder }} {division[2]}"
    if (parity := _PARITY.fullmatch(spaced)) and ("n" in spaced.replace("$", "").split() or "integer" in spaced):
        return f"n \\equiv {int(parity[1] == 'odd')} \\pmod 2"
    if multiple := _MULTIPLES.fullmatch(spaced):
        return f"{multiple[2]}k, k \\in \\mathbb{{Z}}^+" if multiple[1] else f"n \\equiv 0 \\pmod {{{multiple[2]}}}"
    if _ANY_REAL.fullmatch(spaced):
        return "\\mathbb{R}"
    if ratio := _TO.fullmatch(spaced):
        return f"{ratio[1]}:{ratio[2]}"
    if (sum_ := _QUANTITIES.fullmatch(spaced)) and _dimension(sum_[2]) == _dimension(sum_[4]) != "":
        return f"{sum_[1]} \\text{{ {sum_[2]} }} {sum_[3]} \\text{{ {sum_[4]} }}"
    if (digits := _POSITIONAL.fullmatch(spaced)) and not digits[1].isdecimal():
        largest = max(int(digit, 16) for digit in digits[1])
        return str(int(digits[1], int(digits[2]))) if largest < int(digits[2]) else text
    fraction = fraction_in_words(words)
    if fraction is not None:
        return f"\\frac{{{fraction.numerator}}}{{{fraction.denominator}}}"
    number = number_in_words(words) if words else None
    number = roman_number(unwrap(text).strip()) if number is None else number
    return text if number is None else str(number)


def _as_text(text: str) -> str:
    """The letters and digits, those in \\text{} included; capitals count unless there are words."""
    inner = _BETWEEN_DIGITS.sub("_", SPACING.sub(" ", unwrap(text)).replace("\\", ""))
    inner = "".join(inner.split())
    return inner.lower() if _LONG_WORD.search(_COMMAND.sub("", unwrap(text))) else inner


def _match_words(truth: str, answer: str) -> Match | None:
    """An answer in words for a truth in mathematics: forty-two, or a sentence that ends in a number."""
    words = plain_words(answer)
    tree = parse(truth)
    if words is not None:
        reason = "words where mathematics was expected" if option(truth) is None else "no option letter"
        return Match(False, "words", reason)
    if prose_words(answer) >= 3 and tree is not None and tree.kind == "num" and not _HEDGE.search(answer):
        claimed = after_negation(answer)
        if claimed is None:
            return Match(False, "number in a sentence", "the sentence denies it")
        answer = claimed
        value = last_value(answer)
        said = meaning(answer.replace(value, " ", 1)) if value is not None else None
        if said is not None and said.rest:
            return Match(False, "number in a sentence", f"other words: {' '.join(said.rest[:8])} / none")
        if value is not None and value != answer:
            inner = compare(truth, value)
            return Match(bool(inner.equal), "number in a sentence", inner.reason)
    return None


def reading(answer: str) -> Reading:
    r"""How the grader reads an accepted answer.

    Mathematics is compared by value. An option's letter and a few words are compared as such. A task is what a response
    is checked against: a Countdown's numbers and target, or instructions. What is not parsed counts
    as right only where a response repeats it character by character, or the symbolic engine can read it.

    >>> reading('{"numbers": [4, 6], "target": 24}')
    'task'
    >>> reading("\\frac{1}{2}"), reading("(B)"), reading("no solution"), reading("see the figure on the left side")
    ('mathematics', 'option', 'words', 'not parsed')
    """
    if read_truth(answer) is not None or read_instructions(answer) is not None:
        return "task"
    text = canonical(answer[:20000])
    if not text:
        return "not parsed"
    letter = option(answer)
    if letter is not None and letter in "ABCDEFGHIJ":
        return "option"
    words = plain_words(answer)
    if words is not None and len(words) > 1:
        is_number = number_in_words(words) is not None
        return "mathematics" if is_number else "words" if len(words.split()) <= MOST_WORDS else "not parsed"
    return "not parsed" if parse(merge_thousands(text, commas=True)) is None else "mathematics"
