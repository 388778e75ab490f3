"""Tokens to a tree (`syntax.Node`): recursive descent over a small LaTeX and plain-text grammar."""

from __future__ import annotations

from functools import lru_cache

from mathrl.grading.lexer import FUNCTIONS, RELATIONS, SET_OPS, Cursor, tokenize
from mathrl.grading.syntax import EMPTY_SET, INFINITY, Node, ParseError, decorate, juxtapose, neg, num, product, sym

_CONJUNCTIONS = {"or": {"or", "lor", "vee", "或"}, "and": {"and", "land", "wedge", "且"}}
_CONSTANTS = {"pi": Node("const", ("pi",)), "infty": INFINITY, "emptyset": EMPTY_SET, "varnothing": EMPTY_SET}
_OPENERS = {"(": ")", "[": "]", "langle": "rangle", "\\{": "\\}"}
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"])
_BIG = frozenset(["sum", "prod", "int", "iint", "iiint", "oint", "lim", "bigcap", "limsup", "liminf"])
_TASK_FUNCTIONS = frozenset(["gcd", "lcm", "det"])
_INVERSES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log10"}
_INVERSES |= {f"{ar}{name}": f"arc{name}" for ar in ("a", "ar") for name in ("sinh", "cosh", "tanh")}
_INVERTIBLE = frozenset("sin cos tan cot sec csc sinh cosh tanh coth sech csch".split())
_DECORATIONS = frozenset("vec hat bar overline overrightarrow tilde widehat dot ddot widetilde boldsymbol pmb".split())
_TRANSPARENT = frozenset("color textcolor mathrm mathit mathcal mathsf mbox underline text".split())
_SUFFIXES = {"%": "percent", "circ": "degree"}
_POSTFIXES = frozenset(["^", "_", "!", "'", "prime", *_SUFFIXES])
_APPLICABLE = frozenset("fghFGHPQ")


class Parser(Cursor):
    """The grammar, from loose to tight; what it does not know raises `ParseError`.

    items    := clause ((, | ; | and | or) clause)*
    clause   := setexpr (relation setexpr)*
    setexpr  := sum ((cup | cap | setminus | :) sum)*
    sum      := [+ - pm] term ((+ - pm) term)*
    term     := factor ((* | / | adjacency) factor)*
    factor   := (number | name | words | command | bracket) postfix*
    """

    def items(self, closer: str) -> Node:
        """Clauses up to `closer`; one clause is returned as itself, several as a list."""
        clauses: list[Node] = []
        semicolons: list[int] = []
        start = self.i
        while True:
            while self.accept_joiner():
                pass
            if self.tokens[self.i].kind == "end" or (closer and self.at(closer, "]", ")")):
                break
            clauses.append(self.clause())
            if not self.accept_joiner(semicolons, len(clauses)):
                break
        if not clauses:
            raise ParseError("empty")
        if len(clauses) == 1:
            return clauses[0]
        if semicolons and semicolons[-1] < len(clauses) and len(semicolons) + 1 < len(clauses):
            return _group(clauses, semicolons)
        if all(clause.kind == "rel" for clause in clauses):
            words = {token.value for token in self.tokens[start : self.i]}
            for joiner, names in _CONJUNCTIONS.items():
                if words & names:
                    return Node("list", (tuple(clauses), joiner))
        return Node("list", (tuple(clauses),))

    def clause(self) -> Node:
        operators: list[str] = []
        self.accept("=", "approx", "sim", "simeq")  # "= 42" and "\\approx 42" claim 42
        label = self.label()
        if label is not None:
            return Node("rel", (("=",), (label, self.set_expression())))
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
            if token.kind == "cmd" and token.value in SET_OPS:
                self.i += 1
                left = Node(SET_OPS[token.value], (left, self.sum()))
            elif self.bars >= 0 and self.accept(":"):
                if self.at("="):
                    continue
                right = self.sum()
                left = Node("ratio", ((*left.args[0], right) if left.kind == "ratio" else (left, right),))
            else:
                return left

    def sum(self) -> Node:
        self.nest()
        terms: list[Node] = []
        while True:
            sign = self.peek()
            if sign in ("+", "-", "pm", "mp"):
                self.i += 1
            elif terms:
                break
            term = self.term()
            if sign == "-":
                term = neg(term)
            terms.append(Node("pm", (sign, term)) if sign in ("pm", "mp") else term)
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Node("add", (tuple(terms),))

    def term(self) -> Node:
        node = self.signed_factor()
        while True:
            operator = self.peek()
            if operator in ("*", "cdot", "times", "ast"):
                self.i += 1
                node = product(node, self.signed_factor())
            elif operator in ("/", "div"):
                self.i += 1
                node = Node("div", (node, self.signed_factor()))
            elif operator in ("bmod", "mod", "pmod"):
                self.i += 1
                node = Node("op", ("mod", node, self.signed_factor()))
            elif node.kind == "degree" and (refined := self.minutes(node)) is not None:
                node = refined
            elif self.letter_unit(node) or self.unit_follows():
                node = self.with_unit(node)
            elif self.starts_factor():
                digits = self.tokens[self.i].kind == "num"
                node = juxtapose(node, self.factor(), digits)
            else:
                return node

    def signed_factor(self) -> Node:
        sign = 1
        while self.at("+", "-"):
            if self.take().value == "-":
                sign = -sign
        node = self.factor()
        return node if sign == 1 else neg(node)

    def factor(self) -> Node:
        return self.postfixes(self.primary())

    def postfixes(self, node: Node) -> Node:
        while (mark := self.peek()) in _POSTFIXES:
            if mark == "^":
                node = self.power(node)
            elif mark == "_":
                node = self.subscript(node)
            else:
                self.i += 1
                if mark == "!":
                    node = Node("fact2" if self.accept("!") else "fact", (node,))
                elif mark in _SUFFIXES:
                    node = Node(_SUFFIXES[mark], (node,))
                else:
                    node = sym(f"{node.args[0]}'") if node.kind == "sym" else Node("op", ("prime", node))
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
            base = self.postfix_free()
            exponent = self.power(base) if self.at("^") else base
            exponent = neg(exponent) if sign < 0 else exponent
        if node == Node("const", ("e",)):
            return Node("func", ("exp", exponent))
        return Node("pow", (node, exponent))

    def primary(self) -> Node:
        token = self.take()
        if token.kind == "num":
            return self.number(token)
        if token.kind == "name":
            return self.name(token.value)
        if token.kind == "letter_text":
            return sym(token.value)
        if token.kind == "text":
            return self.text(token.value.strip())
        if token.kind == "cmd":
            return self.command(token.value)
        if token.value in _OPENERS:
            return self.bracket(token.value)
        if token.value == "{":
            return self.brace_group()
        if token.value == "]":
            return self.french_interval()
        if token.value in ("|", "\\|"):
            return self.absolute(token.value)
        raise ParseError(f"unexpected {token.value!r}")

    def name(self, name: str) -> Node:
        if name in _APPLICABLE and self.at("(") and not self.tokens[self.i].spaced:
            self.take()
            inside = self.items(")")
            self.expect(")")
            return Node("app", (name, inside))
        return Node("const", (name,)) if name in ("i", "e") else sym(name)

    def text(self, label: str) -> Node:
        if label.endswith((":", "=")) or label.lower().rstrip(" .:") in ("answer", "the answer is", "answer is"):
            return self.factor() if not self.at("-") else self.signed_factor()
        return Node("text", (label,))

    def command(self, name: str) -> Node:
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name == "frac":
            return self.fraction()
        if name == "sqrt":
            return self.radical()
        if name in ("binom", "dbinom", "tbinom"):
            return Node("binom", (self.argument(), self.argument()))
        if name in FUNCTIONS or name in ("operatorname", "Re", "Im"):
            return self.function(name)
        if name in _BIG:
            return self.big_operator(name)
        if name in ("lfloor", "lceil"):
            inside = self.sum()
            self.expect("r" + name[1:])
            return Node("floor" if name == "lfloor" else "ceil", (inside,))
        if name in ("lvert", "vert", "lVert"):
            return self.absolute("r" + name[1:] if name != "vert" else "vert")
        if name in ("langle", "lbrace"):
            return self.bracket(name if name == "langle" else "\\{")
        if name == "begin":
            return self.environment()
        if name in ("mathbb", "mathbf", "Bbb"):
            return self.number_set()
        if name in ("ldots", "dots", "cdots"):
            return Node("ellipsis", ())
        if name in _DECORATIONS:
            return decorate(name, self.argument())
        if name in ("angle", "triangle", "measuredangle"):
            return Node("app", (name, self.term()))
        if name in ("color", "textcolor"):
            self.expect("{")
            self.raw("}")
        if name in _TRANSPARENT:
            return self.argument()
        if name in RELATIONS or name in SET_OPS or name in ("end", "right", "left", "over", "pm"):
            raise ParseError(f"unexpected \\{name}")
        return sym("\\" + name)

    def postfix_free(self) -> Node:
        self.nest()
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
            if self.raw("}") in ("d", "dy", "partial", "df", "\\partial") and self.at("{"):
                self.take()
                below = self.raw("}")
                if below.startswith(("d", "partial")):
                    return Node("op", ("derivative", sym(below), self.term()))
            self.i = start
        return Node("div", (self.argument(), self.argument()))

    def radical(self) -> Node:
        index = num(2)
        if self.accept("["):
            index = self.sum()
            self.expect("]")
        return Node("root", (self.argument(), index))

    def function(self, name: str) -> Node:
        name = _INVERSES.get(name, name)
        base = power = None
        while self.at("_", "^"):
            if self.take().value == "_":
                base = self.argument()
            else:
                power = self.argument()
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
            right = self.factor()
            node = juxtapose(node, right, self.tokens[self.i - 1].kind == "num")
        while self.at("/") and node.kind != "div":
            self.take()
            node = Node("div", (node, self.factor()))
        return neg(node) if sign < 0 else node

    def big_operator(self, name: str) -> Node:
        bounds = []
        while self.at("_", "^"):
            mark = self.take().value
            bounds.append(sym(mark + (self.raw("}") if self.accept("{") else self.take().value)))
        return Node("op", (name, *bounds, self.term()))

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
        ending = token.value if token.value != "rbrace" else "\\}"
        parts = inside.args[0] if inside.kind == "list" else (inside,)
        if opener in ("\\{", "langle"):
            if ending != closer:
                raise ParseError("unbalanced brackets")
            return Node("set", (parts,)) if opener == "\\{" else Node("tuple", ("(", ")", parts))
        if ending not in (")", "]") and not (opener == "[" and ending == "["):
            raise ParseError("unbalanced brackets")
        if ending == "[":
            ending = ")"
        if len(parts) > 1 or (opener == "[" and ending == "]" and parts[0].kind == "tuple"):
            return Node("tuple", (opener, ending, parts))
        if ending != closer:
            raise ParseError("unbalanced brackets")
        return parts[0]

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
        self.nest()
        previous = self.tokens[self.i - 2].value if self.i > 1 else ""
        inside = self.items("}")
        self.expect("}")
        self.depth -= 1
        if inside.kind == "list":
            return Node("set", (inside.args[0],))
        return Node("set", ((inside,),)) if previous in SET_OPS or self.at(*SET_OPS) else inside

    def environment(self) -> Node:
        self.expect("{")
        name = self.raw("}")
        if name == "array" and self.accept("{"):
            self.raw("}")
        if name in ("vmatrix", "Vmatrix"):
            self.rows(name)
            return Node("op", ("det", sym(str(self.i))))
        if name == "cases":
            cells = tuple(cell for row in self.rows(name) for cell in row)
            if all(cell.kind == "rel" for cell in cells):
                return cells[0] if len(cells) == 1 else Node("list", (cells,))
            return Node("op", ("cases", *cells))
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

    def absolute(self, closer: str) -> Node:
        self.bars += 1
        inside = self.sum()
        self.expect(closer)
        self.bars -= 1
        return Node("abs", (inside,))


def _group(clauses: list[Node], cuts: list[int]) -> Node:
    """p=5,q=2; p=7,q=2: the semicolons bind more loosely than the commas."""
    groups, start = [], 0
    for cut in [*cuts, len(clauses)]:
        part = tuple(clauses[start:cut])
        if part:
            groups.append(part[0] if len(part) == 1 else Node("list", (part,)))
        start = cut
    return Node("list", (tuple(groups),))


@lru_cache(maxsize=16384)
def parse(text: str) -> Node | None:
    r"""The tree of a canonical answer, or None where the grammar does not reach.

    >>> parse("1/2") == parse("\\frac{1}{2}")
    True
    """
    if len(text) > 4000:
        return None
    try:
        parser = Parser(text)
        tree = parser.items("")
        return tree if parser.tokens[parser.i].kind == "end" else None
    except (ParseError, RecursionError, ZeroDivisionError):
        return None
