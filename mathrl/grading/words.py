"""Answers in words: options, names, numbers written out, "no solution"; and units of measure."""

from __future__ import annotations

import re
from fractions import Fraction

SPACING = re.compile(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|~|\s+")
_MATH = re.compile(r"[\d\\^_=<>+*/|{}\[\]]")
# x y, x(-y), -abc: letters that are factors and terms rather than words.
_SYMBOLS = re.compile(
    r"[-(\s]*[A-Za-z](?:[-()\s]+[A-Za-z])+[)\s]*|(?=[^-]*-)[-(\s]*[A-Za-z]{1,3}(?:[-()\s]+[A-Za-z]{1,3})*[)\s]*"
)
_LETTER = re.compile(r"^\(?\s*\(?([A-Za-z])\)?\s*[.):]?$")
_OPTION_WORD = re.compile(r"^(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*:?\s+")
_LEADING = re.compile(r"^[\s*(\[]*([A-Z])[\s*]*(?:[):\].]|,\s+[a-z]|\s+[-–—]|\s+(?:because|since|as)\b)")
_TEXT_COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname|boldsymbol|bm|emph|"
    r"underline|textsc|fbox)\*?\s*\{([^{}]*)\}"
)
_NONE = frozenset(
    (
        "no solution, no solutions, no real solution, no real solutions, no real roots, none, no integer solutions, "
        "no integer roots, no rational solutions, no rational roots, there is no solution, there are no solutions, "
        "empty set, empty, 无解, does not exist, dne, no such, impossible"
    ).split(", ")
)
_EXISTENCE = re.compile(
    r"(?:(?:the )?(?:limit|sum|integral|derivative|value|maximum|minimum) (?=does not exist)|there (?:is|are|exists?)|"
    r"(?:the |this )?(?:equation|system|inequality|problem) has|it has|we have|(?<!not) exists?$)\s*"
)
# Words for one another; words that say nothing; words that only name what is spoken of and may be left out.
_SAME_WORD = {"是的": "是", "对的": "对", "正确": "对", "错误": "错", "不正确": "错", "convergent": "converges"}
_SAME_WORD |= {"converge": "converges", "divergent": "diverges", "diverge": "diverges"}
_SAME_WORD |= {f"{way}wards": f"{way}ward" for way in ("up", "down", "left", "right", "in", "out", "for", "back")}
_SAME_WORD |= {"nonsingular": "invertible"}
_SAME_WORD |= {
    f"{prefix}{sign}": day
    for prefix in ("星期", "周", "礼拜")
    for sign, day in zip(
        "一二三四五六日", "monday tuesday wednesday thursday friday saturday sunday".split(), strict=True
    )
}
_SAME_WORD |= {"stays": "remains", "真命题": "真", "假命题": "假"}
_SAME_WORD |= {"increases": "increasing", "decreases": "decreasing"}
_FILLERS = frozenset("the an it is are this that will be we".split())
_SUBJECTS = frozenset(
    "series sequence function integral limit equation statement triangle wins vectors matrix system".split()
)
_ENDLESS = re.compile(r"infinitely many (?:solutions|roots|values|ways|answers|points|primes)$")
_SAID_OF = re.compile(r"^(?:函数)?[a-z]\([a-z]\)是")
_ALL = re.compile(r"(?:all|every|any) ((?:odd|even|prime|composite|positive|negative|natural|integer|real|rational).*)")
_QUADRANTS = {"first": "i", "second": "ii", "third": "iii", "fourth": "iv"}
_QUADRANT = re.compile(rf"({'|'.join(_QUADRANTS)}) quadrant")
_DECISION = re.compile(r"\**(yes|no|true|false)\b\**\s*(?:[,.;:]|\s-|$)(.*)", re.IGNORECASE | re.DOTALL)
_HEDGES = (
    r"\b(?:or|but|maybe|perhaps|unless|if|only|except|when|whenever|provided|sometimes|for(?! (?:all|any|each|every)\b)"
)
_EMPTY_SETS = ("\\emptyset", "\\varnothing", "\\{\\}")
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_VALUES = {word: n for n, word in enumerate(_ONES)} | {word: 10 * n for n, word in enumerate(_TENS, start=2)}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}


def unwrap(text: str) -> str:
    r"""The text with the contents of ``\text{...}`` and similar commands in their place.

    >>> unwrap("\\text{(A)}")
    '(A)'
    """
    for _ in range(4 if "\\" in text else 0):
        inner = _TEXT_COMMAND.sub(r"\1", text)
        if inner == text:
            break
        text = inner
    return text


def plain_words(text: str) -> str | None:
    r"""Lower-case words, or None where the text is (partly) mathematics.

    >>> plain_words("\\text{Forty-Two}")
    'forty two'
    """
    inner = SPACING.sub(" ", unwrap(text)).strip(" .,;:\"'$*")
    if text.startswith("\\text"):  # else a factorial
        inner = inner.rstrip("!")
    if _MATH.search(inner) or not inner or _SYMBOLS.fullmatch(text.strip(" .,;:$")):
        return None
    inner = inner.replace("-", " ").replace('"', "").lower()
    inner = " ".join(inner.split())
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1].strip()
    inner = _ALL.sub(r"\1", inner.removeprefix("to the ").removesuffix("条件").removesuffix(" condition"))
    inner = inner.removeprefix("on ").removeprefix("the ").removeprefix("answer: ")
    if quadrant := _QUADRANT.fullmatch(inner):
        inner = f"quadrant {_QUADRANTS[quadrant[1]]}"
    inner = inner.replace("one to one", "injective").replace("onto", "surjective").replace("right angled", "right")
    inner = _ENDLESS.sub("infinitely many", inner)
    inner = _SAID_OF.sub("", inner).replace("而不", "不")
    if inner.startswith("only "):
        inner = f"{inner.removeprefix('only ')} only"
    if inner.endswith((" converges", " convergent")):
        inner = f"converges {inner.rpartition(' ')[0]}"
    none = _EXISTENCE.sub("", inner)
    return none if none in _NONE else _SAME_WORD.get(inner, inner) or None


def number_in_words(words: str) -> int | None:
    """The integer that English number words spell, or None.

    >>> number_in_words("two hundred and forty two"), number_in_words("any number")
    (242, None)
    """
    if words in ("a dozen", "one dozen", "dozen"):
        return 12
    sign, _, rest = words.partition(" ")
    if sign in ("minus", "negative") and (size := number_in_words(rest)) is not None:
        return -size
    total = current = 0
    seen = False
    for word in words.split():
        if word in _VALUES:
            current += _VALUES[word]
        elif word == "hundred":
            current = (current or 1) * 100
        elif word in _SCALES:
            total += (current or 1) * _SCALES[word]
            current = 0
        elif word == "and" and seen:
            continue
        else:
            return None
        seen = True
    return total + current if seen else None


_PARTS = dict(
    zip(
        "third quarter fourth fifth sixth seventh eighth ninth tenth".split(), (3, 4, 4, 5, 6, 7, 8, 9, 10), strict=True
    )
)
_PARTS |= {f"{word}s": value for word, value in _PARTS.items()}
_PARTS |= {"half": 2, "halves": 2, "hundredth": 100, "hundredths": 100, "thousandth": 1000, "thousandths": 1000}


def fraction_in_words(words: str) -> Fraction | None:
    """The fraction that English words spell, or None.

    >>> fraction_in_words("three quarters"), fraction_in_words("two and a half"), fraction_in_words("a third way")
    (Fraction(3, 4), Fraction(5, 2), None)
    """
    whole, joined, part = words.rpartition(" and ")
    counted, _, below = part.rpartition(" ")
    above = 1 if counted in ("", "a", "an") else number_in_words(counted)
    before = number_in_words(whole) if joined else 0
    if below not in _PARTS or above is None or before is None:
        return None
    return before + Fraction(above, _PARTS[below])


_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
_PLACE = re.compile(r"(?:the )?(\d+)(?:st|nd|rd|th)?(?: place)?|(?:the )?([a-z]+)(?: place)?")


def ordinal(text: str) -> int | None:
    """The place that an ordinal number states: third, 3rd, the 3rd place; a number alone too; None for other texts."""
    place = _PLACE.fullmatch(unwrap(text).strip(" .").lower())
    if place is None or (place[2] and place[2] not in _ORDINALS):
        return None
    return int(place[1]) if place[1] else _ORDINALS.index(place[2]) + 1


_ROMAN = re.compile(r"X{0,3}(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10}


def roman_number(text: str) -> int | None:
    """The number that a Roman numeral of three letters or more spells; shorter ones may be products or names.

    >>> roman_number("XIV"), roman_number("XVI"), roman_number("VI"), roman_number("XXY")
    (14, 16, None, None)
    """
    if len(text) < 3 or not _ROMAN.fullmatch(text):
        return None
    values = [_ROMAN_VALUES[letter] for letter in text]
    return sum(-value if value < max(values[i:]) else value for i, value in enumerate(values))


def _content(words: str) -> tuple[list[str], frozenset[str]]:
    """The words that make an answer, and what they are said of: "the series converges" as converges, of a series."""
    kept: list[str] = []
    pieces = words.replace(",", " ").split()
    for i, word in enumerate(pieces):
        article = (
            word == "a"
            and pieces[i + 1 :]
            and pieces[i + 1] not in ("and", "or")
            and (i == 0 or pieces[i - 1] in _FILLERS)
        )
        if word not in _FILLERS and not article:
            kept.append(_SAME_WORD.get(word, word))
    return [word for word in kept if word not in _SUBJECTS], _SUBJECTS.intersection(kept)


def _decision(text: str) -> str | None:
    """The yes, no, true or false with which an answer begins, if what follows does not take it back."""
    match = _DECISION.match(unwrap(text).strip())
    if match is None:
        return None
    decided = match[1].lower()
    contrary = "no|false|not" if decided in ("yes", "true") else "yes|true"
    return None if re.search(rf"{_HEDGES}|{contrary})\b", match[2], re.IGNORECASE) else decided


_HAN_DIGITS = {char: n for n, char in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_HAN_SCALES = {"十": 10, "百": 100, "千": 1000}


def chinese_number(text: str) -> int | None:
    """The integer below a hundred million that a Chinese numeral spells, or None.

    >>> chinese_number("十二"), chinese_number("三百零五"), chinese_number("个")
    (12, 305, None)
    """
    total = section = digit = 0
    for char in text:
        if char in _HAN_DIGITS:
            digit = _HAN_DIGITS[char]
        elif char in _HAN_SCALES:
            section += (digit or 1) * _HAN_SCALES[char]
            digit = 0
        elif char == "万":
            total, section, digit = (section + digit) * 10_000, 0, 0
        else:
            return None
    return total + section + digit if text else None


def option(text: str) -> str | None:
    r"""The option letter that a text consists of: A, (A), A., \text{(A)}, Option A."""
    match = _LETTER.match(_OPTION_WORD.sub("", unwrap(text).strip().strip("$*").strip()))
    return match[1] if match else None


def leading_option(text: str) -> str | None:
    """The option letter a text begins with, before its content: "(B) 42", "D, because …"."""
    match = _LEADING.match(unwrap(text).strip().strip("$"))
    return match[1] if match and not option_set(text) else None


_AND = r"\s*(?:[,;&]|and\b)\s*(?:and\s)?\s*"
_BESIDE = r"(?<=\))(?=\()"  # of (A)(C)
_SEVERAL = re.compile(rf"\(?([A-H])\)?(?:(?:{_AND}|\s*or\b\s*|\s+|{_BESIDE})\(?([A-H])\)?)+")
_LABEL = r"(?:\([IVX]+\)|[IVX]+|\(\d\)|\d)"
_SEVERAL_STATEMENTS = re.compile(rf"{_LABEL}(?:(?:{_AND}|{_BESIDE}){_LABEL})+")
_BEFORE_LABELS = re.compile(r"^(?:(?:both|only)\s+)?(?:(?:options|choices|answers|statements)\s*:?\s+)?", re.IGNORECASE)


def _labels(text: str) -> str:
    """The text without what may stand around the labels of several options or statements."""
    inner = re.sub(r"^\\\{([^{}]*)\\\}$", r"\1", SPACING.sub(" ", unwrap(text)).strip())  # a set's braces
    return _BEFORE_LABELS.sub("", inner.strip(" {}")).removesuffix(" only")


def option_set(text: str, contiguous: bool = False) -> str | None:
    """The sorted letters of an answer of several options: A, C or A and C; AC only if `contiguous`."""
    inner = _labels(text)
    several = _SEVERAL.fullmatch(inner) or (contiguous and re.fullmatch(r"[A-H]{2,8}", inner))
    return "".join(sorted(set(re.findall(r"[A-H]", inner)))) if several else None


def _statements(text: str) -> list[str] | None:
    """The labels of an answer of several statements: I and III, (1)(3)."""
    inner = _labels(text)
    return sorted(re.findall(r"[IVX]+|\d", inner)) if _SEVERAL_STATEMENTS.fullmatch(inner) else None


_LABELLED = re.compile(r"\(([A-J])\)(.+)|([A-J])[.:)]\s(.+)", re.DOTALL)


def labelled_option(text: str) -> tuple[str, str] | None:
    """The letter and the content of a truth that has both: (C) 12. There is none in (A) and (C)."""
    match = _LABELLED.fullmatch(unwrap(text).strip())
    if match is None or (option_set(text) and len(re.findall(r"\([A-H]\)", text)) > 1):
        return None
    return (match[1], match[2].strip()) if match[1] else (match[3], match[4].strip())


_LONE_CAPITAL = re.compile(r"(?<![A-Za-z\\{])(A(?!\s+(?!and\b|or\b)[a-z])|[B-HJ])(?![A-Za-z'’])")
_DENIED = re.compile(
    r"(?:\bnot|n't|n’t|\bnever|\bcannot be|\bneither|\bnor|\brather than)\s+(?:option |choice |be )?[(*\\{]*$"
)
_DENIED_BEHIND = re.compile(
    r"[)*}.]*\s+(?:cannot\b|(?:is|was|seems|can)(?:n['’]t|\s+not)\b|"
    r"(?:is|was|seems)\s+(?:\w+ly\s+)?(?:incorrect|wrong|false|impossible|an?)\b)"
)
_CHOICE = re.compile(r"[)*}.]*(?:\s*[,/]|,?\s+(?:or|and)\b)\s*(?:maybe |possibly |perhaps |option |choice )?[(*\\{]*")


def last_option(text: str) -> str | None:
    """The last capital letter A to J that stands alone in prose ("I think it's B")."""
    text = text[-400:]
    letters = list(_LONE_CAPITAL.finditer(text))
    if not letters or _DENIED.search(text[: letters[-1].start()]) or _DENIED_BEHIND.match(text, letters[-1].end()):
        return None
    several = len(letters) > 1 and _CHOICE.fullmatch(text[letters[-2].end() : letters[-1].start()])
    return None if several and letters[-2][0] != letters[-1][0] else letters[-1][0]


def is_option(text: str) -> bool:
    r"""Whether a letter is written as an option, (b) or \text{b}, rather than as a variable."""
    return text.strip().startswith(("(", "\\text", "\\mathrm", "\\mathbf", "\\mbox"))


_TWO_NAMES = re.compile(r"([A-Z][a-z]+)(?:, | and )([A-Z][a-z]+)")  # a longer list may be a ranking


def same_words(truth: str, answer: str) -> bool | None:
    r"""Whether two answers in words agree; None where the truth is mathematics.

    >>> same_words("\\text{Evelyn}", "evelyn"), same_words("\\text{even}", "\\text{even or odd}")
    (True, False)
    """
    several = option_set(truth) or option_set(answer)
    if several is not None:
        either = [" or " in SPACING.sub(" ", unwrap(text)) for text in (truth, answer)]  # A or C leaves it open
        return either[0] == either[1] and option_set(truth, True) == option_set(answer, True)
    statements = _statements(truth)
    if statements is not None and statements == _statements(answer):
        return True
    decided = _decision(truth)
    if decided is not None and (answered := _decision(answer)) is not None:
        return answered == decided
    places = [ordinal(text) for text in (truth, answer)]
    if None not in places:
        return places[0] == places[1]
    truth_words, answer_words = plain_words(truth), plain_words(answer)
    if truth_words is None:
        return answer_words in _NONE if truth.strip() in _EMPTY_SETS and answer_words is not None else None
    truth_letter = option(truth)
    if truth_letter is not None:
        answer_letter = option(answer)
        if answer_letter is None:
            answer_letter = leading_option(answer)
            return answer_letter == truth_letter if answer_letter is not None and truth_letter.isupper() else None
        if answer_letter == truth_letter:
            return True
        if answer_letter.upper() == truth_letter.upper() and truth_letter.upper() in "ABCDE":
            return is_option(truth) or is_option(answer)
        return False
    if truth_words in _NONE:
        if answer_words is None:
            return answer.strip() in _EMPTY_SETS
        among = {word for word in (truth_words + " " + answer_words).split() if word in ("real", "integer", "rational")}
        return answer_words in _NONE and len(among) < 2
    if answer_words is None:
        return None
    names = [match and {*match.groups()} for text in (truth, answer) if (match := _TWO_NAMES.fullmatch(unwrap(text)))]
    listed = [re.sub(r",? and ", ", ", words) for words in (truth_words, answer_words)]
    if listed[0] == listed[1] or (" and " in truth + answer and len(names) == 2 and names[0] == names[1]):
        return True
    (content, subjects), (answer_content, answer_subjects) = _content(truth_words), _content(answer_words)
    if content and content == answer_content:
        return subjects == answer_subjects or not subjects or not answer_subjects
    first, second = number_in_words(truth_words), number_in_words(answer_words)
    if first is not None and second is not None:
        return first == second
    if len(truth_words) < 3 or "," in truth_words or " and " in truth_words or " or " in truth_words:
        return None
    if sorted(truth_words) == sorted(answer_words) and len(truth_words) == 3:
        return None  # abc and cab may be products
    return False if truth_words.replace(" ", "").isalpha() else None
