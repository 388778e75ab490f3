r"""Characters to tokens, for LaTeX and for plain-text mathematics alike.

\frac12 cm  ->  cmd frac, num 1, num 2 (digits split by the parser), text "cm"
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mathrl.grading.units import UNIT_WORDS


class ParseError(ValueError):
    """The text is not in the grammar; the answer is then compared as text."""


class Token(NamedTuple):
    """`kind`: num, cmd, name, text, op, end. `spaced`: white space precedes it."""

    kind: str
    value: str
    spaced: bool


MAX_TOKENS = 1200
_TOKEN = re.compile(
    r"""(?P<space>(?:\s|~|\\[,;:!\ ]|\\q?quad(?![a-zA-Z])|\\hspace\*?\{[^{}]*\})+)
    |(?P<num>(?:\d+\.(?=\\(?:overline|bar)\{)|\d+(?:\.\d+)?|\.\d+)(?:[eE](?:-?\d+|\+\d{2,})(?![\d.]|\w))?)
    |(?P<cmd>\\[a-zA-Z]+)
    |(?P<escape>\\[^a-zA-Z])
    |(?P<name>[a-zA-Z]+)
    |(?P<ell>\.\.\.+)
    |(?P<op>\*\*|<=|>=|!=|==|=<|=>|[-+*/^_!=<>()\[\]{}|,;:&'%$"€£¥.])
    |(?P<han>[\u3400-\u9fff]+)
    |(?P<letter>[^\W\d_])""",
    re.VERBOSE,
)
_OPS = {"**": "^", "==": "=", "=<": "<=", "!=": "\\ne"}
_TEXT = frozenset(
    (
        "text textbf textit textrm textsf texttt mbox hbox textnormal mathrm operatorname mathbf boldsymbol "
        "mathit mathsf mathcal bm rm emph fbox boxed bold"
    ).split()
)
_CURRENCY = frozenset("$€£¥")
FUNCTIONS = frozenset(
    (
        "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth log ln lg exp sqrt "
        "max min gcd lcm det asin acos atan abs floor ceil cbrt arg"
    ).split()
)
_WORDS = {
    "infinity": "infty",
    "inf": "infty",
    "oo": "infty",
    "pi": "pi",
    "theta": "theta",
    "alpha": "alpha",
    "beta": "beta",
    "union": "cup",
    "cup": "cup",
}
_JOINERS = frozenset(["and", "or"])
_CLOSERS = {"{": 1, "}": -1}


def _group_end(text: str, start: int) -> int:
    """The index of the brace that closes the one at `start`."""
    depth, i = 0, start
    while i < len(text):
        char = text[i]
        if char == "\\":
            i += 2
            continue
        depth += _CLOSERS.get(char, 0)
        if depth == 0:
            return i
        i += 1
    raise ParseError("unbalanced braces")


_ONLY_WORDS = re.compile(r"[A-Za-z]{2,}")


def tokenize(text: str) -> list[Token]:
    r"""All tokens of `text`, ending in an `end` token.

    >>> [t.value for t in tokenize("2\\pi r")]
    ['2', 'pi', 'r', '']
    """
    tokens: list[Token] = []
    spaced, i, size = False, 0, len(text)
    while i < size:
        match = _TOKEN.match(text, i)
        if match is None:
            raise ParseError(f"unknown character {text[i]!r}")
        kind, value = str(match.lastgroup), match[0]
        i = match.end()
        if kind == "space":
            spaced = True
            continue
        if kind == "cmd":
            name = value[1:]
            start = i
            while start < size and text[start] in " *":
                start += 1
            if name in _TEXT and start < size and text[start] == "{":
                end = _group_end(text, start)
                tokens.extend(_text_tokens(name, text[start + 1 : end], spaced))
                i = end + 1
            else:
                tokens.append(Token("cmd", name, spaced))
        elif kind == "escape":
            if value == "\\\\":
                tokens.append(Token("op", "\\\\", spaced))
            elif value[1] in "{}%|":
                tokens.append(Token("op", value if value[1] != "%" else "%", spaced))
            elif value[1] in "$#&_()[]":
                pass
            else:
                raise ParseError(f"unknown command {value!r}")
        elif kind == "name":
            tokens.extend(_name_tokens(value, spaced, tokens))
        elif kind == "han":
            tokens.append(Token("text", value, spaced))
        elif kind in ("letter", "num"):
            tokens.append(Token("num" if kind == "num" else "name", value, spaced))
        elif kind == "ell":
            tokens.append(Token("cmd", "ldots", spaced))
        elif value in _CURRENCY:
            pass
        else:
            tokens.append(Token("op", _OPS.get(value, value), spaced))
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise ParseError("too many tokens")
    tokens.append(Token("end", "", False))
    return tokens


_QUANTITY = re.compile(r"(-?\d[\d.,/]*)\s*([A-Za-z][A-Za-z .]*)")
_COMPOUND_UNIT = re.compile(r"~?[A-Za-z]{1,4}(?:\^\{?-?\d\}?)?(?:\s*(?:/|\\cdot)\s*[A-Za-z]{1,4}(?:\^\{?-?\d\}?)?)+")


def _text_tokens(command: str, content: str, spaced: bool) -> list[Token]:
    """\text{...}: words stay one token; mathematics inside a command is tokenized."""
    word = content.strip()
    if command in ("mathrm", "operatorname", "mathit", "mathsf", "rm"):
        name = word.strip("\\ ").lower()
        if word in FUNCTIONS or name in FUNCTIONS:
            return [Token("cmd", name, spaced)]
    quantity = _QUANTITY.fullmatch(word)
    if quantity:
        return [*tokenize(quantity[1])[:-1], Token("text", quantity[2], True)]
    if _COMPOUND_UNIT.fullmatch(word):
        return [Token("text", word, spaced)]
    if len(word) == 1 and word.isalpha():
        kind = "name" if command not in ("text", "textbf", "mbox", "textrm") else "letter_text"
        return [Token(kind, word, spaced)]
    if word.replace(",", "").replace(".", "", 1).replace("-", "", 1).isdigit() or "\\" in word or "^" in word:
        return tokenize(word)[:-1]
    if command in ("mathbf", "boldsymbol", "bm", "fbox", "boxed") and not _ONLY_WORDS.search(word):
        return tokenize(word)[:-1]
    return [Token("text", word, spaced)] if word else []


def _name_tokens(run: str, spaced: bool, preceding: list[Token]) -> list[Token]:
    """A run of letters: a function, a word, a unit after a number, or a product of symbols."""
    lower = run.lower()
    if run in FUNCTIONS:
        return [Token("cmd", run, spaced)]
    if lower in _JOINERS:
        return [Token("text", lower, spaced)]
    if lower in _WORDS and (len(run) > 2 or run in ("pi", "oo")):
        return [Token("cmd", _WORDS[lower], spaced)]
    if preceding and len(run) > 1 and lower in UNIT_WORDS and not (len(run) <= 2 and not _after_number(preceding)):
        return [Token("text", run, spaced)]
    if len(run) >= 4:
        return [Token("text", run, spaced)]
    tokens = [Token("name", char, False) for char in run]
    return [tokens[0]._replace(spaced=spaced), *tokens[1:]]


def _after_number(preceding: list[Token]) -> bool:
    last = preceding[-1]
    return last.kind == "num" or last.value in ("}", "/", ")")
