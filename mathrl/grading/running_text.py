r"""The value that a sentence ends with: its last number, with all the mathematics and the words that it is part of.

"So the area is 3π." claims 3π and not 3; "she has 3 dozen" 36; "the range is (1,3]" an interval; "the roots are 1, 2
and 5" a list; "which is more than 3" claims no value.
"""

from __future__ import annotations

import re
from itertools import takewhile

from mathrl.grading.units import Meaning, meaning

LONGEST = 400  # characters of a sentence that are read
_PLAIN = (
    r"(?:\\frac\{-?\d+\}\{\d+\}|\d{1,3}(?:(?:,|\{\s*,\s*\}|,\\!)\d{3})+(?:\.\d+)?(?!\d)|"
    r"\d{1,3}\s\d{1,2}/\d{1,2}(?![\d/-])|"  # 1 1/2
    r"(?<!,)\d+,\d{1,2}(?!\d|,\d)|\d+(?:\.\d+)?|\.\d+)(?:\s?/\s?\d+(?![\d/]))?(?:[eE][-+]?\d+)?"
)
NUMBER = re.compile(rf"(?<![A-Za-z\d_^])(?<![\^_]\{{)(?<![\d.,]\d)[-−+]?\s?[$€£¥]?{_PLAIN}(?:\s?\\?%)?(?![A-Z])")

# Mathematics in running text: values, joined by operators. Single letters count beside an operator alone.
_VALUE = rf"[-−+±]?\s?[$€£¥]?{_PLAIN}"
_BRACED = r"\{(?:[^{}\n]|\{[^{}\n]{0,40}\}){1,60}\}"
_ARGUMENT = rf"\s?(?:{_BRACED}|\d)"
_COMMAND = rf"\\(?:(?:[dtc]?frac|[dt]?binom){_ARGUMENT}{_ARGUMENT}|sqrt(?:\[\w\])?{_ARGUMENT})"
_FUNCTION = r"\\?(?:sqrt|log|ln|exp|(?:arc)?(?:sin|cos|tan))(?:_\w|_\{\w+\})?(?![A-Za-z])\s?|[√∛]"
_LETTER = r"(?<![A-Za-z\\])[-−±]?[A-Za-zα-ωπ∞](?![A-Za-z'’])|\\(?:pi|infty)(?![A-Za-z])"
_BRACKET = r"(?<![A-Za-z])[-−]?(?:\([^()\n]{1,60}\)|\|[^|\n]{1,60}\|)"
_BEHIND = (
    rf"(?:\s?{_COMMAND}|\\pi(?![A-Za-z])|!|\^{_BRACED}|"
    r"\^[-−]?\w+|_\w+|[²³⁰¹⁴-⁹]+|[πi√](?![A-Za-z])(?:\d+|\([^()\n]{1,60}\))?|\s?\\?%|°|"
    r"[a-zA-Z](?![a-zA-Z])|\([^()\n]{1,60}\))*"
)
_ATOM = rf"(?:[-−±]?(?:{_FUNCTION}))?(?:[-−+±]?\s?{_COMMAND}|{_VALUE}|{_LETTER}|{_BRACKET}){_BEHIND}"
_OPERATOR = (
    r"(?:\s?(?:[*/×·÷=<>≤≥≠≈^±+]|[<>!]=|\\(?:cdot|times|div|leq?|geq?|neq?|approx|pm)(?![a-z]))\s?|(?<=\S)[-−](?=[\w(])|"
    r"\s[-−]\s|(?<=\d):(?=\d)|(?<=\d)\sx\s(?=\d)|\s\(?mod\s|\s(?:in\s)?base\s)"
)
_RUN = re.compile(rf"{_ATOM}(?:{_OPERATOR}{_ATOM})*(?:(?<=\d)\))?")

_TIMES = re.compile(r"(?<=\d)\sx\s(?=\d)")
_COMMAND_OR_BRACE = re.compile(rf"({_COMMAND})|(?<!\\)([{{}}])")  # a set's brace becomes \{
_COMMAND_NAME = re.compile(r"\\(?:[dtc]?frac|pi)|\\?sqrt")

# Tuples, intervals and sets, joined or not.
_END = rf"(?:[-−+]?{_COMMAND}|{_VALUE}(?:π|\\pi)?(?:/\d+)?|[-−+]?(?:π|\\pi|\\?infty|∞|inf)(?:/\d+)?)"
_OPEN, _CLOSE = (rf"(?:\\left|\\right)?\\?[{brackets}]" for brackets in (r"(\[\]{", r")\]\[}"))
_GROUP = rf"{_OPEN}\s*{_END}(?:\s*(?:;|,(?!\d{{3}}(?!\d)))\s*{_END})+\s*{_CLOSE}"
_GROUPS = re.compile(rf"{_GROUP}(?:\s*(?:∪|\\cup|[Uu]nion|U|∩|\\cap|and|or|,)\s*{_GROUP})*")

_POWER = r"(?:\^\{?\d\}?|[²³])?"
_UNIT = re.compile(
    r"[ \t]?((?!(?:in|as|at|am|pm|a|an|to)\b)(?:(?:square|sq\.?|cubic)\s)?(?:[A-Za-z]{2,}|[gmsLNJW])"
    rf"{_POWER}(?:(?:\s+per\s+|/)[A-Za-z]+{_POWER})?)(?![\w'^])"
)
_SUPERSCRIPTS = str.maketrans({"²": "^2", "³": "^3"})
_SCALE = re.compile(
    r"\s(dozen|hundred|thousand|million|billion|trillion|(?:ten|hundred|thousand|million)ths?|squared|cubed|factorial|"
    r"below zero)\b",
    re.IGNORECASE,
)
_GLUE = (",", "and", ", and", "or", ", or")
_MINUS = re.compile(r"\b(?:minus|negative)\s$", re.IGNORECASE)
_HALF_OF_DAY = re.compile(r"\s?([ap])\.?\s?m\b", re.IGNORECASE)
_RATIO = re.compile(r"\bratio\b[^.]*?\b(\d+)\s+to\s+(\d+)$")
_NO_CLAIM = re.compile(  # what stands before a number that is not the value
    r"\b(?:twice|double|triple|half(?: of)?|root of|(?:more|less|fewer|greater|larger|smaller|older|younger|longer|"
    r"shorter|higher|lower) than|steps?|questions?|problems?|exercises?)\s$",
    re.IGNORECASE,
)


def last_number(text: str) -> re.Match[str] | None:
    """The last number of a text, without what surrounds it."""
    return next(reversed(list(NUMBER.finditer(text))), None)


def last_value(text: str) -> str | None:
    """The last number in a text of words and numbers, for a box that holds a sentence."""
    number = last_number(text)
    return number[0].strip() if number else None


def value_of(text: str, number: re.Match[str]) -> str | None:
    r"""The value that the last number of a text belongs to, or None where it is claimed by no value.

    >>> text = "So it takes 3 hours and 20 minutes."
    >>> value_of(text, last_number(text))
    '3 \\text{ hours } 20 \\text{ minutes }'
    """
    begin = max(text.rfind("\n", 0, number.start()) + 1, number.start() - LONGEST)
    before = text[begin : number.start()]
    if number.end() - number.start() > LONGEST:
        return number[0].strip()
    if _NO_CLAIM.search(before):
        return None
    sentence = text[begin : number.end() + LONGEST]
    at = number.start() - begin, number.end() - begin
    if half := _HALF_OF_DAY.match(sentence, at[1]):
        clock = re.search(r"\d{1,2}(?::\d\d)?$", sentence[: at[1]])
        return f"{clock[0]} {half[1]}m" if clock else None
    if ratio := _RATIO.search(sentence[: at[1]]):
        return f"{ratio[1]}:{ratio[2]}"
    group = next((each for each in _GROUPS.finditer(sentence) if each.start() < at[1] <= each.end()), None)
    if group is not None:
        return _COMMAND_OR_BRACE.sub(lambda part: part[1] or f"\\{part[2]}", group[0])
    runs = list(takewhile(lambda run: run.start() < at[1], _RUN.finditer(sentence)))
    if runs and runs[-1].start() <= at[0] and runs[-1].end() >= at[1]:
        claimed = _last_side(runs[-1][0])
        if claimed != number[0].strip():
            unit, said = _unit_behind(sentence, runs[-1].end())
            if said is not None and not re.search(r"[A-Za-z]", _COMMAND_NAME.sub("", claimed)):
                return f"{claimed} \\text{{ {unit} }}"
            return _list_before(sentence, runs, claimed) or claimed
    return _quantity(sentence, number[0].strip(), runs, at)


def _last_side(run: str) -> str:
    """What a run of mathematics claims: the number at its end, or its last member; an equation of a curve is whole."""
    run = run.strip()
    head, equals, last = _TIMES.sub("*", run).rpartition("=")
    if not equals or re.search(r"[<>≤≥≠]|!=", run):
        return run
    names = set(re.findall(r"(?<![A-Za-z\\])[A-Za-zα-ω](?![A-Za-z])", head))
    if NUMBER.fullmatch(last.strip()) and not {"x", "y"} <= names:
        return last.strip()
    return run if names and "=" not in head else last.strip()


def _quantity(sentence: str, quantity: str, runs: list[re.Match[str]], at: tuple[int, int]) -> str:
    """A number with the words that belong to it: a scale, a unit, "minus"; or the list or sum of units that it ends."""
    if _MINUS.search(sentence[: at[0]]):
        quantity = f"-{quantity}"
    if scale := _SCALE.match(sentence, at[1]):
        return f"{quantity} \\text{{ {scale[1]} }}"
    unit, said = _unit_behind(sentence, at[1])
    if said is not None and "," not in quantity:
        larger = next((run for run in reversed(runs) if run.end() <= at[0]), None)
        if larger is not None and (first := _unit_behind(sentence, larger.end()))[1] is not None:
            between = sentence[larger.end() : at[0]].strip().removeprefix(first[0]).strip()
            if first[1].dimension == said.dimension and between in ("", "and", ","):
                quantity = f"{larger[0].strip()} \\text{{ {first[0]} }} {quantity}"
        return f"{quantity} \\text{{ {unit} }}"
    return _list_before(sentence, runs, quantity) or quantity


def _unit_behind(sentence: str, end: int) -> tuple[str, Meaning | None]:
    """The unit that stands at a place, and what it means; None for other words."""
    unit = _UNIT.match(sentence, end)
    text = unit[1].translate(_SUPERSCRIPTS) if unit else ""
    said = meaning(text) if text else None
    return (text, said) if said and said.dimension and not said.rest and not said.names else ("", None)


def _list_before(sentence: str, runs: list[re.Match[str]], last: str) -> str:
    """The list of values that the last run ends: "1, 2 and 5"; "" where it stands alone or is part of an equation."""
    values = [run for run in runs if re.search(r"[\dπ]", run[0])]
    members = [last]
    for value, following in zip(reversed(values[:-1]), reversed(values), strict=False):
        glue = sentence[value.end() : following.start()].strip()
        labels = [run[0].partition("=")[0].strip() for run in (value, following)]
        same_name = labels[0] == labels[1] and labels[0].isalpha()  # x = 1 and x = 2
        equation = "=" in value[0] + following[0] or sentence[: value.start()].rstrip().endswith("=")
        equation = equation and not same_name
        if equation or glue not in _GLUE or (glue == "," and len(members) == 1):
            break
        members.insert(0, value[0].strip())
    return ", ".join(members) if len(members) > 1 else ""
