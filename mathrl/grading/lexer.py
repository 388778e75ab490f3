r"""Characters to tokens.

\frac12 cm  ->  cmd frac, num 12, name cm (the parser takes the digits apart)
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mathrl.grading.boxes import closing_brace
from mathrl.grading.syntax import ParseError
from mathrl.grading.units import NOISE, SINGLE_LETTER_UNITS, UNIT_WORDS, meaning
from mathrl.grading.words import chinese_number


class Token(NamedTuple):
    """`kind`: num, cmd, name, text, op, end. `spaced`: white space precedes it."""

    kind: str
    value: str
    spaced: bool


MAX_TOKENS = 1200
MAX_DEPTH = 40
_TOKEN = re.compile(
    r"""(?P<space>(?:\s|~|\\[,;:!\ ]|\\q?quad(?![a-zA-Z])|\\hspace\*?\{[^{}]*\})+)
    |(?P<num>(?:\d+\.(?=\\(?:overline|bar|dot)(?![a-z]))|\d+(?:\.\d+)?|\.\d+)(?:[eE](?:-?\d+|\+\d{2,})(?![\d.]|\w))?)
    |(?P<cmd>\\[a-zA-Z]+)
    |(?P<escape>\\[^a-zA-Z])
    |(?P<name>[a-zA-Z]+)
    |(?P<ell>\.\.\.+)
    |(?P<op>\*\*|<=|>=|!=|==|=<|=>|[-+*/^_!=<>()\[\]{}|,;:&'%$"€£¥₹.])
    |(?P<han>[\u3400-\u9fff]+)
    |(?P<letter>[^\W\d_])""",
    re.VERBOSE,
)
_OPS = {"**": "^", "==": "=", "=<": "<=", "!=": "\\ne"}
_TEXT = frozenset(
    (
        "text textbf textit textrm textsf texttt mbox hbox textnormal mathrm operatorname mathbf boldsymbol "
        "mathit mathsf mathtt mathcal bm rm emph fbox boxed bold"
    ).split()
)
UPRIGHT = ("letter_text", "letter_roman")  # the kinds of a letter that may be a unit
_CURRENCY = frozenset("$€£¥₹")
_DOLLAR = re.compile(r"(?<!\\)\$")
_SPELLINGS = {"degree": "circ", "degrees": "circ", "nsubset": "nsubseteq", "gt": "gt", "dots": "ldots"}
FUNCTIONS = frozenset(
    (
        "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arcsinh "
        "arccosh arctanh arccoth arcsech arccsch arsinh arcosh artanh asinh acosh atanh log ln lg exp sqrt "
        "max min gcd lcm det asin acos atan abs floor ceil cbrt arg cis"
    ).split()
)
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "le": "<=", "leq": "<=", "leqslant": "<=",
    "leqq": "<=",
    "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=", "lt": "<", "gt": ">", "ne": "!=", "neq": "!=",
    "\\ne": "!=", "approx": "~", "simeq": "~", "cong": "cong", "sim": "~", "equiv": "==", "in": "in",
    "coloneqq": "=", "propto": "prop",
    "to": "->", "rightarrow": "->", "longrightarrow": "->", "mapsto": "->", "implies": "=>", "Rightarrow": "=>",
    "=>": "=>", "Longrightarrow": "=>", "impliedby": "<==", "Leftarrow": "<==", "leftarrow": "<-",
    "iff": "<=>", "Leftrightarrow": "<=>", "leftrightarrow": "<=>", "notin": "notin",
    "subset": "sub", "subseteq": "subeq",
    "supset": "sup", "supseteq": "supeq", "nsubseteq": "nsub", "mid": "mid", "nmid": "nmid",
    "perp": "perp", "parallel": "par",
}  # fmt: skip
SET_OPS = {"cup": "union", "cap": "inter", "setminus": "minus", "backslash": "minus", "bigcup": "union"}
_TEXT_FUNCTIONS = FUNCTIONS - frozenset(["min", "max", "det", "arg", "abs", "floor", "ceil"])  # words too, or minutes
_WORDS = {name: name for name in "pi theta alpha beta cup".split()}
_WORDS |= {"mod": "mod", "infinity": "infty", "inf": "infty", "oo": "infty", "union": "cup"}
_JOINERS = frozenset(["and", "or"])
_ONLY_WORDS = re.compile(r"[A-Za-z]{2,}")


def tokenize(text: str) -> list[Token]:
    r"""All tokens of `text`, ending in an `end` token.

    >>> [t.value for t in tokenize("2\\pi r")]
    ['2', 'pi', 'r', '']
    """
    tokens: list[Token] = []
    spaced, i, size = False, 0, len(text)
    odd_dollar = "$" in text and len(_DOLLAR.findall(text)) % 2 == 1  # no pair of delimiters: a currency
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
                tokens.append(Token("cmd", _SPELLINGS.get(name, name), spaced))
        elif kind == "escape":
            if value == "\\\\":
                tokens.append(Token("op", "\\\\", spaced))
            elif value[1] in "{}%|":
                tokens.append(Token("op", value if value[1] != "%" else "%", spaced))
            elif value[1] == "$":
                tokens.append(Token("text", "$", spaced))
            elif value[1] in "#()[]":
                pass
            else:
                raise ParseError(f"unknown command {value!r}")
        elif kind == "name":
            if text[i : i + 1] == "_" and len(value) == 2 and value.lower() in UNIT_WORDS:  # mv_0 of a mass and a speed
                tokens.extend(Token("name", char, spaced and not n) for n, char in enumerate(value))
            else:
                tokens.extend(_name_tokens(value, spaced, tokens))
        elif kind == "han":
            tokens.extend(_han_tokens(value, spaced))
        elif kind in ("letter", "num"):
            tokens.append(Token("num" if kind == "num" else "name", value, spaced))
        elif kind == "ell":
            tokens.append(Token("cmd", "ldots", spaced))
        elif value in _CURRENCY:
            if value != "$" or odd_dollar:
                tokens.append(Token("text", value, spaced))
        else:
            tokens.append(Token("op", _OPS.get(value, value), spaced))
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise ParseError("too many tokens")
    tokens.append(Token("end", "", False))
    return tokens


_HAN_NUMBER = re.compile(
    r"([零一二三四五六七八九十百千万两〇]+)(?:分之([零一二三四五六七八九十百千万两〇]+)|(?=([个只本张条名位块棵件辆支元人种次天岁页])))"
)


def _han_tokens(run: str, spaced: bool) -> list[Token]:
    """Chinese characters: a numeral, 三分之一 as 1/3, a numeral before a measure word, or words."""
    count = chinese_number(run)
    if count is not None:
        return [Token("num", str(count), spaced)]
    match = _HAN_NUMBER.match(run)
    first, second = (chinese_number(part or "") for part in (match[1], match[2])) if match else (None, None)
    if match is None or first is None or (match[2] and second is None):
        return [Token("text", run, spaced)]
    rest = [Token("text", run[match.end() :], False)] if match.end() < len(run) else []
    value = [Token("num", str(first), spaced)]
    if second is not None:
        value = tokenize(f"\\frac{{{second}}}{{{first}}}")[:-1]
    return [*value, *rest]


_SEPARATOR = re.compile(
    r"[,;]?\s*(?:for|where|with|if|when|such that|s\.t\.|provided(?: that)?|and where)(?![\w])"
    r"(?:\s+(?:all|any|every|each|some))?\s*(.*)"
)
_DOMAIN = re.compile(
    r"(?:(?:an?|all|any|every)\s+)?integers?\s+\$?([a-zA-Z])\$?|\$?([a-zA-Z])\$?\s+is\s+an(?:y)?\s+integer"
)
_MODULO = re.compile(r"\(?\s*mod(?:ulo)?(?![a-z])\s*([\w\s]*)\)?")
_SYMBOLS_ONLY = re.compile(r"[-+*/^=<>().,:!%\s\d]*\d[-+*/^=<>().,:!%\s\d]*")
_COUNTS = re.compile(r"\s*,\s+(?:and\s+)?|\s+and\s+")
_AND = re.compile(r"(?:^|\s+)(and|or)(?:\s+|$)")
_QUANTITY = re.compile(r"(-?\d[\d.,/]*)\s*([A-Za-z][A-Za-z .]*)")
_DATED = re.compile(r"([A-Za-z][A-Za-z .]*)\s(\d+)")
_UNIT_POWER = re.compile(r"~?([A-Za-z]+)\^\{?[23]\}?")
_UNIT_SPACE = re.compile(r"(?:\\[,;: ]|~|\s)+")
_UNIT_PART = re.compile(r"[A-Za-z]{1,4}(?:\^\{?-?\d\}?)?")
_COMPOUND_UNIT = re.compile(r"~?[A-Za-z]{1,4}(?:\^\{?-?\d\}?)?(?:\s*(?:/|\\cdot)\s*[A-Za-z]{1,4}(?:\^\{?-?\d\}?)?)+")


def _text_tokens(command: str, content: str, spaced: bool) -> list[Token]:
    """\text{...}: words stay one token; mathematics inside a command is tokenized."""
    word = content.strip()
    separated = _SEPARATOR.fullmatch(word)
    if separated:  # "for all", "where", "if": what follows is another clause
        return [Token("op", ",", True), *_text_tokens(command, separated[1], True)]
    modulus = _MODULO.fullmatch(word)
    if modulus:
        return [Token("cmd", "pmod", True), *tokenize(modulus[1])[:-1]]
    domain = _DOMAIN.fullmatch(word)
    if domain:
        return tokenize(f"{domain[1] or domain[2]} \\in \\mathbb{{Z}}")[:-1]
    if command in ("mathbf", "boldsymbol", "bm", "mathbb") and word in ("i", "j", "k"):
        return [Token("cmd", f"unit vector {word}", spaced)]
    if command in ("mathrm", "operatorname", "mathit", "mathsf", "rm"):
        name = word.strip("\\ ").lower()
        if word in ("Re", "Im"):
            return [Token("cmd", word, spaced)]
        if word in FUNCTIONS or name in FUNCTIONS:
            return [Token("cmd", name, spaced)]
    if command == "text" and word in ("Re", "Im"):
        return [Token("cmd", word, spaced)]
    if command == "text" and word in _TEXT_FUNCTIONS:
        return [Token("cmd", word, spaced)]
    counts = _COUNTS.split(word)
    if len(counts) > 1 and all(map(_QUANTITY.fullmatch, counts)):  # 7 goats and 4 helicopters
        joined = [[*_text_tokens(command, count, True), Token("text", "and", True)] for count in counts]
        return [token for tokens in joined for token in tokens][:-1]
    pieces = word.split(",")
    if command == "text" and len(pieces) == 2 and all(piece.strip() and not meaning(piece).rest for piece in pieces):
        first, second = (_text_tokens(command, piece, True) for piece in pieces)  # the "cm, width" of 8 cm, width 5 cm
        return [*first, Token("op", ",", False), *second]
    quantity = _QUANTITY.fullmatch(word)
    if quantity:
        return [*tokenize(quantity[1])[:-1], Token("text", quantity[2], True)]
    dated = _DATED.fullmatch(word)
    if dated:
        return [Token("text", dated[1], spaced), Token("num", dated[2], True)]
    power = _UNIT_POWER.fullmatch(word)
    spaced_units = _UNIT_SPACE.split(word)  # \\mathrm{g\\,mol^{-1}}
    if len(spaced_units) > 1 and all(_UNIT_PART.fullmatch(part) and meaning(part).dimension for part in spaced_units):
        return [Token("text", " ".join(spaced_units), spaced)]
    if _COMPOUND_UNIT.fullmatch(word) or (power and power[1].lower() in UNIT_WORDS):
        return [Token("text", word, spaced)]
    if len(word) == 1 and word.isalpha():
        roman = command == "mathrm" and word in SINGLE_LETTER_UNITS
        upright = "letter_text" if command in ("text", "textbf", "mbox", "textrm") else "letter_roman" if roman else ""
        return [Token(upright or "name", word, spaced)]
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
    after_number = bool(preceding) and (preceding[-1].kind == "num" or preceding[-1].value in ("}", "/", ")", "pi"))
    points = run.isupper() and bool(preceding) and preceding[-1].kind == "cmd"  # \\angle BED
    over = run[0] == "d" and any(token.kind == "cmd" and token.value.endswith("int") for token in preceding)  # dt
    unit = len(run) > 1 and lower in UNIT_WORDS and (len(run) > 2 or (after_number and not over))
    if preceding and unit and not points:
        return [Token("letters" if len(run) < 4 else "text", run, spaced)]
    if len(run) >= 4 or (preceding and preceding[-1].kind == "text" and lower in NOISE and len(run) > 1):
        return [Token("text", run, spaced)]
    tokens = [Token("name", char, False) for char in run]
    return [tokens[0]._replace(spaced=spaced), *tokens[1:]]


def group_fractions(tokens: list[Token]) -> list[Token]:
    """1 1/2 in plain text: number, space, number, slash, number becomes number, (number / number); dy/dx a fraction."""
    for i in range(len(tokens) - 4, -1, -1):
        integer, above, slash, below = tokens[i : i + 4]
        if (
            integer.kind == above.kind == below.kind == "num"
            and slash.value == "/"
            and above.spaced
            and "." not in integer.value + above.value + below.value
        ):
            group = [Token("cmd", "frac", True)]
            for token in (above, below):
                group += [Token("op", "{", False), token._replace(spaced=False), Token("op", "}", False)]
            tokens = [*tokens[: i + 1], *group, *tokens[i + 4 :]]
    for i in range(len(tokens) - 5, -1, -1):
        if tokens[i + 2].value == "/" and tokens[i].value == tokens[i + 3].value == "d":
            name, below = tokens[i + 1], tokens[i + 4]
            glued = not (name.spaced or below.spaced) and name.kind == below.kind == "name"
            if glued and (i == 0 or tokens[i - 1].kind != "name" or tokens[i].spaced):
                parts = [Token("op", mark, False) for mark in "{}{}"]
                group = [parts[0], *tokens[i : i + 2], parts[1], parts[2], *tokens[i + 3 : i + 5], parts[3]]
                tokens = [*tokens[:i], Token("cmd", "frac", True), *group, *tokens[i + 5 :]]
    return tokens
