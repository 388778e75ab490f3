"""The parsed form of an answer: a small tree of named tuples, and facts about such trees."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple


class ParseError(ValueError):
    """The text is not in the grammar; the answer is then compared as text."""


_local = threading.local()


def explain(reason: str) -> None:
    """Note why the comparison of this thread finds two answers unequal; the last note counts."""
    _local.reason = reason


def explanation() -> str:
    """The last note since the last call, or ""."""
    reason: str = getattr(_local, "reason", "")
    _local.reason = ""
    return reason


class Node(NamedTuple):
    r"""One node. `args` holds nodes, strings, numbers or tuples of nodes, by `kind`.

        \frac{x}{2} + 1   ->   add(div(sym x, num 2), num 1)
        (1, \infty)       ->   tuple("(", ")", (num 1, const inf))

    Expressions: num, sym, const, add, mul, div, pow, root, func, abs, floor, ceil, fact, binom, percent, degree, pm,
    app (an unknown function applied), op (a bound or task operator: sum, limit, determinant …).
    cases (rows of value and condition), cross and dot (products of names, see `plain_products`).
    Structures: list, tuple, set, builder, logic, matrix, rel, union, inter, minus, ratio, base, text, unit, ellipsis,
    reals. unit(value, words, letters): every word beside a value, see `units.meaning`.

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
    if node.kind == "unit":
        return Node("unit", (neg(node.args[0]), *node.args[1:]))
    if node.kind == "num":
        value, places, digits = node.args
        return Node("num", (-value, places, digits))
    if node.kind == "mul" and node.args[0][0].kind == "num":
        return Node("mul", ((neg(node.args[0][0]), *node.args[0][1:]),))
    return Node("mul", ((MINUS_ONE, node),))


def with_base(node: Node, base: int) -> Node:
    """1011_2: the digits of a number, in a base."""
    value, places, _ = node.args
    digits = str(value.numerator) if not places else f"{float(value):.{places}f}"
    if len(digits) > 15 and places:
        raise ParseError("a long fraction in another base")
    if not 2 <= base <= 36 or any(int(d) >= base for d in digits if d.isdigit()):
        raise ParseError("not a number in that base")
    return Node("base", (digits, base))


def product(left: Node, right: Node) -> Node:
    factors = left.args[0] if left.kind == "mul" else (left,)
    return Node("mul", ((*factors, right),))


def multiply(left: Node, right: Node, sign: str) -> Node:
    r"""A product with its sign: between names, \times and \cdot may be those of vectors, which differ."""
    last = left.args[0][-1] if left.kind == "mul" else left
    if sign in ("times", "cdot") and _may_be_vector(last) and _may_be_vector(right):
        pair = Node("cross" if sign == "times" else "dot", (last, right))
        return product(Node("mul", (left.args[0][:-1],)), pair) if left.kind == "mul" else pair
    return product(left, right)


def _may_be_vector(node: Node) -> bool:
    return node.kind in ("sym", "app", "cross", "dot")


def _is_vector(node: Node) -> bool:
    """Whether a name wears an arrow or a hat, or is a set such as \\mathbb{Z}."""
    if node.kind in ("cross", "dot"):
        return any(map(_is_vector, children(node)))
    return (node.kind == "app" and node.args[0] in _ARROWS) or (
        node.kind == "sym" and node.args[0].startswith(("set:", "\\hat", "\\nabla")) and "_" not in node.args[0]
    )


_ARROWS = frozenset(["vec", "hat", "overrightarrow", "widehat", "boldsymbol"])


def plain_products(*nodes: Node) -> tuple[Node, ...]:
    r"""The trees with products of numbers for \times and \cdot, unless they must be those of vectors.

    They are, as unknown functions, where a factor is a vector, or where one tree has \times and the other \cdot.
    """
    both = frozenset[str]().union(*map(kinds, nodes))
    if not {"cross", "dot"} & both:
        return nodes
    apart = {"cross", "dot"} <= both and not any({"cross", "dot"} <= kinds(node) for node in nodes)

    def plain(part: Any) -> Any:
        if isinstance(part, tuple) and not isinstance(part, Node):
            return tuple(map(plain, part))
        if not isinstance(part, Node) or not {"cross", "dot"} & kinds(part):
            return part
        inner = Node(part.kind, tuple(map(plain, part.args)))
        if part.kind not in ("cross", "dot"):
            return inner
        if apart or _is_vector(part):
            ordered = inner.args if part.kind == "cross" else tuple(sorted(inner.args, key=key))
            return Node("app", (part.kind, Node("list", (ordered,))))
        return Node("mul", (inner.args,))

    return tuple(plain(node) for node in nodes)


GREEK = frozenset("alpha beta gamma delta theta omega lambda mu nu rho sigma tau phi psi xi eta".split())
_D = r"(?:d|partial|\\partial)"
_ABOVE = re.compile(rf"{_D}(?:\^(\d|n))?(.*)")
_BELOW = re.compile(rf"({_D}(?:[a-zA-Z]|\\?[a-z]{{3,}})(?:\^(?:\d|n))?)+")


def derivative(above: str, below: str) -> Node | None:
    r"""\frac{dy}{dx} as a function of y, named by what is below; \frac{d}{dx}, as yet of nothing, as a name.

    None where the fraction is no derivative.
    """
    top = _ABOVE.fullmatch(above)
    if top is None or not _BELOW.fullmatch(below):
        return None
    if not top[2]:
        return sym(f"{above}/{below}")
    name = f"\\{top[2]}" if top[2] in GREEK else top[2]
    return Node("app", (f"d^{top[1] or 1}/{below}", sym(name))) if top[2].isalpha() else None


def with_differentials(body: Node) -> Node:
    r"""The body of an integral with \, dy \, dx as one factor: the order says which integral is over which name."""
    factors, names = list(body.args[0]) if body.kind == "mul" else [], ""
    while len(factors) > 1 and factors[-2] == sym("d") and factors[-1].kind == "sym":
        names = f"d({factors[-1].args[0]}){names}"
        factors = factors[:-2]
    return Node("mul", ((*factors, sym(names)),)) if names else body


def transpose(node: Node) -> Node:
    """A tuple as a column, a matrix with its rows as columns."""
    if node.kind == "tuple":
        return Node("matrix", (tuple((part,) for part in node.args[2]),))
    rows = node.args[0]
    if len({len(row) for row in rows}) != 1:
        raise ParseError("a matrix with rows of several lengths")
    return Node("matrix", (tuple(zip(*rows, strict=True)),))


def builder(pattern: Node, conditions: Node) -> Node:
    r"""\{pattern : conditions\}. Conditions on a real number alone are themselves the set: \{x : x > 2\} is x > 2."""
    name = pattern
    if pattern.kind == "rel" and pattern.args[0] == ("in",):
        name, domain = pattern.args[1]
        complex_name = domain == sym("set:C") and name.kind == "sym" and name.args[0] in ("z", "w")
        if domain.kind != "reals" and not complex_name:
            name = pattern
    of_one = kinds(conditions) <= _OF_ONE_NUMBER and symbols(conditions) == {str(name.args[0])}
    if name.kind == "sym" and of_one and "op:mod" not in kinds(conditions):
        if conditions.kind == "rel" or len(conditions.args) == 2:
            return conditions
        if all(part.kind == "rel" and not {"=", "in"} & {*part.args[0]} for part in conditions.args[0]):
            return Node("list", (conditions.args[0], "and"))  # \{x : x > 1, x < 3\}
    clauses = conditions.args[0] if conditions.kind == "list" else (conditions,)
    joiner = conditions.args[1] if conditions.kind == "list" and len(conditions.args) > 1 else ","
    return Node("builder", (pattern, tuple(clauses), joiner))


def juxtapose(left: Node, right: Node, digits: bool) -> Node:
    """Two factors side by side: a mixed number or a product. `digits`: the right one begins with a number."""
    if right.kind in ("degree", "percent") and _is_integer(left) and right.args[0].kind == "div":
        return Node(right.kind, (juxtapose(left, right.args[0], digits),))
    if _is_integer(left) and right.kind == "div" and _is_integer(right.args[0]) and _is_integer(right.args[1]):
        below = right.args[1].args[0]
        if below == 0:
            raise ParseError("a denominator of zero")
        part = right.args[0].args[0] / below
        integer = left.args[0]
        if 0 < part < 1:
            return num(integer + part if integer >= 0 else integer - part)
    last = left.args[0][-1] if left.kind == "mul" else left
    closed = last.kind in ("pow", "fact", "root") or last.args[:1] == ("exp",)
    if digits and not closed and (right.kind != "pow" or last.kind == "num"):  # n2^{n-1} and (n+1)2^n are products
        raise ParseError("two numbers side by side")
    return product(left, right)


def _is_integer(node: Node) -> bool:
    return node.kind == "num" and bool(node.args[0].denominator == 1) and node.args[1] == 0


def group(clauses: list[Node], cuts: list[int]) -> Node:
    """p=5,q=2; p=7,q=2: the semicolons bind more loosely than the commas."""
    groups, start = [], 0
    for cut in [*cuts, len(clauses)]:
        part = tuple(clauses[start:cut])
        if part:
            groups.append(part[0] if len(part) == 1 else Node("list", (part,)))
        start = cut
    return Node("list", (tuple(groups),))


def children(part: Node | tuple[Any, ...]) -> Iterator[Node]:
    """The nodes directly below a node, those inside of its tuples too."""
    for item in part.args if isinstance(part, Node) else part:
        if isinstance(item, Node):
            yield item
        elif isinstance(item, tuple):
            yield from children(item)


def find(part: Node | tuple[Any, ...], kind: str) -> Iterator[Node]:
    """The nodes of a kind in the tree, outermost first."""
    if isinstance(part, Node) and part.kind == kind:
        yield part
    if not isinstance(part, Node) or kind in kinds(part):
        yield from (found for child in children(part) for found in find(child, kind))


def infinity_sign(node: Node) -> int:
    """+1 or -1 for plus or minus infinity (times a number), else 0."""
    if node.kind == "const" and node.args[0] == "inf":
        return 1
    if node.kind == "mul" and len(node.args[0]) == 2:
        factor, rest = node.args[0]
        if factor.kind == "num" and factor.args[0] != 0 and infinity_sign(rest):
            return 1 if factor.args[0] > 0 else -1
    return 0


@lru_cache(maxsize=8192)
def kinds(node: Node) -> frozenset[str]:
    """All kinds in the tree, with ``func:log``-like entries for functions, operators and constants."""
    named = (f"{node.kind}:{node.args[0]}",) if node.kind in ("func", "op", "const") else ()
    return frozenset((node.kind, *named)).union(*map(kinds, children(node)))


@lru_cache(maxsize=8192)
def symbols(node: Node) -> frozenset[str]:
    """The names of the free symbols."""
    return frozenset(node.args if node.kind == "sym" else ()).union(*map(symbols, children(node)))


def rebuild(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with `change` made to the nodes directly below it, those inside of its tuples too."""

    def inside(part: Any) -> Any:
        if isinstance(part, Node):
            return change(part)
        return tuple(map(inside, part)) if isinstance(part, tuple) else part

    return Node(node.kind, tuple(map(inside, node.args)))


def substitute(node: Node, values: Mapping[str, Node]) -> Node:
    """The tree with the values for the symbols of these names."""
    if node.kind == "sym":
        return values.get(node.args[0], node)
    return rebuild(node, lambda part: substitute(part, values))


def choose_sign(node: Node, minus: bool) -> Node:
    """The tree with the upper or the lower sign of each plus-minus and minus-plus."""
    if node.kind == "pm":
        inner = choose_sign(node.args[1], minus)
        return neg(inner) if minus == (node.args[0] == "pm") else inner
    return rebuild(node, lambda part: choose_sign(part, minus))


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
    if node.kind == "unit":
        return f"unit({key(node.args[0])},{node.args[1]})"
    if node.kind in ("add", "mul"):
        parts = [key(child) for child in children(node)]
        if node.kind == "add" or not of_matrices(node):
            parts.sort()
        return f"{node.kind}({','.join(parts)})"
    return f"{node.kind}({','.join(_key_of(arg) for arg in node.args)})"


def same_tree(a: Node, b: Node) -> bool:
    """Whether two trees are one but for the order of what commutes: a + b and b + a, and not AB - BA and BA - AB."""
    return a == b or (key(a) == key(b) and not of_matrices(a))


def of_matrices(node: Node) -> bool:
    """Whether capital letters are matrices: one is inverted or transposed beside another (A^{-1}B), or AB beside BA."""
    names = symbols(node)
    if len(names) < 2 or not all(len(name) == 1 and name.isupper() for name in names):
        return False
    return ("pow" in kinds(node) and _inverts(node)) or _has_both_orders(node)


def _has_both_orders(node: Node) -> bool:
    """Whether two products of a sum differ in the order of their factors alone: AB - BA."""
    orders = {_letters(term) for term in children(node) if node.kind == "add" and "mul" in kinds(term)}
    return len({"".join(sorted(order)) for order in orders}) < len(orders)


def _letters(node: Node) -> str:
    """The letters of a product in their order."""
    return str(node.args[0]) if node.kind == "sym" else "".join(map(_letters, children(node)))


def _inverts(node: Node) -> bool:
    if node.kind == "pow" and node.args[0].kind in ("sym", "mul"):
        exponent = node.args[1]
        if (exponent.kind == "num" and exponent.args[0] == -1) or exponent in (sym("T"), sym("\\top")):
            return True
    return any(map(_inverts, children(node)))


def _key_of(arg: Any) -> str:
    if isinstance(arg, Node):
        return key(arg)
    if isinstance(arg, tuple):
        return "[" + ",".join(_key_of(item) for item in arg) + "]"
    return str(arg)


_STRUCTURES = frozenset(
    "list tuple set matrix rel union inter minus ratio base text unit ellipsis reals builder logic".split()
)
_OF_ONE_NUMBER = frozenset(
    (
        "rel list num sym add mul div pow root abs pm percent const const:pi const:e const:inf tuple union reals set"
    ).split()
)


def is_expression(node: Node) -> bool:
    """Whether the tree is one number-valued expression, without sets, tuples or relations in it."""
    return not (kinds(node) & _STRUCTURES)


_UNIT_VECTORS = frozenset(["i", "j", "k", "\\imath", "\\jmath", "\\hat{i}", "\\hat{j}", "\\hat{k}"])


def decorate(name: str, inside: Node) -> Node:
    """A bar over a complex number (one with i, z or w in it) is its conjugate; else a decoration is a name.

    A hat or arrow over i, j, k makes it a unit vector, whichever it is.
    """
    if name in ("hat", "vec", "widehat") and inside.args and inside.args[0] in _UNIT_VECTORS:
        return sym(f"\\hat{{{_letter_of(inside.args[0])}}}")
    if name in ("overline", "bar") and is_expression(inside):
        names = symbols(inside)
        if "const:i" in kinds(inside) or (names and all(map(is_complex, names))):
            return Node("func", ("conj", inside))
    return Node("app", (name, inside))


def _letter_of(unit_vector: str) -> str:
    return unit_vector.removeprefix("\\hat{").lstrip("\\")[0]
