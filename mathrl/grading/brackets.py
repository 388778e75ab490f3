"""What stands in brackets: groups, tuples, intervals, sets, matrices, cases; and the points of an angle."""

from __future__ import annotations

from mathrl.grading.lexer import SET_OPS, Cursor
from mathrl.grading.syntax import EMPTY_SET, Node, ParseError, builder, sym

OPENERS = {"(": ")", "[": "]", "langle": "rangle", "\\{": "\\}"}
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"])


class Brackets(Cursor):
    """Brackets hold what `parser.Parser` reads: its `items`, `clause`, `sum` and `term`."""

    def items(self, closer: str) -> Node:
        raise NotImplementedError

    def clause(self) -> Node:
        raise NotImplementedError

    def sum(self) -> Node:
        raise NotImplementedError

    def term(self) -> Node:
        raise NotImplementedError

    def big_operator(self, name: str) -> Node:
        bounds = []
        while self.at("_", "^"):
            mark = self.take().value
            bounds.append(sym(mark + (self.raw("}") if self.accept("{") else self.take().value)))
        return Node("op", (name, *bounds, self.term()))

    def bracket(self, opener: str) -> Node:
        """( … ), [ … ], \\{ … \\}, \\langle … \\rangle: a group, tuple, interval, list or set."""
        bars, self.bars = self.bars, 0
        closer = OPENERS[opener]
        if self.accept(closer, "rbrace" if opener == "\\{" else closer):
            return EMPTY_SET if opener == "\\{" else Node("tuple", (opener, closer, ()))
        if opener == "\\{":
            self.bars = -1
        inside = self.items(closer)
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
