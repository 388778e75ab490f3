"""Formulas of structures: the work, whose operations are the steps of a solution, and what its numbers must fit.

A formula is read as Python's arithmetic and computed here, operation by operation: it is never run as code.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from mathrl.core.errors import UserError

SIGNS: Mapping[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
Step = Callable[[str, int, int], int]


class Formula:
    """Lines `NAME = FORMULA` separated by semicolons, and a last one whose value is that of the whole.

    >>> Formula("total = a * b; total - total / 2").value({"a": 4, "b": 3})
    6.0
    >>> Formula("60 <= a / b <= 240").value({"a": 300, "b": 2})
    True
    """

    def __init__(self, text: str) -> None:
        """Raises UserError: `text` is no formula."""
        self.text = text
        try:
            self.lines = ast.parse(text).body
        except SyntaxError:
            raise self._error("not a formula") from None

    def value(self, numbers: Mapping[str, int], step: Step | None = None) -> Any:
        """The value for these numbers. With `step` that function computes each +, -, * and /, in the order of the work;
        // and % are what a person sees at once.

        Raises:
            UserError: it has something other than arithmetic and comparisons of `numbers`.
        """
        values: dict[str, Any] = dict(numbers)
        result = None
        for line in self.lines:
            match line:
                case ast.Assign(targets=[ast.Name(id=name)], value=formula):
                    values[name] = self._evaluate(formula, values, step)
                case ast.Expr(value=formula):
                    result = self._evaluate(formula, values, step)
                case _:
                    raise self._error(f"{ast.unparse(line)!r} is neither NAME = FORMULA nor a formula")
        return result

    def _evaluate(self, node: ast.expr, values: Mapping[str, Any], step: Step | None) -> Any:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                a, b = (self._evaluate(side, values, step) for side in (left, right))
                return step(SIGNS[type(op)], a, b) if step and type(op) in SIGNS else OPERATORS[type(op)](a, b)
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self._evaluate(part, values, step) for part in parts)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in OPERATORS for op in ops):
                sides = [self._evaluate(side, values, step) for side in (left, *others)]
                return all(OPERATORS[type(op)](a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
        raise self._error(f"{ast.unparse(node)!r} is neither a number of the structure nor arithmetic")

    def _error(self, problem: str) -> UserError:
        return UserError(f"formula {self.text!r}: {problem}")
