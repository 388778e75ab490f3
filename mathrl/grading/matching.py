"""An extracted answer against one accepted answer: the cheap exact steps, in order of cost."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from mathrl.grading.exact import OutOfTime, Refused, start_clock, stop_clock
from mathrl.grading.extract import last_value, prose_words
from mathrl.grading.normalize import COMMA_GROUPS, canonical, merge_thousands, squeezed
from mathrl.grading.parser import parse
from mathrl.grading.scalar import Restated
from mathrl.grading.structure import same
from mathrl.grading.words import (
    labelled_option,
    leading_option,
    number_in_words,
    option,
    plain_words,
    same_words,
    unwrapped,
)

MAX_ANSWER = 4000
TIME_LIMIT = 0.3


class Match(NamedTuple):
    """`equal` is None where only the symbolic engine could still show equality.

    Match(True, "number", "") or Match(False, "structure", "a power too large")
    """

    equal: bool | None
    rule: str
    reason: str


_INTEGER = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"([-+]?)[$]?(\d{1,30}|[1-9]\d{0,2}(?:,\d{3}){1,8})?(\.\d{1,30})?")
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
def _simple_number(text: str) -> tuple[Fraction, bool] | None:
    """A plain decimal with optional sign, dollar and thousands commas; and whether it has decimals."""
    match = _NUMBER.fullmatch(text)
    if match is None or (match[2] is None and match[3] is None):
        return None
    integer, decimals = (match[2] or "0").replace(",", ""), match[3] or ""
    value = Fraction(integer + decimals)
    return (-value if match[1] == "-" else value), bool(decimals)


def compare(truth: str, answer: str) -> Match:
    r"""The verdict on one pair of texts, without the symbolic engine.

    >>> compare("\\frac{1}{2}", "0.5").equal, compare("1,2", "2,1").equal, compare("[1,2]", "(1,2)").equal
    (True, True, False)
    """
    if not truth.strip() or not answer.strip():
        return Match(False, "empty", "no answer or no accepted answer")
    if len(answer) <= 60 and len(truth) <= 60:
        truth_number, answer_number = _simple_number(truth.strip()), _simple_number(answer.strip())
        if truth_number is not None and answer_number is not None and truth_number[0] == answer_number[0]:
            return Match(True, "number", "")
        if truth_number is not None and answer_number is not None and not (truth_number[1] or answer_number[1]):
            return Match(False, "number", "different numbers")
    truth, answer = truth[:20000], answer[:20000]
    truth_text, answer_text = canonical(truth), canonical(answer)
    if not truth_text or not answer_text:
        return Match(False, "empty", "no answer or no accepted answer")
    if truth_text == answer_text or squeezed(truth) == squeezed(answer):
        return Match(True, "same text", "")
    if _INTEGER.fullmatch(truth_text) and _INTEGER.fullmatch(answer_text):
        equal = _integer_text(truth_text) == _integer_text(answer_text)
        return Match(equal, "number", "" if equal else "different numbers")
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


def _compare_texts(truth: str, answer: str) -> Match:
    labelled = labelled_option(truth)
    if labelled is not None:
        letter, content = labelled
        claimed = option(answer) or leading_option(answer)
        return Match(claimed == letter, "option", "") if claimed else compare(content, answer)
    words = same_words(truth, answer)
    if words is not None:
        return Match(words, "words", "" if words else "different words")
    truth, answer = _digits_of_words(truth), _digits_of_words(answer)
    try:
        verdict = _compare_trees(truth, answer)
    except OutOfTime:
        raise
    except (Refused, Restated) as error:
        return Match(False, "structure", str(error))
    if verdict is not None and verdict.equal is not None:
        return verdict
    if _as_text(truth) == _as_text(answer):
        return Match(True, "same text", "")
    return _spoken(truth, answer) or verdict or Match(None, "structure", "not in the grammar")


def _readings(text: str) -> tuple[str, str]:
    merged = merge_thousands(text, commas=True)
    return merged, merge_thousands(text, commas=False) if COMMA_GROUPS.search(text) else merged


_DECIMAL_COMMA = re.compile(r"-?(?:\d{1,3}(?:[ .]\d{3})+|\d+),\d+")
_POINT = re.compile(r"-?\d*\.\d+")


def _pointed(text: str, counterpart: str) -> str:
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
        equal = same(left_tree, right_tree)
        if equal:
            return Match(True, "structure", "")
        if result is None or equal is None:
            result = Match(equal, "structure", "not equal" if equal is False else "not settled by evaluation")
    pointed = _pointed(truth, answer), _pointed(answer, truth)
    if pointed != (truth, answer):
        left_tree, right_tree = (parse(merge_thousands(text, True)) for text in pointed)
        if left_tree is not None and right_tree is not None and same(left_tree, right_tree):
            return Match(True, "decimal comma", "")
    return result


_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s+(?=\d)")
_LONG_WORD = re.compile(r"[A-Za-z]{3,}")


_REALS = frozenset(["all real numbers", "all reals", "real numbers", "any real number"])


def _digits_of_words(text: str) -> str:
    """The text in symbols if it spells a number or the real line in words, else as it is."""
    words = plain_words(text) or ""
    if words in _REALS:
        return "\\mathbb{R}"
    number = number_in_words(words)
    return text if number is None else str(number)


def _as_text(text: str) -> str:
    """The letters and digits, those in \\text{} included; capitals count unless there are words."""
    inner = _BETWEEN_DIGITS.sub("_", unwrapped(text).replace("\\", ""))
    inner = "".join(inner.split())
    return inner.lower() if _LONG_WORD.search(inner) else inner


def _spoken(truth: str, answer: str) -> Match | None:
    """An answer in words for a truth in mathematics: forty-two, or a sentence that ends in a number."""
    words = plain_words(answer)
    tree = parse(truth)
    if words is not None:
        reason = "words where mathematics was expected" if option(truth) is None else "no option letter"
        return Match(False, "words", reason)
    if prose_words(answer) >= 3 and tree is not None and tree.kind == "num" and not _HEDGE.search(answer):
        value = last_value(answer)
        if value is not None and value != answer:
            inner = compare(truth, value)
            return Match(bool(inner.equal), "number in a sentence", inner.reason)
    return None
