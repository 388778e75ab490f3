"""Grams, the units in which duplicates and contamination are measured (features.md D6).

A gram is one word, one Han character, one number or one LaTeX command, after NFKC and lower-casing, with
punctuation dropped. So a Chinese question has as many grams as characters, and "芳芳买了99页" is no single
"word" that would slip through a 10-gram rule.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import regex
import xxhash

# Letters that look like Latin ones (Unicode's confusables.txt, UTS 39), in lower case; those of Cyrillic whose capitals
# do, such as В, are among them. A text with them must equal the text that it looks like.
_LOOKALIKES = str.maketrans(
    "асԁеҽһіꙇӏјоѕԛрԝѡхуүѵвнкмт" "ցհոռօգզստ" "ο" "ıɑɡ",
    "acdeehiiijosqpwwxyyvbhkmt" "ghnnoqqus" "o" "iag",
    "\u00ad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff",  # shown as nothing
)  # fmt: skip
# Greek capitals look like Latin ones in mathematics too. Of small letters only ο does: α and a are two variables, so
# that α is taken for a in the middle of a word alone (whαt, not sinα).
_GREEK_CAPITALS = str.maketrans("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX")
_GREEK_PROSE = re.compile(r"[α-ωά-ώ]{3}")
_GREEK_IN_WORD = re.compile(r"(?<=[a-z]{2})(?<!sin|cos|tan|cot|sec|csc|log)[αγινρσυ](?=[a-z])")
_GREEK_SMALL = str.maketrans("αγινρσυ", "ayivpou")
_FOREIGN = re.compile(r"[\u00ad\u0131\u0251\u0261\u0370-\u058f\u180e\u200b-\u200f\u2060\ua640-\ua69f\ufeff]")
# What many problems share and says little of any: drawing code, the form of the answer, units, counting.
_DRAWING = re.compile(
    r"\[asy\].*?(?:\[/asy\]|$)|\\begin\{(asy|tikzpicture|pspicture\*?)\}.*?(?:\\end\{\1\}|$)", re.DOTALL
)
_TO_THE_END = r"[\s\S]{0,400}?(?:[.。]\$?(?=\s|$)|[。]|$)"
_FORM = re.compile(
    rf"""
    (?<=\S) (?:(?<=[.?!\])}}$。,，])\s*|\s+)
    (?: (?:Enter|Round|Please\s+(?:provide|give|calculate|compute|find|express|enter|submit|report)
          |(?:Express|Give|Write|Provide|Present|State|Report|Leave|Submit)\s+(?:\w+\s+){{0,2}}(?:answers?|results?)
          |(?:The|Your)\s+(?:original\s+|final\s+)?answer\s+(?:is|can\s+be|should\s+be|must\s+be|will\s+be)\s+
           (?:\w+\s+)?(?:in|as|of)
          |All\s+(?:functions|angles)\s+are\s+in)\b{_TO_THE_END}
      | (?:the\s+form\s+)?\S{{0,30}}\s*\bwhere\s+(?:\$?\w\$?(?:,?\s+and\s+|,\s*)){{1,3}}\$?\w\$?\s+are\s+
        (?:\w+\s+){{0,2}}(?:prime|coprime)\b [^.?!]* \.
        (?:\s*(?:Find|Compute|Determine|Calculate|What\s+is)\s+(?:the\s+value\s+of\s+)?\$[a-z\s+]+\$[.?]?)?
      | (?:原始的?)?答案(?:是|为|的形式){_TO_THE_END} | 请给出{_TO_THE_END}
    )+
    """,
    re.VERBOSE,
)
_FORM_WORDS = ("nter ", "ound", "lease", "answer", "result", "radians", "degrees", "prime", "答案", "请给出")
_UNIT = "(?:unit|inche|feet|foot|yard|mile|meter|metre|centimeter|centimetre|millimeter|kilometer|degree)s?"
_UNITS = re.compile(
    rf"(?:\bhow\s+many|\b(?:the\s+)?number\s+of)\s+(?:square\s+|cubic\s+)?{_UNIT}\s+(?:are\s+)?(?:there\s+)?in\b"
    rf"|,?\s+in\s+(?:square|cubic)\s+{_UNIT}\b",
    re.IGNORECASE,
)
_UNIT_WORDS = ("square ", "cubic ", "degrees in", "units in", "inches in", "feet in", "meters in")
_BETWEEN = r"(?:[\s,;、，$&+\-−]|\\[,;]|\\text\{{|\}}|\band\b|\bor\b|\\[lc]?dots\b|\.\.\.|…){{1,12}}".format()
# It begins with the digit, not with what must not stand before it: re then skips to digits, in a third of the time.
_COUNTED = re.compile(rf"\d(?<![\w.^_]\d)\d{{0,2}}(?:{_BETWEEN}\d{{1,3}}(?![\w.])){{3,}}")
_NUMBER = re.compile(r"\d+")

LETTER = r"[\p{L}\p{M}--\p{Han}]"
_GRAM = r"""
        \\[a-z]+                                   # a LaTeX command: \frac
      | \d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)         # 1,250 and 1,250.5
      | \d+(?:\.\d+)?                              # 12 and 3.5
      | LETTER+(?:['’]LETTER+)*                    # a word: ducks, aren't
"""
_ANY_GRAM = regex.compile(r"\p{Han} |" + _GRAM.replace("LETTER", LETTER), regex.VERBOSE | regex.VERSION1)
# The same in ASCII text, which most questions are, in a third of the time.
_ASCII_GRAM = re.compile(_GRAM.replace("LETTER", "[a-z]"), re.VERBOSE)
_DROPPED = str.maketrans("", "", ",'’")


def grams(text: str) -> list[str]:
    r"""The grams of a text, in order.

    >>> grams("Janet’s 1,250 ducks: $\\frac{1}{2}$ 还剩5页")
    ['janets', '1250', 'ducks', '\\frac', '1', '2', '还', '剩', '5', '页']
    """
    if text.isascii():
        matches: list[str] = _ASCII_GRAM.findall(text.lower())
        joined = " ".join(matches)
        if "," not in joined and "'" not in joined:  # most texts have commas, few have them within a gram
            return matches
    else:
        joined = " ".join(_ANY_GRAM.findall(fold(text)))
    return joined.translate(_DROPPED).split()


def compared_grams(text: str) -> list[str]:
    r"""The grams by which a text is searched for in others: what many problems share is one gram, or two.

    A drawing is one gram, other for every drawing; so is the form in which the answer is to be given; 1, 2, 3, 4, 5
    are 1 and 5. Without that, problems that share nothing else would share runs of 10 grams.

    >>> compared_grams("Toss 1, 2, 3, 4, 5 or 6 coins. How many square units are in it? Express your answer in cm.")
    ['toss', '1', '6', 'coins', 'unitphrase', 'it', 'answerform']
    """
    if "[asy]" in text or "\\begin{" in text:
        text = _DRAWING.sub(lambda code: f" drawing{letters_of(' '.join(grams(code[0])))} ", text)
    if _has_any(text, _FORM_WORDS):
        text = _FORM.sub(" answerform ", text)
    if _has_any(text, _UNIT_WORDS):
        text = _UNITS.sub(" unitphrase ", text)
    return grams(_COUNTED.sub(_ends, text))


def _has_any(text: str, words: Sequence[str]) -> bool:
    """Whether one of the words is in the text; `any` of a generator takes half as long again."""
    for word in words:  # noqa: SIM110
        if word in text:
            return True
    return False


def letters_of(text: str) -> str:
    """A word that stands for the text: 16 letters of its digest."""
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", errors="surrogatepass")).translate(_AS_LETTERS)


_AS_LETTERS = str.maketrans("0123456789", "ghijklmnop")


def _ends(match: re.Match[str]) -> str:
    """A list of numbers with the inner ones of each run of four or more that count up or down left out."""
    listed = [int(number) for number in _NUMBER.findall(match[0])]
    kept = []
    for at, number in enumerate(listed):
        run_up = all(a + 1 == b for a, b in pairwise(listed[max(0, at - 1) : at + 2]))
        run_down = all(a - 1 == b for a, b in pairwise(listed[max(0, at - 1) : at + 2]))
        inner = 0 < at < len(listed) - 1 and (run_up or run_down)
        kept += [] if inner else [str(number)]
    return f" {' '.join(kept)} " if len(kept) < len(listed) - 1 else match[0]


def numbers(text_grams: list[str]) -> tuple[str, ...]:
    """The numbers among the grams, sorted: problems with different numbers are different problems."""
    return tuple(sorted(gram for gram in text_grams if gram[0].isdigit()))


def exact_key(text: str) -> int:
    """Equal for texts that differ only in case, white space and Unicode form, or look alike: 7+5 and 7-5 stay apart."""
    same = text.lower() if text.isascii() else fold(text).casefold()
    return xxhash.xxh3_128_intdigest("".join(same.split()).encode("utf-8", errors="surrogatepass"))


def fold(text: str) -> str:
    r"""The text in lower case and Unicode's form NFKC, with letters that look like Latin ones as these.

    >>> fold("Ｗhаt Аre α and a?")  # full-width, and а and А of Cyrillic
    'what are α and a?'
    """
    text = unicodedata.normalize("NFKC", text)
    if not _FOREIGN.search(text):
        return text.lower()
    if not _GREEK_PROSE.search(text):
        text = text.translate(_GREEK_CAPITALS)
    text = text.lower().translate(_LOOKALIKES)
    return _GREEK_IN_WORD.sub(lambda letter: letter[0].translate(_GREEK_SMALL), text)
