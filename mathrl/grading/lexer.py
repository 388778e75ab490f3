r"""Characters to tokens, for LaTeX and for plain-text mathematics alike.

\frac12 cm  ->  cmd frac, num 1, num 2 (digits split by the parser), text "cm"
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mathrl.core.braces import closing_brace
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
        "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arcsinh "
        "arccosh arctanh arccoth arcsech arccsch arsinh arcosh artanh asinh acosh atanh log ln lg exp sqrt "
        "max min gcd lcm det asin acos atan abs floor ceil cbrt arg"
    ).split()
)
_TEXT_FUNCTIONS = FUNCTIONS - frozenset(["min", "max", "det", "arg", "abs", "floor", "ceil"])  # words too, or minutes
_WORDS = {name: name for name in "pi theta alpha beta cup".split()}
_WORDS |= {"infinity": "infty", "inf": "infty", "oo": "infty", "union": "cup"}
_JOINERS = frozenset(["and", "or"])
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
                end = closing_brace(text, start)
                if end < 0:
                    raise ParseError("unbalanced braces")
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


_SYMBOLS_ONLY = re.compile(r"[-+*/^=<>().,:!%\s\d]*\d[-+*/^=<>().,:!%\s\d]*")
_COUNTS = re.compile(r"\s*,\s+(?:and\s+)?|\s+and\s+")
_AND = re.compile(r"(?:^|\s+)(and|or)(?:\s+|$)")
_QUANTITY = re.compile(r"(-?\d[\d.,/]*)\s*([A-Za-z][A-Za-z .]*)")
_UNIT_POWER = re.compile(r"~?([A-Za-z]+)\^\{?[23]\}?")
_COMPOUND_UNIT = re.compile(r"~?[A-Za-z]{1,4}(?:\^\{?-?\d\}?)?(?:\s*(?:/|\\cdot)\s*[A-Za-z]{1,4}(?:\^\{?-?\d\}?)?)+")


def _text_tokens(command: str, content: str, spaced: bool) -> list[Token]:
    """\text{...}: words stay one token; mathematics inside a command is tokenized."""
    word = content.strip()
    if command in ("mathrm", "operatorname", "mathit", "mathsf", "rm"):
        name = word.strip("\\ ").lower()
        if word in ("Re", "Im"):
            return [Token("cmd", word, spaced)]
        if word in FUNCTIONS or name in FUNCTIONS:
            return [Token("cmd", name, spaced)]
    if command == "text" and word in _TEXT_FUNCTIONS:
        return [Token("cmd", word, spaced)]
    counts = _COUNTS.split(word)
    if len(counts) > 1 and all(map(_QUANTITY.fullmatch, counts)):  # 7 goats and 4 helicopters
        joined = [[*_text_tokens(command, count, True), Token("text", "and", True)] for count in counts]
        return [token for tokens in joined for token in tokens][:-1]
    quantity = _QUANTITY.fullmatch(word)
    if quantity:
        return [*tokenize(quantity[1])[:-1], Token("text", quantity[2], True)]
    power = _UNIT_POWER.fullmatch(word)
    if _COMPOUND_UNIT.fullmatch(word) or (power and power[1].lower() in UNIT_WORDS):
        return [Token("text", word, spaced)]
    if len(word) == 1 and word.isalpha():
        kind = "name" if command not in ("text", "textbf", "mbox", "textrm") else "letter_text"
        return [Token(kind, word, spaced)]
    assigned = "=" in word and not _ONLY_WORDS.search(word)  # \text{x = 4}
    if _SYMBOLS_ONLY.fullmatch(word) or assigned or "\\" in word or "^" in word:
        return tokenize(word)[:-1]
    conjunction = _AND.search(word) if command in ("text", "textbf", "textit", "textrm", "mbox") else None
    if conjunction and conjunction[1] == "and" and word != "and":  # "goats and" before the next number
        head, tail = word[: conjunction.start()].strip(" ,"), word[conjunction.end() :].strip(" ,")
        if not _AND.search(tail) and not (head and tail):
            parts = [(head, "text"), ("and", "text"), (tail, "text")]
            return [Token(kind, part, True) for part, kind in parts if part]
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
    after_number = bool(preceding) and (preceding[-1].kind == "num" or preceding[-1].value in ("}", "/", ")"))
    if preceding and len(run) > 1 and lower in UNIT_WORDS and (len(run) > 2 or after_number):
        return [Token("text", run, spaced)]
    if len(run) >= 4:
        return [Token("text", run, spaced)]
    tokens = [Token("name", char, False) for char in run]
    return [tokens[0]._replace(spaced=spaced), *tokens[1:]]
