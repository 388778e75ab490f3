r"""Tokens of a question, and the digests by which near-duplicates are found: shingles and a salt.

The grams of decontamination (grams.py) drop operators, for which `k>0` and `k<0` are one text. Here they are two, and
`\dfrac{xy}{2}\times 3` is `\frac{x y}{2} \cdot 3`. A shingle is a run of `ngram` tokens, or all of a shorter text's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import regex
import xxhash

from mathrl.curation.token_windows import CHUNK, Hashes, Rows, TokenHashes, hash_tokens, windows
from mathrl.data.grams import LETTER, fold

_SUPERSCRIPTS = {ord(sign): f"^{digit}" for sign, digit in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)}
_SIGNS = _SUPERSCRIPTS | {ord(sign): "-" for sign in "−–—‐‑‒"} | str.maketrans({"’": "'", "×": "*", "⋅": "*", "·": "*"})

# Spellings without a meaning of their own: sizes of brackets, spaces, styles, the commands around a text.
_NOTHING = regex.compile(
    r"\\(?:left|right|bigg?[lrm]?|displaystyle|textstyle|limits|nolimits|quad|qquad|hspace\*?\{[^{}]*\}|"
    r"text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|rm|operatorname\*?)(?![a-z])"
    r"|\\[,;:!> ]|[_^]\{\s*\}|[{}](?!,\})|~"
)
_SAME = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\dbinom": "\\binom", "\\tbinom": "\\binom",
    "\\times": "*", "\\cdot": "*", "\\ast": "*", "\\div": "/", "÷": "/",
    "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "≤": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=",
    "≥": ">=", "\\ne": "!=", "\\neq": "!=", "≠": "!=", "\\lt": "<", "\\gt": ">", "\\pm": "±", "π": "\\pi",
    "√": "\\sqrt", "∞": "\\infty", "\\lvert": "|", "\\rvert": "|", "\\vert": "|", "\\mid": "|",
    "\\ldots": "...", "\\cdots": "...", "\\dots": "...", "\\dotsb": "...", "\\dotsc": "...", "…": "...",
    "\\circ": "degrees", "°": "degrees", "degree": "degrees", "\\%": "%", "percent": "%",
}  # fmt: skip
_PLAIN = re.compile(r"[^\\${}~-]*")  # without LaTeX and hyphens, nothing is to be folded
_MATH = regex.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", regex.DOTALL)
_PROSE = regex.compile(r"(?<![\\a-z])[a-z]{4,}")  # a word between dollar signs: they are amounts of money
_LETTERS = regex.compile(r"(?<!\\[a-z]*)[a-z]{2,}")
_CAPITALS = regex.compile(r"\b[A-Z]{4,}\b")  # "arrange the letters of PROOF"
_TEXT = regex.compile(r"\\(?:text|mbox|mathrm|operatorname)[a-z*]*\s*\{([^{}]*)\}")
_DIFFERENCE = regex.compile(r"(?<=[a-z])-(?=[a-z])")
_HYPHEN = regex.compile(r"(?<=\p{L})-(?=\p{L})")
_TOKEN = r"""
        \\[a-z]+ | \\%
      | \d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d) | \d+(?:\.\d+)? | (?<!\d)\.\d+
      | LETTER+(?:'LETTER+)*
      | \.{3} | <= | >= | != | (?<=[\d\)\}])! | (?<=\d):(?=\d) | [-+*/=<>^|%±÷≤≥≠°√∞…()\[\]]
"""
_ANY_TOKEN = regex.compile(r"\p{Han} |" + _TOKEN.replace("LETTER", LETTER), regex.VERBOSE | regex.VERSION1)
_ASCII_TOKEN = re.compile(_TOKEN.replace("LETTER", "[a-z]"), re.VERBOSE)  # the same in ASCII text, and faster
_OPERATORS = frozenset("+ - * / = < > <= >= != ^ % ± ! : | \\cup \\cap \\in \\subset \\equiv".split())
_LISTS_OPTIONS = re.compile(r"\(\s*A\s*\).+\(\s*B\s*\)|\bA[.)]\s.+\bB[.)]\s|（A）.+（B）|\[A\].+\[B\]", re.DOTALL)
_VARIABLE = regex.compile(r"\p{L}|\\[a-z]+")  # z and \theta


def question_tokens(text: str) -> list[str]:
    r"""The tokens of a question, in order.

    >>> question_tokens(r"Find $\dfrac{xy}{2}\times\left(3-k\right)$ if k≥1,000.")
    ['find', '\\frac', 'x', 'y', '2', '*', '(', '3', '-', 'k', ')', 'if', 'k', '>=', '1000']
    """
    if text.isascii():
        plain, rule = text.lower(), _ASCII_TOKEN
    else:
        plain = fold(text.translate(_SIGNS)).translate(_SIGNS)
        rule = _ANY_TOKEN
    if not _PLAIN.fullmatch(plain):
        plain = plain.replace("\\$", " ").replace("{,}", ",")
        plain = plain.replace("^{\\circ}", "\\circ").replace("^\\circ", "\\circ")
        plain = _NOTHING.sub(" ", _HYPHEN.sub(" ", _MATH.sub(_formula, plain)))
    tokens = rule.findall(plain)
    tokens = list(map(_SAME.get, tokens, tokens))
    return [token.replace(",", "") for token in tokens] if "," in "".join(tokens) else tokens


def signature(text: str, tokens: list[str]) -> tuple[str, ...]:
    """The numbers and operators among the tokens of a question, in order, and its words in capitals.

    Questions that differ here are different questions. One that lists options has its variables too: its answer, a
    letter, says little, and z=c has the options of θ=c.

    >>> text = "For n>3, arrange 2n-1 letters of PROOF"
    >>> signature(text, question_tokens(text))
    ('>', '3', '2', '-', '1', 'PROOF')
    """
    marks = [token for token in tokens if token[0].isdigit() or token[0] == "." or token in _OPERATORS]
    if "A" in text and "B" in text and _LISTS_OPTIONS.search(text):
        marks += [token for token in tokens if _VARIABLE.fullmatch(token)]
    return (*marks, *_CAPITALS.findall(text))


def _formula(match: regex.Match[str]) -> str:
    """A formula with its variables apart: xy is x y. An amount of money is left as it is."""
    inside = next(group for group in match.groups() if group is not None)
    inside = _TEXT.sub(r" \1 ", inside)
    if _PROSE.search(inside):
        return f" {inside} "
    spaced = _DIFFERENCE.sub(" - ", inside)
    apart: str = _LETTERS.sub(lambda letters: " ".join(letters.group()), spaced)
    return f" {apart} "


def shingles(tokens: Sequence[Sequence[str]], ngram: int) -> Rows:
    """The distinct shingles of each row, sorted."""
    hashed = hash_tokens(tokens, TokenHashes())
    lengths = np.diff(hashed.starts)
    hashes, hash_rows = [], []
    for size, value, row, _ in windows(hashed, ngram):
        wanted = np.ones(len(row), bool) if size == ngram else lengths[row] == size  # shorter ones: the whole row
        hashes.append(value[wanted])
        hash_rows.append(row[wanted])
    values, rows = np.concatenate(hashes), np.concatenate(hash_rows)
    order = np.lexsort((values, rows))
    values, rows = values[order], rows[order]
    first = np.ones(len(values), dtype=bool)
    first[1:] = (values[1:] != values[:-1]) | (rows[1:] != rows[:-1])
    counts = np.bincount(rows[first], minlength=len(tokens))
    return Rows(values[first], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def sketches(shingles: Rows) -> Hashes:
    """64 bits per row: a bit is set if an odd number of the row's shingles have it, by their hashes' first six bits."""
    bits = np.uint64(1) << (shingles.flat >> np.uint64(58))
    filled = np.diff(shingles.starts) > 0
    found = np.zeros(len(shingles), np.uint64)
    found[filled] = np.bitwise_xor.reduceat(bits, shingles.starts[:-1][filled]) if len(bits) else 0
    return found


@dataclass(frozen=True)
class Digests:
    """What the search for near-duplicates keeps of the rows.

    `salt` differs for questions with other numbers or operators.
    """

    shingles: Rows
    salt: Hashes


def digest(texts: Sequence[str], ngram: int) -> Digests:
    """Shingles and salts of the texts; no token outlives its chunk."""
    parts = [_digest_chunk(texts[i : i + CHUNK], ngram) for i in range(0, len(texts), CHUNK)]
    salts = [part.salt for part in parts]
    return Digests(
        Rows.join([part.shingles for part in parts]), np.concatenate(salts) if salts else np.empty(0, np.uint64)
    )


def _digest_chunk(texts: Sequence[str], ngram: int) -> Digests:
    tokens = [question_tokens(text) for text in texts]
    marks = (" ".join(signature(text, row)) for text, row in zip(texts, tokens, strict=True))
    salt = np.fromiter((xxhash.xxh3_64_intdigest(m.encode("utf-8", "surrogatepass")) for m in marks), np.uint64)
    return Digests(shingles(tokens, ngram), salt)
