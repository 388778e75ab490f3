"""A position in the tokens, and what is read from tokens alone: numbers, units, minutes, labels, number sets."""

from __future__ import annotations

import re
from fractions import Fraction

from mathrl.grading.lexer import MAX_DEPTH, RELATIONS, SET_OPS, UPRIGHT, Token, group_fractions, tokenize
from mathrl.grading.syntax import INFINITY, Node, ParseError, neg, num, sym, symbols, with_base
from mathrl.grading.units import SINGLE_LETTER_UNITS, meaning, qualify
from mathrl.grading.words import number_in_words

_UPWARD, _DOWNWARD = (num(0), INFINITY), (neg(INFINITY), num(0))
_HALVES_OF_REALS = {
    **dict.fromkeys(("R^+", "R_+", "R_>0", "R^>0"), ("(", *_UPWARD, ")")),
    **dict.fromkeys(("R_>=0", "R_ge0", "R_geq0", "R^ge0", "R_0^+", "R^+_0"), ("[", *_UPWARD, ")")),
    **dict.fromkeys(("R^-", "R_-", "R_<0", "R^<0"), ("(", *_DOWNWARD, ")")),
    **dict.fromkeys(("R_<=0", "R_le0", "R_leq0"), ("(", *_DOWNWARD, "]")),
}


APPLICABLE = frozenset("fghFGHPQ")
_OF_CAPITALS = frozenset(f"\\{name}" for name in "sigma mu chi omega rho varphi phi tau gamma".split())
APPLIED_WORDS = frozenset("rank nullity trace tr Var Cov Corr SD Aut Gal Hom End ord Res Pr vol".split())
_POWER_WORDS = frozenset(["squared", "cubed", "factorial"])
_NO_FACTORS = frozenset(
    (
        "cdot times div pm mp rangle rfloor rceil rvert rVert end land lor wedge vee bmod mod pmod ast text choose"
    ).split()
) | {*RELATIONS, *SET_OPS}


def literal(text: str) -> Node:
    """The node of a number token; exponents beyond the size of any answer are refused."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > 2000 or len(exponent) > 6 or abs(int(exponent or 0)) > 2000:
        raise ParseError("a number too large")
    places = len(mantissa.partition(".")[2])
    digits = len(mantissa.replace(".", "").lstrip("0"))
    value = Fraction(("0" + mantissa) if mantissa.startswith(".") else mantissa)
    if exponent:
        return num(value * Fraction(10) ** int(exponent))
    return num(value, places, digits)


def ellipsis_decimal(text: str) -> Node:
    """0.333…: the shortest block that repeats to the end, at least twice, and for three digits or more."""
    integer, _, digits = text.partition(".")
    for size in range(1, len(digits) // 2 + 1):
        block = digits[-size:]
        count = 1
        while digits[: len(digits) - size * count].endswith(block):
            count += 1
        if count >= 2 and count * size >= 3:
            fixed = digits[: len(digits) - size * count]
            base = Fraction(f"{integer}.{fixed}0")
            return num(base + Fraction(int(block), (10**size - 1) * 10 ** len(fixed)))
    raise ParseError("a decimal that goes on")


class Cursor:
    """A position in the tokens. `depth` counts nesting, `bars` open absolute values, `french` ]a, b[."""

    def __init__(self, text: str) -> None:
        self.tokens = group_fractions(tokenize(text))
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
        end = self.i
        while self.tokens[end].kind == "text":
            end += 1
        words = " ".join(token.value.strip() for token in self.tokens[self.i : end])
        colon = self.tokens[end].value == ":"
        if end == self.i or "answer" in words.lower() or not (colon or words.endswith(":")):
            return None
        self.i = end + colon
        return Node("text", (words.strip(" :").lower(),))

    def noun(self) -> str:
        r"""The noun before a whole expression, which it takes: \text{area } 4+2\pi; "" where there is none."""
        token, following = self.tokens[self.i], self.tokens[self.i + 1 : self.i + 2]
        if token.kind != "text" or not following or following[0].kind == "text" or following[0].value in RELATIONS:
            return ""
        said = meaning(token.value)
        if token.value in APPLIED_WORDS and following[0].value == "(":
            return ""
        if said.dimension or said.rest or not said.names:
            return ""
        self.i += 1
        if self.starts_factor() or self.at("-"):
            return token.value.strip()
        self.i -= 1
        return ""

    def applies(self, name: str) -> bool:
        """Whether what follows a letter is its argument: f(…), the mean E[X], the value y(0), \\sigma(X)."""
        if name == "E":
            names = {token.value for token in self.tokens[self.i + 1 : self.i + 6]}
            return self.at("(", "[") and bool(names & {"X", "Y", "Z", "W", "N", "T", "S"})
        if not self.at("("):
            return False
        value, closed = (token.value for token in self.tokens[self.i + 1 : self.i + 3])
        if name in _OF_CAPITALS:
            return closed == ")" and len(value) == 1 and value.isupper()
        at_number = value == "0" or (name in "yu" and value.isdecimal())
        return name in APPLICABLE or (closed == ")" and at_number and not name.startswith("\\"))

    def starts_factor(self) -> bool:
        token = self.tokens[self.i]
        if token.kind in ("num", "name", *UPRIGHT):
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
        """5 \\text{ m}: an upright letter behind a number is a unit; \\mathrm{C} in a sum is a name."""
        token = self.tokens[self.i]
        if token.kind not in UPRIGHT or token.value not in SINGLE_LETTER_UNITS or symbols(node):
            return False
        following = self.tokens[self.i + 1].value
        in_sum = following in ("+", "-") or self.in_sum()
        return following != "_" and (token.kind == "letter_text" or not in_sum)

    def unit_follows(self) -> bool:
        token = self.tokens[self.i]
        return token.kind in ("text", "letters") and token.value.strip(" ,").lower() not in ("and", "or")

    def with_unit(self, node: Node) -> Node:
        """Trailing words: another number (dozen, squared, base two), a percent or degree sign, a unit, a remark."""
        if self.tokens[self.i].value.strip().lower() in _POWER_WORDS and self.in_sum():
            raise ParseError("a power in words behind a sum, or behind its last term")
        words: list[str] = [self.take().value] if self.tokens[self.i].kind in UPRIGHT else []
        letters = not words and self.tokens[self.i].kind == "letters"
        while self.unit_follows() or (words and (self.at("/", "^", "cdot", "times") or self.unit_letter())):
            over = self.tokens[self.i + 1].kind in ("name", "text", "letters", *UPRIGHT)
            if letters and not over and self.at("/"):
                break  # ma/(1+x) of a mass and an acceleration
            token = self.take()
            words.append(token.value)
            if token.kind != "text" and token.value in ("/", "cdot", "times"):
                if not over:
                    raise ParseError("a unit over something else")
                words[-1] = "/" if token.value == "/" else "*"
                letters = letters and token.value == "/" and self.tokens[self.i].kind in ("name", "letters")
                words.append(self.take().value)
            elif token.value != "^":
                letters = letters and len(words) == 1
            if token.value == "^":
                words[-2:] = [words[-2] + "^" + (self.raw("}") if self.accept("{") else self.take().value)]
        return qualify(node, " ".join(words), letters)

    def in_sum(self) -> bool:
        """Whether a plus or minus between two terms stands before this place, outside of brackets that are closed."""
        depth = 0
        for i in range(self.i - 1, 0, -1):
            value = self.tokens[i].value
            depth += (value in (")", "]", "}")) - (value in ("(", "[", "{"))
            if depth < 0 or (not depth and (value == "," or value in RELATIONS)):
                return False
            if not depth and value in ("+", "-"):
                return self.tokens[i - 1].value not in RELATIONS
        return False

    def unit_letter(self) -> bool:
        """5 \\text{kg} m: a letter behind a unit."""
        token = self.tokens[self.i]
        return token.kind in ("name", *UPRIGHT) and token.spaced and token.value in SINGLE_LETTER_UNITS

    def subscript(self, node: Node) -> Node:
        self.take()
        text = self.raw("}") if self.accept("{") else self.take().value
        text = text.strip("()")
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

    def defines(self) -> bool:
        """Whether (x) = … x … follows the first name of a clause: y(x) = 2x is y = 2x."""
        opened, argument, closed, equals, *rest = self.tokens[self.i :]
        first = self.i == 1 or self.tokens[self.i - 2].value in (",", ";")
        marks = opened.value + closed.value + equals.value == "()="
        return first and marks and argument.kind == "name" and argument.value in ["x", *(each.value for each in rest)]

    def points(self) -> str | None:
        """The capital letters of \\angle ABC or \\overrightarrow{AB}, in order; None where there are fewer than two."""
        start, letters = self.i, ""
        braced = self.accept("{")
        while self.tokens[self.i].kind == "name" and self.tokens[self.i].value.isupper():
            letters += self.take().value
        if len(letters) < 2 or (braced and not self.accept("}")):
            self.i = start
            return None
        return letters
