"""The token cursor that the parts of the parser share, and the names of the grammar's levels."""

from __future__ import annotations

from collections.abc import Callable

from mathrl.grading.lexer import ParseError, Token
from mathrl.grading.syntax import Node

MAX_DEPTH = 40


class Cursor:
    """A position in the tokens. `depth` counts nesting, `bars` open absolute values, `french` ]a, b[."""

    # The levels of the grammar, from loose to tight; `parser.Parser` supplies them.
    items: Callable[[str], Node]
    clause: Callable[[], Node]
    sum: Callable[[], Node]
    term: Callable[[], Node]
    signed_factor: Callable[[], Node]
    factor: Callable[[], Node]
    starts_factor: Callable[[], bool]

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.i = self.depth = self.bars = 0
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
