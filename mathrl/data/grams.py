"""Grams, the units in which duplicates and contamination are measured (features.md D6).

A gram is one word, one Han character, one number or one LaTeX command, after NFKC and lower-casing, with
punctuation dropped. So a Chinese question has as many grams as characters, and "芳芳买了99页" is no single
"word" that would slip through a 10-gram rule.
"""

import re
import unicodedata

import regex
import xxhash

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
        if "," not in text and "'" not in text:
            return matches
    else:
        matches = _ANY_GRAM.findall(unicodedata.normalize("NFKC", text).lower())
    return [gram.translate(_DROPPED) for gram in matches]


def numbers(text_grams: list[str]) -> tuple[str, ...]:
    """The numbers among the grams, sorted: problems with different numbers are different problems."""
    return tuple(sorted(gram for gram in text_grams if gram[0].isdigit()))


def exact_key(text: str) -> int:
    """Equal for texts that differ only in case, white space and Unicode form: 7+5 and 7-5 stay apart."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return xxhash.xxh3_128_intdigest("".join(folded.split()).encode("utf-8", errors="surrogatepass"))
