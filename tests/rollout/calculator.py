"""A tool without a sandbox for tests, which computes sums and products, and a form of calls that is easy to write."""

import ast
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

from mathrl.core.types import FinishReason
from mathrl.rollout.call_formats import Asked
from mathrl.tools.tool import ToolOutput

OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def computed(node: ast.AST) -> int:
    """The value of sums, differences and products of whole numbers."""
    if isinstance(node, ast.Expression):
        return computed(node.body)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return int(OPERATORS[type(node.op)](computed(node.left), computed(node.right)))
    raise ValueError("no sum or product")


class CalculatorSession:
    def __init__(self, tool: "Calculator") -> None:
        self.tool, self.closed = tool, False

    def run(self, code: str) -> ToolOutput:
        assert not self.closed
        with self.tool.lock:
            self.tool.runs += 1
        try:
            expression = code.strip().removeprefix("print(").removesuffix(")")
            value = computed(ast.parse(expression, mode="eval")) + self.tool.wrong_by
        except (SyntaxError, ValueError):
            return ToolOutput("(...)", "error", self.tool.seconds)
        return ToolOutput(str(value), "ok", self.tool.seconds)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self.tool.lock:
                self.tool.open -= 1


class Calculator:
    """Sessions that compute, and count themselves; `last` is the value of the session's call before."""

    kind = CalculatorSession

    def __init__(self, seconds: float = 0.001, wrong_by: int = 0) -> None:
        self.seconds, self.wrong_by = seconds, wrong_by
        self.lock, self.open, self.most_open, self.runs = threading.Lock(), 0, 0, 0

    def session(self) -> CalculatorSession:
        with self.lock:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        return self.kind(self)

    def close(self) -> None:
        assert not self.open


class Equations:
    """Calls that a random model makes: whatever stands before a `=`; the answer is written after it, with a `;`."""

    reason: FinishReason = "stop_string"

    def __init__(self, *stop: str) -> None:
        self.stop = stop or ("=",)

    def calls(self, turn: str) -> list[Asked]:
        return [Asked(turn[:-1])]

    def own_words(self, turn: str) -> str:
        return ""

    def answers(self, outputs: Sequence[str]) -> list[str]:
        return [f"{output};" for output in outputs]
