"""The token cursor that the parts of the parser share, and the names of the grammar's levels."""

from __future__ import annotations

from mathrl.grading.lexer import ParseError, Token
from mathrl.grading.syntax import Node

MAX_DEPTH = 40


class Cursor:
    """A position in the tokens. `depth` counts nesting, `bars` open absolute values, `french` ]a, b[."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.i = 0
        self.depth = 0
        self.bars = 0
        self.french = False

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

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("nested too deeply")

    # The levels of the grammar, from loose to tight; `parser.Parser` supplies them.

    def items(self, closer: str) -> Node:
        raise NotImplementedError

    def clause(self) -> Node:
        raise NotImplementedError

    def sum(self) -> Node:
        raise NotImplementedError

    def term(self) -> Node:
        raise NotImplementedError

    def signed_factor(self) -> Node:
        raise NotImplementedError

    def factor(self) -> Node:
        raise NotImplementedError

    def primary(self) -> Node:
        raise NotImplementedError

    def argument(self) -> Node:
        raise NotImplementedError

    def starts_factor(self) -> bool:
        raise NotImplementedError
