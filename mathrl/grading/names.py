"""The two sides with one spelling of names: segments, derivatives, unit vectors, integers, constants of integration."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

from mathrl.grading.by_value import constant_ratio, same_expression
from mathrl.grading.points import INTEGER_NAMES
from mathrl.grading.relations import difference
from mathrl.grading.syntax import (
    GREEK,
    Node,
    find,
    is_expression,
    kinds,
    num,
    plain_products,
    rebuild,
    substitute,
    sym,
    symbols,
)


def align_names(truth: Node, answer: Node) -> tuple[Node, Node]:
    """The two with one spelling of products, unit vectors, free integers beside pi and constants of integration."""
    both = kinds(truth) | kinds(answer)
    if "cross" in both or "dot" in both:
        truth, answer = plain_products(truth, answer)
    truth, answer = _without_reals(truth, answer), _without_reals(answer, truth)
    truth, answer = _factors(truth, answer), _factors(answer, truth)
    truth, answer = _plain_segments(truth, answer), _plain_segments(answer, truth)
    if "rel" in both:
        truth, answer = _last_index(truth), _last_index(answer)
    truth, answer = _written_out(truth, answer), _written_out(answer, truth)
    if symbols(truth) == symbols(answer):
        same = _same_antiderivatives(truth, answer) or _same_curves(truth, answer)
        return (truth, truth) if same else (truth, answer)
    truth, answer = _unit_vectors(truth, answer)
    truth, answer = _same_real_name(truth, answer)
    if "const:pi" in both:
        truth, answer = _same_integer_name(truth, answer)
    return _rename_constants(truth, answer)


_INDEXED = re.compile(r"([a-zA-Z])_([a-z])([+-]\d)?")


def _last_index(node: Node) -> Node:
    """A recurrence in the terms up to a_n: a_{n+1} = 2 a_n + n as a_n = 2 a_{n-1} + n - 1."""
    terms = {name: match for name in symbols(node) if (match := _INDEXED.fullmatch(name))}
    if len({match[1] + match[2] for match in terms.values()}) != 1 or len(terms) < 2:
        return node
    offsets = {name: int(match[3] or 0) for name, match in terms.items()}
    head, index = next((match[1], match[2]) for match in terms.values())
    last = max(offsets.values())
    if not last:
        return node
    lower = {name: sym(f"{head}_{index}{offset - last:+d}".removesuffix("+0")) for name, offset in offsets.items()}
    return substitute(node, {index: Node("add", ((sym(index), num(-last)),)), **lower})


def _without_reals(node: Node, other: Node) -> Node:
    r"""x^2 + C, C \in \mathbb{R} as x^2 + C beside an answer that leaves the domain out."""
    if node.kind != "list" or other.kind == "list" or len(node.args[0]) != 2:
        return node
    stated, clause = node.args[0]
    if clause.kind != "rel" or clause.args[0] != ("in",) or clause.args[1][1].kind != "reals":
        return node
    name = clause.args[1][0]
    return stated if name.kind == "sym" and symbols(name) <= symbols(stated) else node


def _factors(node: Node, other: Node) -> Node:
    """mg(1 - x), read as g of 1 - x, as a product beside a side that has the factor g alone."""
    if "app" not in kinds(node):
        return node
    applied = {part.args[0] for part in find(other, "app")}

    def multiply(part: Node) -> Node:
        part = rebuild(part, multiply)
        if part.kind != "app" or part.args[0] not in symbols(other) - applied or not is_expression(part.args[1]):
            return part
        return Node("mul", ((sym(part.args[0]), part.args[1]),))

    return multiply(node)


def _plain_segments(node: Node, other: Node) -> Node:
    r"""\overline{AB} as AB where the other side writes no bar."""
    segment = node.kind == "app" and node.args[0] in ("overline", "bar") and node.args[1].kind == "sym"
    segment = segment and len(node.args[1].args[0]) == 2
    return Node("mul", (tuple(map(sym, node.args[1].args[0])),)) if segment and "app" not in kinds(other) else node


def _written_out(node: Node, other: Node) -> Node:
    r"""y', f'(x), \dot{x} and u_t as \frac{dy}{dx} and \frac{\partial u}{\partial t}, where the other has these."""
    written: dict[Node, set[Node]] = {}
    for part in find(other, "app"):
        operator = re.fullmatch(r"d\^(\d)/(d|partial)([a-z])(?:\^\1)?", part.args[0])
        if operator and part.args[1].kind == "sym":
            name, order, by = part.args[1].args[0], int(operator[1]), operator[3]
            primed = name + "'" * order
            spellings = [sym(primed), Node("app", (primed, sym(by)))]
            if operator[2] == "partial":
                spellings.append(sym(f"{name}_{by * order}"))
            if by == "t":
                spellings.append(Node("app", ("d" * (order - 1) + "dot", part.args[1])))
            for spelling in spellings:
                written.setdefault(spelling, set()).add(part)
    derivatives = {spelling: parts.pop() for spelling, parts in written.items() if len(parts) == 1}

    def write_out(part: Node) -> Node:
        return derivatives.get(part) or rebuild(part, write_out)

    return write_out(node) if derivatives else node


def _unit_vectors(truth: Node, answer: Node) -> tuple[Node, Node]:
    r"""3i-4j beside 3\hat{i}-4\hat{j}: plain letters are unit vectors where the other side marks them."""
    marked = [any(name.startswith("\\hat") for name in symbols(node)) for node in (truth, answer)]
    if marked[0] == marked[1]:
        return truth, answer
    vector = answer if marked[0] else truth
    if vector.kind == "matrix" and all(len(row) == 1 for row in vector.args[0]):
        vector = Node("tuple", ("(", ")", tuple(row[0] for row in vector.args[0])))
    if vector.kind == "tuple" and len(vector.args[2]) in (2, 3):
        units = [sym(f"\\hat{{{name}}}") for name in "ijk"]
        total = Node("add", (tuple(Node("mul", (pair,)) for pair in zip(vector.args[2], units, strict=False)),))
        return (truth, total) if marked[0] else (total, answer)
    plain = answer if marked[0] else truth
    if not symbols(plain) & {"j", "k"} or symbols(plain) - {"j", "k"}:
        return truth, answer

    def hats(part: Any) -> Any:
        if isinstance(part, Node):
            if part == Node("const", ("i",)):
                return sym("\\hat{i}")
            return Node(part.kind, tuple(map(hats, part.args)))
        return tuple(map(hats, part)) if isinstance(part, tuple) else part

    dressed = substitute(hats(plain), {name: sym(f"\\hat{{{name}}}") for name in "jk"})
    return (truth, dressed) if marked[0] else (dressed, answer)


_CONSTANT = re.compile(r"[CK](?:_\w)?|[ck]_\d")
_CONSTANTS = re.compile(r"[A-DK]|[CcKk]_?\d?")
_POINTS = Node("div", (num(3), num(7))), Node("div", (num(5), num(11)))


def _same_antiderivatives(truth: Node, answer: Node) -> bool:
    """f(x) + a C against g(x) + b C, where f - g is a constant: both are all antiderivatives of one function."""
    constants = [name for name in symbols(truth) if _CONSTANT.fullmatch(name)]
    if len(constants) != 1 or len(symbols(truth)) != 2 or not (is_expression(truth) and is_expression(answer)):
        return False
    (constant,), (name,) = constants, symbols(truth) - set(constants)
    own, other = (substitute(node, {constant: num(0)}) for node in (truth, answer))
    if not all(_adds(node, part, constant) for node, part in ((truth, own), (answer, other))):
        return False
    apart = substitute(difference(own, other), {name: _POINTS[0]})
    return bool(same_expression(own, Node("add", ((other, apart),))))


def _same_curves(truth: Node, answer: Node) -> bool:
    """F(x, y) + a C = 0 against G(x, y) + b C = 0, where F is G times a number, plus one: both are the same curves."""
    constants = [name for name in symbols(truth) if _CONSTANT.fullmatch(name)]
    names = sorted(symbols(truth) - set(constants))
    equations = all(node.kind == "rel" and node.args[0] == ("=",) for node in (truth, answer))
    if not equations or len(constants) != 1 or len(names) != 2 or not all(map(str.islower, names)):
        return False
    sides = [difference(*node.args[1]) for node in (truth, answer)]
    if not all(map(is_expression, sides)):
        return False
    own, other = (substitute(side, {constants[0]: num(0)}) for side in sides)
    if not all(_adds(side, part, constants[0]) for side, part in ((sides[0], own), (sides[1], other))):
        return False
    point = dict(zip(names, _POINTS, strict=True))
    first, second = (difference(part, substitute(part, point)) for part in (own, other))
    return bool(constant_ratio(first, second, positive=False))


def _adds(node: Node, particular: Node, constant: str) -> bool:
    """Whether an expression is the particular one and a multiple of the constant."""
    terms = node.args[0] if node.kind == "add" else (node,)
    marked = [term for term in terms if constant in symbols(term)]
    if len(marked) == 1 and marked[0] == sym(constant):
        return True
    return bool(constant_ratio(difference(node, particular), sym(constant), positive=False))


def _rename_constants(truth: Node, answer: Node) -> tuple[Node, Node]:
    """Constants of integration under other names: C_1 e^x + C_2 e^{-x} as A e^x + B e^{-x}."""
    shared = symbols(truth) & symbols(answer)
    own, other = sorted(symbols(truth) - shared), sorted(symbols(answer) - shared)
    variables = [name for name in shared if name.islower() and (name[0] != "\\" or name[1:] in GREEK)]
    if not variables:  # AB and AC are segments
        return truth, answer
    if len(own) != len(other) or not 0 < len(own) < 4 or "rel" in (kinds(truth) ^ kinds(answer)):
        return truth, answer
    if truth.kind == "rel" and len(own) == 1 and all(map(_CONSTANTS.fullmatch, [*own, *other])):
        renamed = substitute(answer, {other[0]: sym(own[0])})
        return (truth, truth) if _same_curves(truth, renamed) else (truth, answer)
    integration = [all(map(_CONSTANT.fullmatch, names)) for names in (own, other)]
    if not any(integration) or not all(map(_CONSTANTS.fullmatch, [*own, *other])):
        return truth, answer
    for naming in permutations(own):
        renamed = substitute(answer, {name: sym(new) for name, new in zip(other, naming, strict=True)})
        if is_expression(truth) and is_expression(renamed) and same_expression(truth, renamed):
            return truth, renamed
    return truth, answer


def _same_real_name(truth: Node, answer: Node) -> tuple[Node, Node]:
    r"""A number that both sides leave open, under one name: f(x) = cx, c \in R and f(x) = kx, k \in R."""
    open_names = []
    for node in (truth, answer):
        clauses = (
            [part.args[1] for part in node.args[0] if part.kind == "rel" and part.args[0] == ("in",)]
            if (node.kind == "list")
            else []
        )
        open_names.append([name.args[0] for name, domain in clauses if name.kind == "sym" and domain.kind == "reals"])
    (own, other), names = open_names, symbols(truth) | symbols(answer)
    if len(own) != 1 or len(other) != 1 or own == other or len(symbols(truth) ^ symbols(answer)) != 2 or not names:
        return truth, answer
    return truth, substitute(answer, {other[0]: sym(own[0])})


def _same_integer_name(truth: Node, answer: Node) -> tuple[Node, Node]:
    r"""k\pi as n\pi: a free integer beside pi may have any of the letters of integers."""
    names, answer_names = symbols(truth), symbols(answer)
    periods = "const:pi" in kinds(truth) and "const:pi" in kinds(answer)
    if not periods or names == answer_names or len(names) != 1 or len(answer_names) != 1:
        return truth, answer
    if not names | answer_names <= INTEGER_NAMES:
        return truth, answer
    return truth, substitute(answer, {next(iter(answer_names)): sym(next(iter(names)))})
