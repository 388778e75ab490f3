r"""Characters to tokens, and what is read from tokens alone: numbers, units, minutes, labels.

\frac12 cm  ->  cmd frac, num 12, name cm (the parser takes the digits apart)
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from mathrl.grading.extract import closing_brace
from mathrl.grading.syntax import (
    INFINITY,
    Node,
    ParseError,
    ellipsis_decimal,
    literal,
    neg,
    num,
    sym,
    symbols,
    with_base,
)
from mathrl.grading.units import NOISE, SINGLE_LETTER_UNITS, UNIT_WORDS, meaning, qualify
from mathrl.grading.words import chinese_number, number_in_words


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


_UPWARD, _DOWNWARD = (num(0), INFINITY), (neg(INFINITY), num(0))
_HALVES_OF_REALS = {
    **dict.fromkeys(("R^+", "R_+", "R_>0", "R^>0"), ("(", *_UPWARD, ")")),
    **dict.fromkeys(("R_>=0", "R_ge0", "R_geq0", "R^ge0", "R_0^+", "R^+_0"), ("[", *_UPWARD, ")")),
    **dict.fromkeys(("R^-", "R_-", "R_<0", "R^<0"), ("(", *_DOWNWARD, ")")),
    **dict.fromkeys(("R_<=0", "R_le0", "R_leq0"), ("(", *_DOWNWARD, "]")),
}

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
    if command == "text" and word in _TEXT_FUNCTIONS:
        return [Token("cmd", word, spaced)]
    counts = _COUNTS.split(word)
    if len(counts) > 1 and all(map(_QUANTITY.fullmatch, counts)):  # 7 goats and 4 helicopters
        joined = [[*_text_tokens(command, count, True), Token("text", "and", True)] for count in counts]
        return [token for tokens in joined for token in tokens][:-1]
    quantity = _QUANTITY.fullmatch(word)
    if quantity:
        return [*tokenize(quantity[1])[:-1], Token("text", quantity[2], True)]
    dated = _DATED.fullmatch(word)
    if dated:
        return [Token("text", dated[1], spaced), Token("num", dated[2], True)]
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
    points = run.isupper() and bool(preceding) and preceding[-1].kind == "cmd"  # \\angle BED
    over = run[0] == "d" and any(token.kind == "cmd" and token.value.endswith("int") for token in preceding)  # dt
    unit = len(run) > 1 and lower in UNIT_WORDS and (len(run) > 2 or (after_number and not over))
    if preceding and unit and not points:
        return [Token("letters" if len(run) < 4 else "text", run, spaced)]
    if len(run) >= 4 or (preceding and preceding[-1].kind == "text" and lower in NOISE and len(run) > 1):
        return [Token("text", run, spaced)]
    tokens = [Token("name", char, False) for char in run]
    return [tokens[0]._replace(spaced=spaced), *tokens[1:]]


def _group_mixed_numbers(tokens: list[Token]) -> list[Token]:
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


_NO_FACTORS = frozenset(
    (
        "cdot times div pm mp rangle rfloor rceil rvert rVert end land lor wedge vee bmod mod pmod ast text choose"
    ).split()
) | {*RELATIONS, *SET_OPS}


class Cursor:
    """A position in the tokens. `depth` counts nesting, `bars` open absolute values, `french` ]a, b[."""

    def __init__(self, text: str) -> None:
        self.tokens = _group_mixed_numbers(tokenize(text))
        self.i = self.depth = self.bars = 0
        self.french = False

    def peek(self) -> str:
        """The operator or command here; "" for any other token."""
        token = self.tokens[self.i]
        return token.value if token.kind in ("op", "cmd") else ""

    def at(self, *values: str) -> bool:
        return self.peek() in values

    def take(self) -> Token:
        token = self.tokens[self.i]
        if token.kind != "end":
            self.i += 1
        return token

    def accept(self, *values: str) -> bool:
        if self.at(*values):
            self.i += 1
            return True
        return False

    def expect(self, value: str) -> None:
        if not self.accept(value):
            raise ParseError(f"expected {value!r}, found {self.tokens[self.i].value!r}")

    def raw(self, closer: str) -> str:
        """The text of the tokens up to `closer`, spacing dropped."""
        texts: list[str] = []
        depth = 0
        while True:
            token = self.take()
            if token.kind == "end":
                raise ParseError("unbalanced braces")
            if token.value == "{":
                depth += 1
            elif token.value == closer and depth == 0:
                return "".join(texts)
            elif token.value == "}":
                depth -= 1
            texts.append(token.value)

    def nest(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("nested too deeply")

    def number(self, token: Token) -> Node:
        value = literal(token.value)
        if self.at("overline", "bar", "dot") and "." in token.value:
            mark = self.take().value
            return self.repeating_decimal(token.value, mark)
        if self.at("ldots", "dots", "cdots") and "." in token.value:
            self.take()
            return ellipsis_decimal(token.value)
        return value

    def repeating_decimal(self, head: str, mark: str) -> Node:
        """0.1\\overline{6}: the digits under the bar, or from dot to dot, repeat for ever."""
        digits = self.raw("}") if self.accept("{") else self.digit()
        if mark == "dot" and self.tokens[self.i].kind == "num":
            digits += self.take().value
        if mark == "dot" and self.accept("dot"):
            digits += self.raw("}") if self.accept("{") else self.digit()
        if "." not in head:
            if not digits.startswith("."):
                raise ParseError("a bar that is not over decimals")
            head, digits = head + ".", digits[1:]
        if not digits.isdigit() or len(digits) > 100:
            raise ParseError("a repeating part that is not digits")
        fixed = len(head.split(".")[1])
        return num(Fraction(head + "0") + Fraction(int(digits), (10 ** len(digits) - 1) * 10**fixed))

    def digit(self) -> str:
        """The first digit of the number here; the others stay."""
        token = self.take()
        if token.kind == "num" and len(token.value) > 1:
            self.i -= 1
            self.tokens = [*self.tokens]
            self.tokens[self.i] = token._replace(value=token.value[1:])
        return token.value[:1]

    def accept_joiner(self, semicolons: list[int] | None = None, count: int = 0) -> bool:
        """Take a comma, semicolon or conjunction; `semicolons` gets the `count` of clauses before a looser one."""
        token = self.tokens[self.i]
        if token.kind == "op" and token.value in (",", ";"):
            self.i += 1
            if token.value == ";" and semicolons is not None:
                semicolons.append(count)
            return True
        if token.kind == "text" and token.value.strip(" ,;.").lower() in ("and", "or", "及", "和", "或", "与"):
            self.i += 1
            assigned = self.tokens[self.i].kind == "name" and self.tokens[self.i + 1].value == "="
            if semicolons is not None and assigned:  # as in "p = 5, q = 2 and p = 7, q = 2"
                semicolons.append(count)
            return True
        if token.kind == "cmd" and token.value in ("land", "lor", "wedge", "vee"):
            self.i += 1
            return True
        return False

    def label(self) -> Node | None:
        """The words before a colon: Minimum: 1."""
        token, following = self.tokens[self.i], self.tokens[self.i + 1 : self.i + 2]
        if token.kind != "text" or "answer" in token.value.lower():
            return None
        colon = bool(following) and following[0].value == ":"
        if not colon and not token.value.rstrip().endswith(":"):
            return None
        self.i += 2 if colon else 1
        return Node("text", (token.value.strip(" :").lower(),))

    def noun(self) -> str:
        r"""The noun before a whole expression, which it takes: \text{area } 4+2\pi; "" where there is none."""
        token, following = self.tokens[self.i], self.tokens[self.i + 1 : self.i + 2]
        if token.kind != "text" or not following or following[0].kind == "text" or following[0].value in RELATIONS:
            return ""
        said = meaning(token.value)
        if said.dimension or said.rest or not said.names:
            return ""
        self.i += 1
        if self.starts_factor() or self.at("-"):
            return token.value.strip()
        self.i -= 1
        return ""

    def starts_factor(self) -> bool:
        token = self.tokens[self.i]
        if token.kind in ("num", "name", "letter_text"):
            return True
        if token.kind == "op":
            if (token.value == "[" and self.french) or self.at_modulus():
                return False
            return token.value in ("(", "[", "{", "\\{") or (token.value == "|" and self.bars == 0)
        return token.kind == "cmd" and token.value not in _NO_FACTORS

    def at_modulus(self) -> bool:
        """\\pmod 7, or (mod 7)."""
        i = self.i + (self.tokens[self.i].value == "(")
        token = self.tokens[i]
        return token.kind == "cmd" and token.value in ("pmod", "mod", "bmod") and (i > self.i or token.value == "pmod")

    def minutes(self, degrees: Node) -> Node | None:
        """60^\\circ 42' 36'': minutes, and perhaps seconds, behind degrees; None where no minutes follow."""
        parts: list[Node] = [degrees.args[0]]
        for marks, size in ((1, 60), (2, 3600)):
            start = self.i
            token = self.take()
            if token.kind != "num" or self.primes() != marks:
                self.i = start
                break
            parts.append(Node("div", (literal(token.value), num(size))))
        return Node("degree", (Node("add", (tuple(parts),)),)) if len(parts) > 1 else None

    def primes(self) -> int:
        """The number of prime marks here, which it takes."""
        marks = 0
        while True:
            if self.accept("'", "prime"):
                marks += 1
            elif self.accept('"'):
                marks += 2
            elif self.at("^", "{", "}"):
                self.i += 1
            else:
                return marks

    def letter_unit(self, node: Node) -> bool:
        """5 \\text{ m}: an upright letter behind a number is a unit."""
        token = self.tokens[self.i]
        return token.kind == "letter_text" and token.value in SINGLE_LETTER_UNITS and not symbols(node)

    def unit_follows(self) -> bool:
        token = self.tokens[self.i]
        return token.kind in ("text", "letters") and token.value.strip(" ,").lower() not in ("and", "or")

    def with_unit(self, node: Node) -> Node:
        """Trailing words: another number (dozen, squared, base two), a percent or degree sign, a unit, a remark."""
        words: list[str] = [self.take().value] if self.tokens[self.i].kind == "letter_text" else []
        letters = not words and self.tokens[self.i].kind == "letters"
        while self.unit_follows() or (words and (self.at("/", "^", "cdot", "times") or self.unit_letter())):
            token = self.take()
            words.append(token.value)
            if token.kind != "text" and token.value in ("/", "cdot", "times"):
                if self.tokens[self.i].kind not in ("name", "text", "letters", "letter_text"):
                    raise ParseError("a unit over something else")
                words[-1] = "/" if token.value == "/" else "*"
                words.append(self.take().value)
            if token.value == "^":
                words[-2:] = [words[-2] + "^" + (self.raw("}") if self.accept("{") else self.take().value)]
        return qualify(node, " ".join(words), letters and len(words) == 1)

    def unit_letter(self) -> bool:
        """5 \\text{kg} m: a letter behind a unit."""
        token = self.tokens[self.i]
        return token.kind in ("name", "letter_text") and token.spaced and token.value in SINGLE_LETTER_UNITS

    def subscript(self, node: Node) -> Node:
        self.take()
        text = self.raw("}") if self.accept("{") else self.take().value
        base = int(text) if text.isdigit() else number_in_words(text.lower())
        if node.kind == "num" and base is not None:
            return with_base(node, base)
        if node.kind in ("mul", "num"):
            raise ParseError("a subscript on a number")
        return sym(f"{node.args[0] if node.kind in ('sym', 'const') else node}_{text}")

    def number_set(self) -> Node:
        name = self.raw("}") if self.accept("{") else self.take().value
        if len(name) == 1 and name.islower():
            return sym(f"\\hat{{{name}}}" if name in "ijk" else name)
        start = self.i
        while self.at("^", "_"):
            mark = self.take().value
            name += mark + (self.raw("}") if self.accept("{") else self.take().value)
        if re.fullmatch(r"[A-Z]+(?:\^[\dn]|\^?_?[\dn]\^?[\dn]?)?", name) and "^" in name and not name.startswith("N^"):
            self.i, name = start, name[0]  # a power
        if name in _HALVES_OF_REALS:
            opener, *ends, closer = _HALVES_OF_REALS[name]
            return Node("tuple", (opener, closer, tuple(ends)))
        return Node("reals", ()) if name == "R" and not self.at("^", "(", "[") else sym("set:" + name)
