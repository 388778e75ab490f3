"""Primaries: numbers, names, words, fractions, radicals, functions, operators with bounds."""

from __future__ import annotations

from fractions import Fraction

from mathrl.grading.brackets import OPENERS, Brackets
from mathrl.grading.grammar import CONSTANTS, RELATIONS, SET_OPS
from mathrl.grading.lexer import FUNCTIONS, ParseError, Token, tokenize
from mathrl.grading.literals import adjacent, ellipsis_decimal, literal
from mathrl.grading.syntax import Node, is_complex, is_expression, kinds, neg, num, sym, symbols

_BIG = frozenset(["sum", "prod", "int", "iint", "iiint", "oint", "lim", "bigcap", "limsup", "liminf"])
_TASK_FUNCTIONS = frozenset(["gcd", "lcm", "det"])
_INVERSES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log10"}
_INVERSES |= {f"{ar}{name}": f"arc{name}" for ar in ("a", "ar") for name in ("sinh", "cosh", "tanh")}
_INVERTIBLE = frozenset("sin cos tan cot sec csc sinh cosh tanh coth sech csch".split())
_DECORATIONS = frozenset("vec hat bar overline overrightarrow tilde widehat dot ddot widetilde boldsymbol pmb".split())
_APPLICABLE = frozenset("fghFGHPQ")


def _decorated(name: str, inside: Node) -> Node:
    """A bar over a complex number (one with i, z or w in it) is its conjugate; else a decoration is a name."""
    if name in ("overline", "bar") and is_expression(inside):
        names = symbols(inside)
        if "const:i" in kinds(inside) or (names and all(map(is_complex, names))):
            return Node("func", ("conj", inside))
    return Node("app", (name, inside))


class Atoms(Brackets):
    """The primaries of `parser.Parser`."""

    def primary(self) -> Node:
        token = self.take()
        if token.kind == "num":
            return self.number(token)
        if token.kind == "name":
            return self.name(token)
        if token.kind == "letter_text":
            return sym(token.value)
        if token.kind == "text":
            return self.text(token)
        if token.kind == "cmd":
            return self.command(token)
        if token.value in OPENERS:
            return self.bracket(token.value)
        if token.value == "{":
            return self.brace_group()
        if token.value == "]":
            return self.french_interval()
        if token.value in ("|", "\\|"):
            return self.absolute(token.value)
        raise ParseError(f"unexpected {token.value!r}")

    def number(self, token: Token) -> Node:
        value = literal(token.value)
        if self.at("overline", "bar", "dot"):
            mark = self.take().value
            return self.repeating(token.value, mark)
        if self.at("ldots", "dots", "cdots") and "." in token.value:
            self.take()
            return ellipsis_decimal(token.value)
        return value

    def repeating(self, head: str, mark: str) -> Node:
        """0.1\\overline{6}: the digits under the bar repeat for ever."""
        self.expect("{")
        digits = self.raw("}")
        if "." not in head:
            head, dot, rest = head, ".", digits
            if not digits.startswith("."):
                raise ParseError("a bar that is not over decimals")
            digits = rest[1:]
            head += dot
        if not digits.isdigit() or len(digits) > 100 or mark == "dot":
            raise ParseError("a repeating part that is not digits")
        fixed = len(head.split(".")[1])
        base = Fraction(head + "0")
        return num(base + Fraction(int(digits), (10 ** len(digits) - 1) * 10**fixed))

    def name(self, token: Token) -> Node:
        if token.value in _APPLICABLE and self.at("(") and not self.tokens[self.i].spaced:
            self.take()
            inside = self.items(")")
            self.expect(")")
            return Node("app", (token.value, inside))
        if token.value in ("i", "e"):
            return Node("const", (token.value,))
        return sym(token.value)

    def text(self, token: Token) -> Node:
        label = token.value.strip()
        if label.endswith((":", "=")) or label.lower().rstrip(" .:") in ("answer", "the answer is", "answer is"):
            return self.factor() if not self.at("-") else self.signed_factor()
        return Node("text", (label,))

    def command(self, token: Token) -> Node:
        name = token.value
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name == "frac":
            return self.fraction()
        if name == "sqrt":
            return self.radical()
        if name in ("binom", "dbinom", "tbinom"):
            return Node("binom", (self.argument(), self.argument()))
        if name in FUNCTIONS or name in ("operatorname",):
            return self.function(name)
        if name in _BIG:
            return self.big_operator(name)
        if name in ("lfloor", "lceil"):
            inside = self.sum()
            self.expect("r" + name[1:])
            return Node("floor" if name == "lfloor" else "ceil", (inside,))
        if name in ("lvert", "vert", "lVert"):
            return self.absolute("r" + name[1:] if name != "vert" else "vert")
        if name == "langle":
            return self.bracket("langle")
        if name in ("lbrace",):
            return self.bracket("\\{")
        if name == "begin":
            return self.environment()
        if name in ("mathbb", "mathbf", "Bbb"):
            return self.number_set()
        if name in ("ldots", "dots", "cdots"):
            return Node("ellipsis", ())
        if name in ("color", "textcolor"):
            self.expect("{")
            self.raw("}")
            return self.argument()
        if name in _DECORATIONS:
            return _decorated(name, self.argument())
        if name in ("Re", "Im"):
            return self.function(name)
        if name in ("angle", "triangle", "measuredangle"):
            return Node("app", (name, self.term()))
        if name in ("mathrm", "mathit", "mathcal", "mathsf", "mbox", "underline", "text"):
            return self.argument()
        if name in RELATIONS or name in SET_OPS or name in ("end", "right", "left", "over", "pm"):
            raise ParseError(f"unexpected \\{name}")
        return sym("\\" + name)

    def postfix_free(self) -> Node:
        self.deeper()
        node = self.primary()
        self.depth -= 1
        return node

    def argument(self) -> Node:
        """What a command takes: a brace group, or one digit, letter or command."""
        if self.accept("{"):
            inside = self.sum()
            self.expect("}")
            return inside
        token = self.take()
        if token.kind == "num" and len(token.value) > 1:
            digit, rest = token.value[0], tokenize(token.value[1:])[:-1]
            if not digit.isdigit():
                raise ParseError("malformed")
            self.i -= 1
            self.tokens = [*self.tokens[: self.i], *rest, *self.tokens[self.i + 1 :]]
            return num(int(digit))
        self.i -= 1
        return self.postfix_free()

    def fraction(self) -> Node:
        start = self.i
        if self.accept("{"):
            words = self.raw("}")
            if words in ("d", "dy", "partial", "df", "\\partial") and self.at("{"):
                self.take()
                below = self.raw("}")
                if below.startswith(("d", "partial")):
                    return Node("op", ("derivative", sym(below), self.term()))
            self.i = start
        return Node("div", (self.argument(), self.argument()))

    def radical(self) -> Node:
        if self.accept("["):
            index = self.sum()
            self.expect("]")
        else:
            index = num(2)
        return Node("root", (self.argument(), index))

    def function(self, name: str) -> Node:
        name = _INVERSES.get(name, name)
        base = power = None
        while self.at("_", "^"):
            mark = self.take().value
            value = self.argument()
            if mark == "_":
                base = value
            else:
                power = value
        if name in ("max", "min", "gcd", "lcm"):
            self.expect("(") if self.at("(") else self.expect("\\{")
            inside = self.items(")")
            if not self.accept(")", "\\}"):
                raise ParseError("unclosed arguments")
            args = inside.args[0] if inside.kind == "list" else (inside,)
            return Node("op" if name in _TASK_FUNCTIONS else "func", (name, *args))
        if self.at("(", "{"):
            closer = ")" if self.take().value == "(" else "}"
            argument = self.sum()
            self.expect(closer)
        else:
            argument = self.bare_argument()
        if name in _TASK_FUNCTIONS:
            return Node("op", (name, argument))
        if name in ("floor", "ceil", "abs"):
            return Node(name, (argument,))
        if name == "cbrt":
            return Node("root", (argument, num(3)))
        node = Node("func", (name, argument) if base is None else (name, argument, base))
        if power is None:
            return node
        if power.kind == "num" and power.args[0] == -1 and name in _INVERTIBLE:
            return Node("func", ("arc" + name, argument))
        return Node("pow", (node, power))

    def bare_argument(self) -> Node:
        """\\sin 2x \\cos y: the argument is the product up to the next function, sign or bracket."""
        sign = -1 if self.accept("-") else 1
        node = self.factor()
        while (
            self.starts_factor()
            and not self.at("(", "[", "\\{", "|")
            and not (self.tokens[self.i].kind == "cmd" and self.tokens[self.i].value in FUNCTIONS - {"sqrt"})
        ):
            node = adjacent(node, self.factor(), self.tokens[self.i - 1])
        while self.at("/") and node.kind != "div":
            self.take()
            node = Node("div", (node, self.factor()))
        return neg(node) if sign < 0 else node

    def big_operator(self, name: str) -> Node:
        bounds = []
        while self.at("_", "^"):
            mark = self.take().value
            if self.accept("{"):
                bounds.append(sym(mark + self.raw("}")))
            else:
                bounds.append(sym(mark + self.take().value))
        return Node("op", (name, *bounds, self.term()))
