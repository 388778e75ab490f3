"""Tokens to a tree (`syntax.Node`): recursive descent over a small LaTeX and plain-text grammar."""

from __future__ import annotations

from functools import lru_cache

from mathrl.grading.cursor import APPLICABLE, APPLIED_WORDS, Cursor
from mathrl.grading.lexer import FUNCTIONS, RELATIONS, SET_OPS, UPRIGHT, tokenize
from mathrl.grading.syntax import (
    EMPTY_SET,
    INFINITY,
    Node,
    ParseError,
    builder,
    decorate,
    derivative,
    group,
    juxtapose,
    key,
    kinds,
    multiply,
    neg,
    num,
    sym,
    transpose,
    with_differentials,
)
from mathrl.grading.units import add_quantities, is_unit, qualify, unit_of_sum

OPENERS = {"(": ")", "[": "]", "langle": "rangle", "\\{": "\\}"}
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"])
_CONJUNCTIONS = {"or": {"or", "lor", "vee", "或"}, "and": {"and", "land", "wedge", "且"}}
_LOGIC = {"lor": "or", "vee": "or", "land": "and", "wedge": "and"}
_CONSTANTS = {"pi": Node("const", ("pi",)), "infty": INFINITY, "emptyset": EMPTY_SET, "varnothing": EMPTY_SET}
_BIG = frozenset(["sum", "prod", "int", "iint", "iiint", "oint", "lim", "bigcap", "limsup", "liminf"])
_TASK_FUNCTIONS = frozenset(["gcd", "lcm", "det"])
_INVERSES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log10"}
_INVERSES |= {f"{ar}{name}": f"arc{name}" for ar in ("a", "ar") for name in ("sinh", "cosh", "tanh")}
_INVERTIBLE = frozenset("sin cos tan cot sec csc sinh cosh tanh coth sech csch".split())
_DECORATIONS = frozenset("vec hat bar overline overrightarrow tilde widehat dot ddot widetilde boldsymbol pmb".split())
_TRANSPARENT = frozenset("textcolor mathrm mathit mathcal mathsf mbox underline text".split())
_TRANSPOSES = tuple(map(sym, ("T", "\\top", "\\intercal", "t", "\\mathsf{T}")))
_QUANTIFIERS = frozenset(["forall", "exists", "nexists", "neg", "lnot"])
_UNDIRECTED = frozenset(["overline", "bar", "angle", "measuredangle", "hat", "widehat"])
_ORDERED = frozenset(["angle", "triangle", "measuredangle", "sphericalangle"])
_SUFFIXES = {"%": "percent", "circ": "degree"}
_POSTFIXES = frozenset(["^", "_", "!", "'", "prime", *_SUFFIXES])


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
        joiners: set[str] = set()
        start = self.i
        while True:
            while self.accept_joiner():
                pass
            ended = self.tokens[self.i].kind == "end" or bool(closer and self.at(closer, "]", ")"))
            if (ended or not clauses) and any(
                token.kind != "op" for token in self.tokens[max(start, self.i - 1) : self.i]
            ):
                raise ParseError("a conjunction without both of its parts")
            if ended:
                break
            clauses.append(self.clause())
            joiners.add(self.tokens[self.i].value)
            if not self.accept_joiner(semicolons, len(clauses)):
                break
        if not clauses:
            raise ParseError("empty")
        if len(clauses) == 1:
            return clauses[0]
        if len({str(clause.args[1][0]) for clause in clauses if clause.kind == "rel"}) == 1:
            semicolons = []  # x = 5, x = -2 or x = 3
        if semicolons and semicolons[-1] < len(clauses) and len(semicolons) + 1 < len(clauses):
            return group(clauses, semicolons)
        logic = {_LOGIC[joiner] for joiner in joiners if joiner in _LOGIC}
        if logic and not all(clause.kind == "rel" for clause in clauses):
            if len(logic) > 1:
                raise ParseError("and beside or")
            return Node("logic", (logic.pop(), tuple(clauses)))
        if all(clause.kind in ("rel", "sym") for clause in clauses):
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
        named = self.noun()
        members = [self.set_expression()]
        if named:
            members = [qualify(members[0], named, front=True)]
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
            if name == "=" and self.tokens[self.i].kind == "end":  # "42 =" claims 42
                operators.pop()
                break
            members.append(self.set_expression())
        if self.at_modulus() or members[-1].kind == "add":
            members[-1] = self.modulo(members[-1])
        if operators == ["=="] and members[0].kind == "app" and "op:mod" not in kinds(members[1]):
            operators = ["="]  # f(x) is 0 everywhere
        return members[0] if not operators else Node("rel", (tuple(operators), tuple(members)))

    def modulo(self, node: Node) -> Node:
        """The class of what a modulus stands behind, all of its terms."""
        if self.at_modulus():
            group = self.accept("(")
            self.take()
            node = Node("op", ("mod", node, self.set_expression()))
            if group:
                self.expect(")")
        elif node.args[0][-1].kind == "op" and node.args[0][-1].args[0] == "mod":
            _, last, modulus = node.args[0][-1].args
            node = Node("op", ("mod", Node("add", ((*node.args[0][:-1], last),)), modulus))
        return node

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
                words = right.args[1:] if right.kind == "unit" else ()
                right = right.args[0] if words else right
                left = Node("ratio", ((*left.args[0], right) if left.kind == "ratio" else (left, right),))
                left = Node("unit", (left, *words)) if words else left
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
        return terms[0] if len(terms) == 1 else unit_of_sum(terms)

    def term(self) -> Node:
        node = self.signed_factor()
        while True:
            operator = self.peek()
            if operator in ("*", "cdot", "times", "ast"):
                self.i += 1
                node = multiply(node, self.signed_factor(), operator)
            elif operator == "circ" and node.kind != "degree":
                self.i += 1
                node = Node("app", ("circ", Node("list", ((node, self.factor()),))))
            elif operator in ("/", "div"):
                self.i += 1
                below = self.signed_factor()
                node = qualify(node, f"per {below.args[0]}") if is_unit(below) else Node("div", (node, below))
            elif operator in ("bmod", "mod"):
                self.i += 1
                node = Node("op", ("mod", node, self.signed_factor()))
            elif node.kind == "degree" and (refined := self.minutes(node)) is not None:
                node = refined
            elif node.kind == "unit" and self.tokens[self.i].kind == "num":
                node = add_quantities(node, self.term())
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
            if mark == "circ" and node.kind in ("sym", "app"):
                return node  # a composition
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
        if exponent in _TRANSPOSES and node.kind in ("tuple", "matrix"):
            return transpose(node)
        if node == Node("const", ("e",)):
            return Node("func", ("exp", exponent))
        return Node("pow", (node, exponent))

    def primary(self) -> Node:
        token = self.take()
        if token.kind == "num":
            return self.number(token)
        if token.kind == "name":
            return self.name(token.value)
        if token.kind in UPRIGHT:
            return sym(token.value)
        if token.kind == "letters":
            return Node("mul", (tuple(map(sym, token.value)),))
        if token.kind == "text":
            return self.text(token.value.strip())
        if token.kind == "cmd":
            return self.command(token.value)
        if token.value in OPENERS:
            return self.bracket(token.value)
        if token.value == "{":
            return self.brace_group()
        if token.value == "]":
            return self.french_interval()
        if token.value in ("|", "\\|"):
            return self.absolute(token.value)
        raise ParseError(f"unexpected {token.value!r}")

    def name(self, name: str) -> Node:
        if len(self.tokens) - self.i > 4 and name not in APPLICABLE and self.defines():
            self.i += 3
            return sym(name)
        if self.applies(name) and not self.tokens[self.i].spaced:
            return self.application(name)
        if (name in APPLICABLE and self.at("^")) or self.at("'"):
            changed = self.inverse_or_derivative(name)
            if changed is not None:
                return changed
        return Node("const", (name,)) if name in ("i", "e") else sym(name)

    def application(self, name: str) -> Node:
        """A function of what is in the brackets that begin here."""
        closer = OPENERS[self.take().value]
        inside = self.items(closer)
        self.expect(closer)
        return Node("app", (name, inside))

    def extension(self, field: Node) -> Node:
        r"""\mathbb{Q}(\sqrt2), \mathbb{Z}[i], \mathbb{E}[X]: a field, ring or mean of what is in the brackets."""
        if not self.at("(", "[") or field.args[:1] == () or not field.args[0].startswith("set:"):
            return field
        opener = self.take().value
        inside = self.items(OPENERS[opener])
        self.expect(OPENERS[opener])
        if field.args[0] in ("set:E", "set:P"):
            return Node("app", (field.args[0][-1], inside))
        if inside.kind == "list" and field.args[0] in ("set:Q", "set:R", "set:C"):  # whatever is adjoined first
            inside = Node("list", (tuple(sorted(inside.args[0], key=key)),))
        return Node("app", (f"{field.args[0]}{opener}", inside))

    def inverse_or_derivative(self, name: str) -> Node | None:
        """f^{-1}(x) and f'(x), as functions of their own; None, and nothing taken, for a power."""
        start = self.i
        mark = self.take().value
        if mark == "^":
            mark = "^-1" if self.accept("{") and self.raw("}") == "-1" else ""
        else:
            while self.accept("'"):
                mark += "'"
        if mark and self.at("("):
            return self.application(name + mark)
        self.i = start
        return None

    def quantifier(self, name: str) -> Node:
        """\\forall x … and \\neg p, which bind what follows in its order."""
        parts = [self.factor()]
        if name not in ("neg", "lnot") and (self.accept(",", ":") or self.starts_factor()):
            parts.append(self.clause())
        return Node("app", (name, Node("list", (tuple(parts),))))

    def text(self, label: str) -> Node:
        """A word: alone, or said of what follows it, as in \\text{about } 5 and \\$5."""
        if label in APPLIED_WORDS and self.at("("):
            return self.application(label)
        marked = label.endswith((":", "="))
        if marked or self.starts_factor() or (label == "$" and self.at("-")):
            return qualify(self.term(), label.rstrip(" .:="), front=True)
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
        if name == "Pr" and self.at("(", "["):
            return self.extension(sym("set:P"))
        if name in ("Gamma", "zeta") and self.at("("):
            return self.function(name)
        if name in _QUANTIFIERS:
            return self.quantifier(name)
        if name.startswith("unit vector "):
            return sym(f"\\hat{{{name[-1]}}}")
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
            return self.extension(self.number_set())
        if name in ("ldots", "dots", "cdots"):
            return Node("ellipsis", ())
        if name in _DECORATIONS or name in _ORDERED:
            points = self.points()
            if points is not None:
                back = points[::-1] if name in _UNDIRECTED else points
                name = "overrightarrow" if name == "vec" else name
                return Node("app", (name, sym(min(points, back))))
            if name in ("overline", "bar") and self.accept("{"):
                inside = self.set_expression()
                self.expect("}")
                return decorate(name, inside)
            return decorate(name, self.argument()) if name in _DECORATIONS else Node("app", (name, self.term()))
        if name == "textcolor":
            self.expect("{")
            self.raw("}")
        if name in _TRANSPARENT:
            return self.argument()
        if name in RELATIONS or name in SET_OPS or name in ("end", "right", "left", "over", "pm", "not"):
            raise ParseError(f"unexpected \\{name}")
        return self.application(f"\\{name}") if self.applies(f"\\{name}") else sym(f"\\{name}")

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
            above = self.raw("}")
            if above.startswith(("d", "partial")) and self.accept("{"):
                applied = derivative(above, self.raw("}"))
                if applied is not None:
                    return applied if applied.kind == "app" else Node("op", ("derivative", applied, self.term()))
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
            args = sorted(inside.args[0], key=key) if inside.kind == "list" else (inside,)
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
        if name == "cis":
            return Node("func", ("exp", Node("mul", ((Node("const", ("i",)), argument),))))
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
            digits = self.tokens[self.i].kind == "num"
            node = juxtapose(node, self.factor(), digits)
        while self.at("/") and node.kind != "div":
            self.take()
            node = Node("div", (node, self.factor()))
        return neg(node) if sign < 0 else node

    def big_operator(self, name: str) -> Node:
        bounds = []
        while self.at("_", "^"):
            mark = self.take().value
            bounds.append(sym(mark + (self.raw("}") if self.accept("{") else self.take().value)))
        body = self.term()
        return Node("op", (name, *bounds, with_differentials(body) if name.endswith("int") else body))

    def bracket(self, opener: str) -> Node:
        """( … ), [ … ], \\{ … \\}, \\langle … \\rangle: a group, tuple, interval, list or set."""
        bars, self.bars = self.bars, 0
        closer = OPENERS[opener]
        if self.accept(closer, "rbrace" if opener == "\\{" else closer):
            return EMPTY_SET if opener == "\\{" else Node("tuple", (opener, closer, ()))
        if opener == "\\{":
            self.bars = -1
        self.french = opener == "[" and self.tokens[-2].value == "["  # [0, 1[
        inside = self.items(closer)
        self.french = False
        if opener == "\\{" and self.accept("|", "mid", ":"):
            self.bars = 0
            conditions = self.items(closer)
            self.expect(closer)
            self.bars = bars
            return builder(inside, conditions)
        self.bars = bars
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
        if self.accept("choose"):
            inside = Node("binom", (inside, self.sum()))
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
            return Node("op", ("det" if name == "vmatrix" else "norm", Node("matrix", (self.rows(name),))))
        if name == "cases":
            rows = self.rows(name)
            cells = tuple(cell for row in rows for cell in row)
            if all(cell.kind == "rel" for cell in cells):
                return cells[0] if len(cells) == 1 else Node("list", (cells,))
            if all(len(row) == 2 for row in rows):
                return Node("cases", (rows,))
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
