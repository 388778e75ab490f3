r"""The parsed form of an answer: a small tree of named tuples, and facts about such trees.

    \frac{x}{2} + 1   ->   add(div(sym x, num 2), num 1)
    (1, \infty)       ->   tuple("(", ")", (num 1, const inf))

Kinds of expression: num, sym, const, add, mul, div, pow, root, func, abs, floor, ceil, fact, binom, percent,
degree, pm, app (an unknown function applied), op (a bound or task operator: sum, limit, determinant …).
Kinds of structure: list, tuple, set, matrix, rel, union, inter, minus, ratio, base, text, unit, ellipsis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple


class Node(NamedTuple):
    """One node. `args` holds nodes, strings, numbers or tuples of nodes, by `kind`.

    >>> num(2)
    Node(kind='num', args=(Fraction(2, 1), 0, 0))
    """

    kind: str
    args: tuple[Any, ...]


def num(value: Fraction | int, places: int = 0, digits: int = 0) -> Node:
    """A number. `places`: digits after the point as written (0: an integer); `digits`: significant ones."""
    return Node("num", (Fraction(value), places, digits))


def sym(name: str) -> Node:
    return Node("sym", (name,))


MINUS_ONE = num(-1)
INFINITY = Node("const", ("inf",))
EMPTY_SET = Node("set", ((),))


def neg(node: Node) -> Node:
    if node.kind == "num":
        value, places, digits = node.args
        return Node("num", (-value, places, digits))
    if node.kind == "mul" and node.args[0][0].kind == "num":
        return Node("mul", ((neg(node.args[0][0]), *node.args[0][1:]),))
    return Node("mul", ((MINUS_ONE, node),))


def children(part: Node | tuple[Any, ...]) -> Iterator[Node]:
    """The nodes directly below a node, those inside of its tuples too."""
    for item in part.args if isinstance(part, Node) else part:
        if isinstance(item, Node):
            yield item
        elif isinstance(item, tuple):
            yield from children(item)


@lru_cache(maxsize=8192)
def kinds(node: Node) -> frozenset[str]:
    """All kinds in the tree, with ``func:log``-like entries for functions, operators and constants."""
    named = (f"{node.kind}:{node.args[0]}",) if node.kind in ("func", "op", "const") else ()
    return frozenset((node.kind, *named)).union(*map(kinds, children(node)))


@lru_cache(maxsize=8192)
def symbols(node: Node) -> frozenset[str]:
    """The names of the free symbols."""
    return frozenset(node.args if node.kind == "sym" else ()).union(*map(symbols, children(node)))


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """The tree with the values for the symbols of these names."""

    def inside(part: Any) -> Any:
        if isinstance(part, Node):
            return substituted(part, values)
        return tuple(map(inside, part)) if isinstance(part, tuple) else part

    if node.kind == "sym":
        return values.get(node.args[0], node)
    return Node(node.kind, tuple(map(inside, node.args)))


def is_complex(name: str) -> bool:
    """Whether a name, such as z or w_1, usually stands for a complex number."""
    return name[:1] in ("z", "w")


@lru_cache(maxsize=8192)
def key(node: Node) -> str:
    """A canonical text: equal for trees that differ only in the order of sums and products.

    >>> key(Node("add", ((sym("x"), num(1)),))) == key(Node("add", ((num(1), sym("x")),)))
    True
    """
    if node.kind in ("num", "sym"):
        return str(node.args[0])
    if node.kind in ("add", "mul"):
        parts = sorted(key(child) for child in children(node))
        return f"{node.kind}({','.join(parts)})"
    return f"{node.kind}({','.join(_key_of(arg) for arg in node.args)})"


def _key_of(arg: Any) -> str:
    if isinstance(arg, Node):
        return key(arg)
    if isinstance(arg, tuple):
        return "[" + ",".join(_key_of(item) for item in arg) + "]"
    return str(arg)


_STRUCTURES = frozenset("list tuple set matrix rel union inter minus ratio base text unit ellipsis reals".split())


def is_expression(node: Node) -> bool:
    """Whether the tree is one number-valued expression, without sets, tuples or relations in it."""
    return not (kinds(node) & _STRUCTURES)
