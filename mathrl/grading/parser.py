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

import re
from functools import lru_cache

from mathrl.grading.atoms import Atoms
from mathrl.grading.grammar import RELATIONS, SET_OPS
from mathrl.grading.lexer import ParseError, tokenize
from mathrl.grading.literals import adjacent, in_base, literal, mixed, product
from mathrl.grading.syntax import Node, neg, num, sym, symbols
from mathrl.grading.units import DEGREE_WORDS, NUMBER_WORDS, PERCENT_WORDS, SINGLE_LETTER_UNITS

_HEDGE = re.compile(r"\b(?:or|not|possibly|maybe|perhaps|either|otherwise|else)\b")


_CONJUNCTIONS = {"or": {"or", "lor", "vee", "或"}, "and": {"and", "land", "wedge", "且"}}


class Parser(Atoms):
    """Lists, relations, sets, sums, terms and postfixes, over the primaries of `atoms.Atoms`."""

    def answer(self) -> Node:
        node = self.items("")
        if self.tokens[self.i].kind != "end":
            raise ParseError(f"unexpected {self.tokens[self.i].value!r}")
        return node

    def items(self, closer: str) -> Node:
        """Clauses up to `closer`; one clause is returned as itself, several as a list."""
        clauses: list[Node] = []
        semicolons: list[int] = []
        start = self.i
        while True:
            while self.joiner():
                pass
            if self.tokens[self.i].kind == "end" or (closer and self.at(closer, "]", ")")):
                break
            clauses.append(self.clause())
            if not self.joiner(semicolons, len(clauses)):
                break
        if not clauses:
            raise ParseError("empty")
        if len(clauses) == 1 and not semicolons:
            return clauses[0]
        if semicolons and semicolons[-1] < len(clauses) and len(semicolons) + 1 < len(clauses):
            return _grouped(clauses, semicolons)
        if len(clauses) == 1:
            return clauses[0]
        if all(clause.kind == "rel" for clause in clauses):
            words = {token.value for token in self.tokens[start : self.i]}
            for joiner, names in _CONJUNCTIONS.items():
                if words & names:
                    return Node("list", (tuple(clauses), joiner))
        return Node("list", (tuple(clauses),))

    def joiner(self, semicolons: list[int] | None = None, count: int = 0) -> bool:
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
        self.deeper()
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
                node = product(node, self.signed_factor())
            elif self.accept("/", "div"):
                node = Node("div", (node, self.signed_factor()))
            elif self.at("bmod", "mod", "pmod"):
                self.i += 1
                node = Node("op", ("mod", node, self.signed_factor()))
            elif node.kind == "degree" and self.tokens[self.i].kind == "num" and self.minutes_follow():
                node = self.minutes(node)
            elif self.letter_unit(node):
                node = self.with_unit(node)
            elif self.starts_factor():
                token = self.tokens[self.i]
                right = self.factor()
                node = adjacent(node, right, token)
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
                or token.value in SET_OPS
                or token.value in ("cdot", "times", "div", "pm", "mp", "rangle", "rfloor", "rceil", "rvert", "rVert")
                or token.value in ("end", "land", "lor", "wedge", "vee", "bmod", "mod", "pmod", "ast", "text")
            )
        return False

    def minutes_follow(self) -> bool:
        start = self.i
        self.take()
        marks = self.primes()
        self.i = start
        return marks == 1

    def minutes(self, node: Node) -> Node:
        """60^\\circ 42' 36'': minutes, and perhaps seconds, behind degrees."""
        parts: list[Node] = [node.args[0]]
        for marks, size in ((1, 60), (2, 3600)):
            start = self.i
            token = self.take()
            if token.kind != "num" or self.primes() != marks:
                self.i = start
                break
            parts.append(Node("div", (literal(token.value), num(size))))
        return Node("degree", (Node("add", (tuple(parts),)),))

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
        return self.tokens[self.i].kind == "text" and self.tokens[self.i].value.strip(" ,").lower() not in ("and", "or")

    def with_unit(self, node: Node) -> Node:
        """Trailing words: a percent or degree sign in words, a unit, or an annotation."""
        words: list[str] = [self.take().value] if self.tokens[self.i].kind == "letter_text" else []
        while self.unit_follows() or (
            words and (self.at("/", "^", "cdot") or (self.tokens[self.i].kind == "name" and self.tokens[self.i].spaced))
        ):
            token = self.take()
            words.append(token.value)
            if token.value in ("/", "cdot") and self.tokens[self.i].kind in ("name", "text"):
                words.append(self.take().value)
            if token.value == "^":
                self.accept("{")
                words.append(self.take().value)
                self.accept("}")
        text = " ".join(words).replace(" ^ ", "^")
        head = text.strip().lower().rstrip(".")
        if _HEDGE.search(head):
            raise ParseError("a second thought behind the answer")
        if head in PERCENT_WORDS:
            return Node("percent", (node,))
        if head in NUMBER_WORDS:
            return Node("mul", ((node, num(NUMBER_WORDS[head])),))
        if head in DEGREE_WORDS:
            return Node("degree", (node,))
        return Node("unit", (node, text))

    def factor(self) -> Node:
        return self.postfixes(self.primary())

    def postfixes(self, node: Node) -> Node:
        while True:
            if self.accept("!"):
                node = Node("fact2" if self.accept("!") else "fact", (node,))
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
            base = self.postfix_free()
            exponent = self.power(base) if self.at("^") else base
            exponent = neg(exponent) if sign < 0 else exponent
        if node == Node("const", ("e",)):
            return Node("func", ("exp", exponent))
        return Node("pow", (node, exponent))

    def subscript(self, node: Node) -> Node:
        self.take()
        text = self.raw("}") if self.accept("{") else self.take().value
        if node.kind == "num" and text.isdigit():
            return in_base(node, int(text))
        if node.kind == "mul" or node.kind == "num":
            raise ParseError("a subscript on a number")
        if node.kind == "const":
            node = sym(node.args[0])
        return sym(f"{node.args[0] if node.kind == 'sym' else node}_{text}")


def _grouped(clauses: list[Node], cuts: list[int]) -> Node:
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
        return Parser(mixed(tokenize(text))).answer()
    except (ParseError, RecursionError, ZeroDivisionError):
        return None
