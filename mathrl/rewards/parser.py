r"""Tokens to a tree (`syntax.Node`): recursive descent over a small LaTeX and plain-text grammar.

    answer   := clause ((, | ; | and | or) clause)*
    clause   := setexpr (relation setexpr)*
    setexpr  := sum ((cup | cap | setminus | :) sum)*
    sum      := [+ - pm] term ((+ - pm) term)*
    term     := factor ((* | / | adjacency) factor)*
    factor   := primary postfix*

Nothing is evaluated here. What the grammar does not know raises `ParseError`.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from mathrl.rewards.lexer import FUNCTIONS, ParseError, Token, tokenize
from mathrl.rewards.syntax import EMPTY_SET, INFINITY, Node, neg, num, sym
from mathrl.rewards.units import DEGREE_WORDS, PERCENT_WORDS, SINGLE_LETTER_UNITS, UNIT_WORDS

MAX_DEPTH = 40
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=",
    "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=", "lt": "<", "gt": ">", "ne": "!=", "neq": "!=",
    "\\ne": "!=", "approx": "~", "simeq": "~", "cong": "~", "sim": "~", "equiv": "==", "in": "in", "coloneqq": "=",
    "to": "->", "rightarrow": "->", "mapsto": "->", "implies": "=>", "Rightarrow": "=>", "=>": "=>",
    "notin": "notin", "subset": "sub", "subseteq": "sub", "mid": "mid", "perp": "perp", "parallel": "par",
}  # fmt: skip
_SET_OPS = {"cup": "union", "cap": "inter", "setminus": "minus", "backslash": "minus", "bigcup": "union"}
_CONSTANTS = {"pi": Node("const", ("pi",)), "infty": INFINITY, "emptyset": EMPTY_SET, "varnothing": EMPTY_SET}
_BIG = frozenset(["sum", "prod", "int", "iint", "iiint", "oint", "lim", "bigcap", "limsup", "liminf"])
_TASK_FUNCTIONS = frozenset(["gcd", "lcm", "det"])
_INVERSES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log10"}
_DECORATIONS = frozenset(
    [
        "vec",
        "hat",
        "bar",
        "overline",
        "underline",
        "overrightarrow",
        "tilde",
        "widehat",
        "dot",
        "ddot",
        "widetilde",
        "boldsymbol",
        "pmb",
    ]
)
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"])
_OPENERS = {"(": ")", "[": "]", "langle": "rangle", "\\{": "\\}"}
_APPLICABLE = frozenset("fghFGHPQ")
_STOP_OPS = frozenset(
    [")", "]", "}", "\\}", ",", ";", "&", "\\\\", "=", "<", ">", "<=", ">=", "\\ne", ":", "=>"]
)


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.i = 0
        self.depth = 0
        self.bars = 0
        self.french = False

    # -- tokens ---------------------------------------------------------------------------------------------

    def at(self, *values: str) -> bool:
        token = self.tokens[self.i]
        return token.kind in ("op", "cmd") and token.value in values

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

    # -- lists and relations --------------------------------------------------------------------------------

    def answer(self) -> Node:
        node = self.items("")
        if self.tokens[self.i].kind != "end":
            raise ParseError(f"unexpected {self.tokens[self.i].value!r}")
        return node

    def items(self, closer: str) -> Node:
        """Clauses up to `closer`; one clause is returned as itself, several as a list."""
        found: list[Node] = []
        semicolons: list[int] = []
        while True:
            while self.joiner():
                pass
            if self.tokens[self.i].kind == "end" or (closer and self.at(closer, "]", ")")):
                break
            found.append(self.clause())
            if not self.joiner(semicolons, len(found)):
                break
        if not found:
            raise ParseError("empty")
        if len(found) == 1 and not semicolons:
            return found[0]
        if semicolons and semicolons[-1] < len(found) and len(semicolons) + 1 < len(found):
            return _grouped(found, semicolons)
        return found[0] if len(found) == 1 else Node("list", (tuple(found),))

    def joiner(self, semicolons: list[int] | None = None, count: int = 0) -> bool:
        token = self.tokens[self.i]
        if token.kind == "op" and token.value in (",", ";"):
            self.i += 1
            if token.value == ";" and semicolons is not None:
                semicolons.append(count)
            return True
        if token.kind == "text" and token.value.strip(" ,;.").lower() in (
            "and",
            "or",
            "及",
            "和",
            "或",
            "与",
        ):
            self.i += 1
            if semicolons is not None and self.pending_equation():
                semicolons.append(count)
            return True
        if token.kind == "cmd" and token.value in ("land", "lor", "wedge", "vee"):
            self.i += 1
            return True
        return False

    def pending_equation(self) -> bool:
        """After "and": whether an assignment follows, as in "p = 5, q = 2 and p = 7, q = 2"."""
        return (
            self.tokens[self.i].kind == "name"
            and self.tokens[min(self.i + 1, len(self.tokens) - 1)].value == "="
        )

    def clause(self) -> Node:
        operators: list[str] = []
        members = [self.set_expression()]
        while True:
            token = self.tokens[self.i]
            name = RELATIONS.get(token.value) if token.kind in ("op", "cmd") else None
            if name is None or (name == "mid" and self.bars < 0):
                break
            self.i += 1
            if name == "=" and self.at("approx"):
                self.i += 1
                name = "~"
            operators.append(name)
            if self.tokens[self.i].kind == "end":
                operators.pop()
                break
            members.append(self.set_expression())
        return members[0] if not operators else Node("rel", (tuple(operators), tuple(members)))

    def set_expression(self) -> Node:
        left = self.sum()
        while True:
            token = self.tokens[self.i]
            if token.kind == "cmd" and token.value in _SET_OPS:
                self.i += 1
                left = Node(_SET_OPS[token.value], (left, self.sum()))
            elif self.accept(":"):
                if self.at("="):
                    continue
                right = self.sum()
                left = Node("ratio", ((*left.args[0], right) if left.kind == "ratio" else (left, right),))
            else:
                return left

    # -- arithmetic -----------------------------------------------------------------------------------------

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("nested too deeply")
        terms: list[Node] = []
        first = True
        while True:
            if self.accept("+"):
                terms.append(self.term())
            elif self.accept("-"):
                terms.append(neg(self.term()))
            elif self.at("pm", "mp"):
                sign = self.take().value
                terms.append(Node("pm", (sign, self.term())))
            elif first:
                terms.append(self.term())
            else:
                break
            first = False
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Node("add", (tuple(terms),))

    def term(self) -> Node:
        node = self.signed_factor()
        while True:
            if self.accept("*", "cdot", "times", "ast"):
                node = _product(node, self.signed_factor())
            elif self.accept("/", "div"):
                node = Node("div", (node, self.signed_factor()))
            elif self.at("bmod", "mod", "pmod"):
                self.i += 1
                node = Node("op", ("mod", node, self.signed_factor()))
            elif self.starts_factor():
                token = self.tokens[self.i]
                right = self.factor()
                node = _adjacent(node, right, token)
            elif self.unit_follows():
                node = self.with_unit(node)
            else:
                return node

    def signed_factor(self) -> Node:
        sign = 1
        while self.at("+", "-"):
            if self.take().value == "-":
                sign = -sign
        node = self.factor()
        return node if sign == 1 else neg(node)

    def starts_factor(self) -> bool:
        token = self.tokens[self.i]
        if token.kind in ("num", "name", "letter_text"):
            return True
        if token.kind == "op":
            if token.value == "[" and self.french:
                return False
            return token.value in ("(", "[", "{", "\\{") or (token.value == "|" and self.bars == 0)
        if token.kind == "cmd":
            return not (
                token.value in RELATIONS
                or token.value in _SET_OPS
                or token.value
                in ("cdot", "times", "div", "pm", "mp", "rangle", "rfloor", "rceil", "rvert", "rVert")
                or token.value in ("end", "land", "lor", "wedge", "vee", "bmod", "mod", "pmod", "ast", "text")
            )
        return False

    def unit_follows(self) -> bool:
        return self.tokens[self.i].kind == "text" and self.tokens[self.i].value.strip(" ,").lower() not in (
            "and",
            "or",
        )

    def with_unit(self, node: Node) -> Node:
        """Trailing words: a percent or degree sign in words, a unit, or an annotation."""
        words: list[str] = []
        while self.unit_follows() or (
            words
            and (
                self.at("/", "^", "cdot")
                or (self.tokens[self.i].kind == "name" and self.tokens[self.i].spaced)
            )
        ):
            token = self.take()
            words.append(token.value)
            if token.value == "^":
                self.accept("{")
                words.append(self.take().value)
                self.accept("}")
        text = " ".join(words).replace(" ^ ", "^")
        head = text.strip().lower().rstrip(".")
        if head in PERCENT_WORDS:
            return Node("percent", (node,))
        if head in DEGREE_WORDS:
            return Node("degree", (node,))
        return Node("unit", (node, text))

    def factor(self) -> Node:
        return self.postfixes(self.primary())

    def postfixes(self, node: Node) -> Node:
        while True:
            if self.accept("!"):
                node = Node("fact", (node,))
            elif self.accept("%"):
                node = Node("percent", (node,))
            elif self.accept("'") or self.accept("prime"):
                node = sym(f"{node.args[0]}'") if node.kind == "sym" else Node("op", ("prime", node))
            elif self.at("^"):
                node = self.power(node)
            elif self.at("_"):
                node = self.subscript(node)
            elif self.accept("circ"):
                node = Node("degree", (node,))
            else:
                return node

    def power(self, node: Node) -> Node:
        self.take()
        if self.accept("{"):
            if self.accept("circ"):
                self.expect("}")
                return Node("degree", (node,))
            if self.at("prime"):
                while self.accept("prime", "'"):
                    pass
                self.expect("}")
                return sym(f"{node.args[0]}'")
            exponent = self.sum()
            self.expect("}")
        elif self.accept("circ"):
            return Node("degree", (node,))
        elif self.at("(", "[", "|"):
            exponent = self.postfix_free()
        else:
            sign = -1 if self.accept("-") else 1
            exponent = self.exponent_atom()
            exponent = neg(exponent) if sign < 0 else exponent
        if node == Node("const", ("e",)):
            return Node("func", ("exp", exponent))
        return Node("pow", (node, exponent))

    def exponent_atom(self) -> Node:
        base = self.postfix_free()
        return self.power(base) if self.at("^") else base

    def postfix_free(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("nested too deeply")
        node = self.primary()
        self.depth -= 1
        return node

    def subscript(self, node: Node) -> Node:
        self.take()
        if self.accept("{"):
            text = self.raw("}")
        else:
            text = self.take().value
            while (
                text.isdigit() and self.tokens[self.i].kind == "num" and not self.tokens[self.i].spaced
            ):  # pragma: no cover - digits come as one token
                text += self.take().value
        if node.kind == "num" and text.isdigit():
            return _in_base(node, int(text))
        if node.kind == "mul" or node.kind == "num":
            raise ParseError("a subscript on a number")
        if node.kind == "const":
            node = sym(node.args[0])
        return sym(f"{node.args[0] if node.kind == 'sym' else node}_{text}")

    def raw(self, closer: str) -> str:
        """The text of the tokens up to `closer`, spacing dropped."""
        out, depth = [], 0
        while True:
            token = self.take()
            if token.kind == "end":
                raise ParseError("unbalanced braces")
            if token.value == "{":
                depth += 1
            elif token.value == closer and depth == 0:
                return "".join(out)
            elif token.value == "}":
                depth -= 1
            out.append(token.value)

    # -- primaries ------------------------------------------------------------------------------------------

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
        if token.value in _OPENERS:
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
            return _ellipsis_decimal(token.value)
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
        if label.endswith((":", "=")) or label.lower().rstrip(" .:") in (
            "answer",
            "the answer is",
            "answer is",
        ):
            return self.factor() if not self.at("-") else self.signed_factor()
        return Node("text", (label,))

    def command(self, token: Token) -> Node:
        name = token.value
        if name in _CONSTANTS:
            return _CONSTANTS[name]
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
        if name in _DECORATIONS:
            return Node("app", (name, self.argument()))
        if name in ("angle", "triangle", "measuredangle"):
            return Node("app", (name, self.term()))
        if name in ("mathrm", "mathit", "mathcal", "mathsf", "mbox", "text", "phantom", "color", "textcolor"):
            return self.argument()
        if name in RELATIONS or name in _SET_OPS or name in ("end", "right", "left", "over", "pm"):
            raise ParseError(f"unexpected \\{name}")
        return sym("\\" + name)

    def argument(self) -> Node:
        """What a command takes: a brace group, or one digit, letter or command."""
        if self.accept("{"):
            inside = self.sum()
            self.expect("}")
            return inside
        token = self.take()
        if token.kind == "num" and len(token.value) > 1:
            self.i -= 1
            self.tokens = [*self.tokens]
            self.tokens[self.i] = Token("num", token.value[1:], False)
            return num(int(token.value[0])) if token.value[0].isdigit() else self.fail()
        self.i -= 1
        return self.postfix_free()

    def fail(self) -> Node:
        raise ParseError("malformed")

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
            argument = self.postfixes_of_argument()
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
        if power.kind == "num" and power.args[0] == -1 and name in ("sin", "cos", "tan", "cot", "sec", "csc"):
            return Node("func", ("arc" + name, argument))
        return Node("pow", (node, power))

    def postfixes_of_argument(self) -> Node:
        """\\sin(x)^2 squares the argument's bracket only where a bare power follows; f(x)! likewise."""
        closer = ")" if self.take().value == "(" else "}"
        inside = self.sum()
        self.expect(closer)
        return inside

    def bare_argument(self) -> Node:
        """\\sin 2x \\cos y: the argument is the product up to the next function, sign or bracket."""
        sign = -1 if self.accept("-") else 1
        node = self.factor()
        while (
            self.starts_factor()
            and not self.at("(", "[", "\\{", "|")
            and not (self.tokens[self.i].kind == "cmd" and self.tokens[self.i].value in FUNCTIONS - {"sqrt"})
        ):
            node = _adjacent(node, self.factor(), self.tokens[self.i - 1])
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

    def absolute(self, closer: str) -> Node:
        self.bars += 1
        inside = self.sum()
        self.expect(closer)
        self.bars -= 1
        return Node("abs", (inside,))

    def number_set(self) -> Node:
        if self.accept("{"):
            name = self.raw("}")
        else:
            name = self.take().value
        if name == "R" and not self.at("^"):
            return Node("reals", ())
        return sym(name if len(name) == 1 and name.islower() else "set:" + name)

    # -- brackets -------------------------------------------------------------------------------------------

    def bracket(self, opener: str) -> Node:
        """( … ), [ … ], \\{ … \\}, \\langle … \\rangle: a group, tuple, interval, list or set."""
        self.depth += 1
        bars, self.bars = self.bars, 0
        closer = _OPENERS[opener]
        if self.accept(closer, "rbrace" if opener == "\\{" else closer):
            self.depth -= 1
            return EMPTY_SET if opener == "\\{" else Node("tuple", (opener, closer, ()))
        if opener == "\\{":
            self.bars = -1
        inside = self.items(closer)
        if opener == "\\{" and self.accept("|", "mid", ":"):
            inside = self.items(closer)
            self.expect(closer)
            self.bars, self.depth = bars, self.depth - 1
            return inside
        self.bars, self.depth = bars, self.depth - 1
        token = self.take()
        found = token.value if token.value != "rbrace" else "\\}"
        parts = inside.args[0] if inside.kind == "list" else (inside,)
        if opener == "\\{":
            if found != closer:
                raise ParseError("unbalanced brackets")
            return Node("set", (parts,))
        if opener == "langle":
            if found != closer:
                raise ParseError("unbalanced brackets")
            return Node("tuple", ("(", ")", parts))
        if found not in (")", "]") and not (opener == "[" and found == "["):
            raise ParseError("unbalanced brackets")
        if found == "[":
            found = ")"
        if len(parts) == 1:
            if opener == "(" and found == ")":
                return parts[0]
            if opener == "[" and found == "]":
                return Node("tuple", ("[", "]", parts)) if parts[0].kind == "tuple" else parts[0]
            raise ParseError("unbalanced brackets")
        return Node("tuple", (opener, found, parts))

    def french_interval(self) -> Node:
        """]1, 2[ and ]1, 2]."""
        self.french = True
        inside = self.items("[")
        self.french = False
        closer = self.take().value
        if closer not in ("[", "]", ")") or inside.kind != "list" or len(inside.args[0]) != 2:
            raise ParseError("unbalanced brackets")
        return Node("tuple", ("(", "]" if closer == "]" else ")", inside.args[0]))

    def brace_group(self) -> Node:
        """A TeX group; with commas in it, a set whose braces lost their backslash."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("nested too deeply")
        inside = self.items("}")
        self.expect("}")
        self.depth -= 1
        return Node("set", (inside.args[0],)) if inside.kind == "list" else inside

    def environment(self) -> Node:
        self.expect("{")
        name = self.raw("}")
        if name == "array" and self.accept("{"):
            self.raw("}")
        if name in ("vmatrix", "Vmatrix"):
            self.rows(name)
            return Node("op", ("det", sym(str(self.i))))
        if name == "cases":
            rows = self.rows(name)
            return Node("op", ("cases", *(cell for row in rows for cell in row)))
        if name not in _MATRICES:
            raise ParseError(f"environment {name}")
        return Node("matrix", (self.rows(name),))

    def rows(self, name: str) -> tuple[tuple[Node, ...], ...]:
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while True:
            if self.accept("\\\\"):
                if row:
                    rows.append(tuple(row))
                row = []
            elif self.accept("end"):
                self.expect("{")
                if self.raw("}") != name:
                    raise ParseError("environments cross")
                if row:
                    rows.append(tuple(row))
                if not rows:
                    raise ParseError("an empty matrix")
                return tuple(rows)
            elif self.accept("&", "hline") or (name == "cases" and self.accept(",")):
                continue
            else:
                row.append(self.clause())


def _product(left: Node, right: Node) -> Node:
    factors = left.args[0] if left.kind == "mul" else (left,)
    return Node("mul", ((*factors, right),))


def _adjacent(left: Node, right: Node, token: Token) -> Node:
    """Two factors side by side: a mixed number, a unit letter, or a product."""
    if (
        _is_integer(left)
        and right.kind == "div"
        and _is_integer(right.args[0])
        and _is_integer(right.args[1])
    ):
        below = right.args[1].args[0]
        if below == 0:
            raise ParseError("a denominator of zero")
        part = right.args[0].args[0] / below
        whole = left.args[0]
        if 0 < part < 1:
            return num(whole + part if whole >= 0 else whole - part)
    if token.kind == "num":
        if not _is_integer(left) or not token.spaced:
            raise ParseError("two numbers side by side")
        raise ParseError("two numbers side by side")
    return _product(left, right)


def _is_integer(node: Node) -> bool:
    return node.kind == "num" and bool(node.args[0].denominator == 1) and node.args[1] == 0


def literal(text: str) -> Node:
    """A number token; exponents beyond any answer's size are refused."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > 2000 or len(exponent) > 6 or abs(int(exponent or 0)) > 2000:
        raise ParseError("a number too large")
    places = len(mantissa.partition(".")[2])
    digits = len(mantissa.replace(".", "").lstrip("0"))
    value = Fraction(("0" + mantissa) if mantissa.startswith(".") else mantissa)
    if exponent:
        return num(value * Fraction(10) ** int(exponent))
    return num(value, places, digits)


def _ellipsis_decimal(text: str) -> Node:
    """0.333…: the shortest block that repeats to the end, at least twice, and for three digits or more."""
    whole, _, digits = text.partition(".")
    for size in range(1, len(digits) // 2 + 1):
        block = digits[-size:]
        count = 1
        while digits[: len(digits) - size * count].endswith(block):
            count += 1
        if count >= 2 and count * size >= 3:
            fixed = digits[: len(digits) - size * count]
            base = Fraction(f"{whole}.{fixed}0")
            return num(base + Fraction(int(block), (10**size - 1) * 10 ** len(fixed)))
    raise ParseError("a decimal that goes on")


def _in_base(node: Node, base: int) -> Node:
    value, places, _ = node.args
    digits = str(value.numerator)
    if places or not 2 <= base <= 36 or any(int(d) >= base for d in digits.lstrip("-")):
        raise ParseError("not a number in that base")
    return Node("base", (digits, base))


def _grouped(found: list[Node], cuts: list[int]) -> Node:
    """p=5,q=2; p=7,q=2: the semicolons bind more loosely than the commas."""
    groups, start = [], 0
    for cut in [*cuts, len(found)]:
        part = tuple(found[start:cut])
        if part:
            groups.append(part[0] if len(part) == 1 else Node("list", (part,)))
        start = cut
    return Node("list", (tuple(groups),))


_MIXED_UNITS = UNIT_WORDS | SINGLE_LETTER_UNITS


@lru_cache(maxsize=16384)
def parse(text: str) -> Node | None:
    r"""The tree of a canonical answer, or None where the grammar does not reach.

    >>> parse("1/2") == parse("\\frac{1}{2}")
    True
    """
    if len(text) > 4000:
        return None
    try:
        return _Parser(_mixed(tokenize(text))).answer()
    except (ParseError, RecursionError, ZeroDivisionError):
        return None


def _mixed(tokens: list[Token]) -> list[Token]:
    """1 1/2 in plain text: number, space, number, slash, number becomes number, (number / number)."""
    for i in range(len(tokens) - 4, -1, -1):
        whole, above, slash, below = tokens[i : i + 4]
        if (
            whole.kind == above.kind == below.kind == "num"
            and slash.value == "/"
            and above.spaced
            and "." not in whole.value + above.value + below.value
        ):
            group = [Token("cmd", "frac", True)]
            for token in (above, below):
                group += [Token("op", "{", False), token._replace(spaced=False), Token("op", "}", False)]
            tokens = [*tokens[: i + 1], *group, *tokens[i + 4 :]]
    return tokens
