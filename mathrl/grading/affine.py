r"""Lines, planes and linear spans with rational coefficients, as one set: a point and the space of its directions.

(1, 0) + t (2, 2)                       ->   (1, 0) and the span of (1, 1)
\{(x, y) : x - y = 1\}                  ->   the same set
\operatorname{span}\{(1, 1), (0, 1)\}   ->   (0, 0) and all of the plane
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from mathrl.grading.evaluate import Refused, exact_value
from mathrl.grading.syntax import Node, is_expression, num, substitute, sym, symbols

_Row = tuple[Fraction, ...]
_COORDINATES = (("x", "y"), ("x", "y", "z"), ("x_1", "x_2"), ("x_1", "x_2", "x_3"), ("x_1", "x_2", "x_3", "x_4"))
_PARAMETER = re.compile(r"(?:[tsruvkc]|\\(?:lambda|mu|alpha|beta|gamma|tau))(?:_\d)?'?")
MOST_COORDINATES = 6


class Affine(NamedTuple):
    """`point` is zero where `directions`, in reduced row echelon form, have their leading ones."""

    point: _Row
    directions: tuple[_Row, ...]


def same_affine(truth: Node, answer: Node) -> bool | None:
    r"""Whether two lines, planes or spans are one set; None where a side is none, or neither is unmistakably one.

    A tuple of names alone, (t, 2t), may be a point in terms of t: it is a line beside one that is written as a line. So
    is what has names that usually stand for given numbers, such as a and b.

    >>> from mathrl.grading.parser import parse
    >>> same_affine(parse("(1,0)+t(2,2)"), parse("(x,y)=(0,-1)+s(1,1)")), same_affine(parse("(t,2t)"), parse("(2t,4t)"))
    (True, None)
    """
    if (steps := _same_steps(truth, answer)) is not None:
        return steps
    if not (_is_line(truth) or _is_line(answer)):
        return None
    first, second = _affine(truth), _affine(answer)
    if first is None or second is None:
        return None
    return first == second


def _same_steps(truth: Node, answer: Node) -> bool | None:
    r"""Whether (1 + 3t, 2 - 5t) and (1 - 3k, 2 + 5k) for all integers are the same points; None if they are no such."""
    own, theirs = _steps(truth), _steps(answer)
    if own is None or theirs is None:
        return None
    (point, step), (other, other_step) = own, theirs
    if len(point) != len(other) or other_step not in (step, tuple(-value for value in step)):
        return False
    apart = [(b - a, along) for a, b, along in zip(point, other, step, strict=True)]
    counts = {gap / along for gap, along in apart if along}
    return all(along or not gap for gap, along in apart) and len(counts) == 1 and counts.pop().denominator == 1


def _steps(node: Node) -> tuple[_Row, _Row] | None:
    r"""A point and the step between points of (1 + 3t, 2 - 5t), t \in \mathbb{Z}."""
    clauses = node.args[0] if node.kind == "list" else ()
    domains = [part for part in clauses if part.kind == "rel" and part.args[0] == ("in",)]
    if len(domains) != 1 or domains[0].args[1][1] != sym("set:Z"):
        return None
    cells = _cells(Node("list", (tuple(part for part in clauses if part not in domains),)))
    if cells is None or len(names := frozenset[str]().union(*map(symbols, cells))) != 1:
        return None
    try:
        parts = [_coefficients(cell, sorted(names)) for cell in cells]
    except (Refused, _NotLinear):
        return None
    whole = domains[0].args[1][0] == sym(*names)
    return (tuple(constant for _, constant in parts), tuple(slopes[0] for slopes, _ in parts)) if whole else None


def _is_line(node: Node) -> bool:
    """Whether a tree can only be a line, a plane or a span: a point with directions, or all points with a condition."""
    if node.kind == "list":
        bare = _without_domains(node)
        return bare.kind == "rel" and (_is_line(bare) or bare.args[1][0].kind == "tuple")
    if node.kind == "rel" and node.args[0] == ("=", "="):  # (x - 1)/2 = y = z/3
        return symbols(node) == {"x", "y", "z"} and len({*node.args[1]}) == 3
    if node.kind == "rel" and node.args[0] == ("=",):
        return _is_line(node.args[1][1])
    if node.kind == "unit":
        return _span_vectors(node) is not None
    if node.kind == "builder":
        return node.args[0].kind in ("tuple", "mul", "add", "matrix")
    return node.kind == "add" and any(_vector(part) for part in node.args[0]) and bool(symbols(node))


def _affine(node: Node) -> Affine | None:
    try:
        vectors = _span_vectors(node)
        if vectors is not None:
            return _in_echelon_form((Fraction(0),) * len(vectors[0]), vectors)
        equations = _equations(node)
        if equations is not None:
            return _solution_set(*equations)
        cells, declared = _cells(node), _parameter_names(node)
        if cells is None:
            return None
        names = frozenset[str]().union(*map(symbols, cells))
        free = names == declared or (not declared and all(map(_PARAMETER.fullmatch, names)))
        return _parametric(cells) if free else None
    except (Refused, _NotLinear):
        return None


class _NotLinear(ValueError):
    """A coordinate is not linear in the parameters, or not rational."""


def _span_vectors(node: Node) -> list[_Row] | None:
    """The vectors of span{u, v}."""
    if node.kind != "unit" or node.args[1].strip().lower() not in ("span", "lin") or node.args[0].kind == "unit":
        return None
    inside = node.args[0]
    parts = inside.args[0] if inside.kind in ("set", "list") else (inside,)
    if inside.kind == "tuple" and all(_vector(part) for part in inside.args[2]):
        parts = inside.args[2]
    rows = [_vector(part) for part in parts]
    if not all(rows) or len({len(row) for row in rows if row}) != 1:
        return None
    try:
        return [tuple(_number(cell) for cell in row) for row in rows if row]
    except _NotLinear:
        return None


def _vector(node: Node) -> tuple[Node, ...] | None:
    """The cells of a tuple or a column, of one with factors before it too."""
    if node.kind == "mul":
        *factors, last = node.args[0]
        cells = _vector(last)
        if cells is None or not all(map(is_expression, factors)):
            return None
        return tuple(Node("mul", ((*factors, cell),)) for cell in cells)
    if node.kind == "tuple" and node.args[:2] in (("(", ")"), ("[", "]")) and len(node.args[2]) > 1:
        return node.args[2] if all(map(is_expression, node.args[2])) else None
    if node.kind == "matrix" and len(node.args[0]) > 1 and all(len(row) == 1 for row in node.args[0]):
        return tuple(row[0] for row in node.args[0])
    return None


def _cells(node: Node) -> tuple[Node, ...] | None:
    """The coordinates of all points, in terms of the parameters."""
    if node.kind == "list" and (assigned := _system_cells(node)) is not None:
        return assigned
    if node.kind == "list":
        node = _without_domains(node)
    if node.kind == "builder" and all(map(_is_domain, node.args[1])):
        return _cells(node.args[0])
    if node.kind == "rel" and node.args[0] == ("=",) and len(node.args[1]) == 2:
        left, right = node.args[1]
        names = _vector(left)
        if left.kind in ("sym", "app") or (names and tuple(name.args[0] for name in names) in _COORDINATES):
            return _cells(right) if not symbols(left) & symbols(right) else None
        return None
    if node.kind == "add":
        rows = [_vector(part) for part in node.args[0]]
        if not all(rows) or len({len(row) for row in rows if row}) != 1:
            return None
        return tuple(Node("add", (column,)) for column in zip(*(row for row in rows if row), strict=True))
    return _vector(node)


def _without_domains(node: Node) -> Node:
    clauses = tuple(part for part in node.args[0] if not _is_domain(part))
    return clauses[0] if len(clauses) == 1 else Node("list", (clauses,))


def _parameter_names(node: Node) -> frozenset[str]:
    r"""The names that t \in \mathbb{R} makes parameters."""
    clauses = node.args[1] if node.kind == "builder" else node.args[0] if node.kind == "list" else ()
    return frozenset[str]().union(
        *(symbols(clause) for clause in clauses if clause.kind in ("rel", "sym") and _is_domain(clause))
    )


def _is_domain(clause: Node) -> bool:
    r"""t \in \mathbb{R}, or the s of "s, t \in \mathbb{R}"."""
    if clause.kind == "sym":
        return True
    return clause.kind == "rel" and clause.args[0] == ("in",) and clause.args[1][1].kind == "reals"


def _system_cells(node: Node) -> tuple[Node, ...] | None:
    """The coordinates of x = 1 + t, y = t, z = 2 - t."""
    node = _without_domains(node)
    clauses = node.args[0] if node.kind == "list" else (node,)
    values: dict[str, Node] = {}
    for clause in clauses:
        if clause.kind != "rel" or clause.args[0] != ("=",) or len(clause.args[1]) != 2:
            return None
        name, value = clause.args[1]
        if name.kind != "sym" or name.args[0] in values:
            return None
        values[name.args[0]] = value
    names = next((names for names in _COORDINATES if set(names) == set(values)), None)
    if names is None or any(symbols(value) & set(names) for value in values.values()):
        return None
    return tuple(values[name] for name in names)


def _equations(node: Node) -> tuple[tuple[str, ...], list[tuple[Node, Node]]] | None:
    r"""The names and equations of \{(x, y) : x = y\}, of x + y + z = 1, and of a list of equations."""
    names: tuple[str, ...] | None = None
    clauses: Sequence[Node] = node.args[0] if node.kind == "list" else (node,)
    if node.kind == "builder":
        pattern, clauses = node.args[:2]
        if pattern.kind == "rel" and pattern.args[0] == ("in",):
            pattern, domain = pattern.args[1]
            if domain.kind != "reals" and (domain.kind != "pow" or domain.args[0] != sym("set:R")):
                return None
        cells = _vector(pattern)
        if cells is None or any(cell.kind != "sym" for cell in cells):
            return None
        names = tuple(cell.args[0] for cell in cells)
        clauses = [clause for clause in clauses if not _is_domain(clause)]
    pairs = []
    for clause in clauses:
        if clause.kind != "rel" or set(clause.args[0]) != {"="} or not all(map(is_expression, clause.args[1])):
            return None
        pairs += list(zip(clause.args[1], clause.args[1][1:], strict=False))
    used = frozenset[str]().union(*(symbols(side) for pair in pairs for side in pair))
    if names is None:
        names = next((names for names in _COORDINATES if set(names) == used), None)
    if not pairs or names is None or not used <= set(names) or len(set(names)) < len(names):
        return None
    return names, pairs


def _number(node: Node) -> Fraction:
    value = exact_value(node) if not symbols(node) else None
    if value is None:
        raise _NotLinear
    return value


def _coefficients(node: Node, names: Sequence[str]) -> tuple[list[Fraction], Fraction]:
    """The rational coefficients of the names in a linear expression, and its constant."""

    def value(at: dict[str, int]) -> Fraction:
        return _number(substitute(node, {name: num(at.get(name, 0)) for name in names}))

    constant = value({})
    slopes = [value({name: 1}) - constant for name in names]
    for scale in (3, -7):
        point = {name: scale * (i + 2) for i, name in enumerate(names)}
        if value(point) != constant + sum(slope * point[name] for slope, name in zip(slopes, names, strict=True)):
            raise _NotLinear
    return slopes, constant


def _parametric(cells: Sequence[Node]) -> Affine | None:
    names = sorted(frozenset[str]().union(*map(symbols, cells)))
    if not names or len(cells) > MOST_COORDINATES or len(names) > len(cells):
        return None
    parts = [_coefficients(cell, names) for cell in cells]
    return _in_echelon_form(
        tuple(constant for _, constant in parts), [tuple(slopes[i] for slopes, _ in parts) for i in range(len(names))]
    )


def _solution_set(names: tuple[str, ...], pairs: Sequence[tuple[Node, Node]]) -> Affine | None:
    """The solutions of linear equations; None where there are none, or one point only."""
    rows = []
    for left, right in pairs:
        (slopes, constant), (others, other) = _coefficients(left, names), _coefficients(right, names)
        rows.append((*(a - b for a, b in zip(slopes, others, strict=True)), other - constant))
    reduced = _echelon(rows)
    leads = [next(i for i, value in enumerate(row) if value) for row in reduced]
    if len(names) in leads or len(leads) == len(names) or not leads:
        return None
    free = [i for i in range(len(names)) if i not in leads]
    point, directions = [Fraction(0)] * len(names), []
    for lead, row in zip(leads, reduced, strict=True):
        point[lead] = row[-1]
    for i in free:
        direction = [Fraction(int(k == i)) for k in range(len(names))]
        for lead, row in zip(leads, reduced, strict=True):
            direction[lead] = -row[i]
        directions.append(tuple(direction))
    return _in_echelon_form(tuple(point), directions)


def _in_echelon_form(point: _Row, directions: Sequence[_Row]) -> Affine | None:
    basis = _echelon(directions)
    if not basis:
        return None
    for row in basis:
        lead = next(i for i, value in enumerate(row) if value)
        point = tuple(value - point[lead] * step for value, step in zip(point, row, strict=True))
    return Affine(point, tuple(basis))


def _echelon(rows: Sequence[_Row]) -> list[_Row]:
    """The reduced row echelon form, without rows of zeros."""
    left, done = [list(row) for row in rows], list[list[Fraction]]()
    for column in range(len(rows[0])):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        pivot = [value / pivot[column] for value in pivot]
        left, done = (
            [[value - row[column] * step for value, step in zip(row, pivot, strict=True)] for row in group]
            for group in (left, done)
        )
        done.append(pivot)
    return [tuple(row) for row in done]
