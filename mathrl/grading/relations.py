"""Equations, inequalities and assignments, against one another and against plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from mathrl.grading.by_value import same_expression
from mathrl.grading.exact import Refused
from mathrl.grading.finite_field import PRIME, modular
from mathrl.grading.syntax import MINUS_ONE, Node, is_expression, key, kinds, num, symbols

Same = Callable[[Node, Node], bool | None]
_NAMES = frozenset(["sym", "app", "text"])
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def same_relation(truth: Node, answer: Node, same: Same) -> bool | None:
    if truth.kind == answer.kind:
        return _two_relations(truth, answer, same)
    relation, other = (truth, answer) if truth.kind == "rel" else (answer, truth)
    operators = relation.args[0]
    if operators == ("in",):
        return same(relation.args[1][1], other) if relation is truth else same(other, relation.args[1][1])
    if not set(operators) <= {"=", "~", "->", "=>"}:
        return False
    candidates = _chain_values(relation, from_answer=relation is answer)
    result: bool | None = False
    for i, value in enumerate(candidates):
        if i and not _has_decimal(other):
            break  # the approximate member counts only against a decimal
        verdict = same(value, other) if relation is truth else same(other, value)
        if verdict:
            return True
        result = None if verdict is None else result
    return result


def _has_decimal(node: Node) -> bool:
    return node.kind == "num" and bool(node.args[1])


def _chain_values(relation: Node, from_answer: bool) -> list[Node]:
    """What a chain of equalities claims: its last exact member, then an approximate one.

    ``x = 5``, ``f(x) = 5``, ``m+n = 5`` and ``2+3 = 5`` claim 5; ``a^2+b = 0`` is an equation, no claim.
    """
    operators, members = relation.args
    cut = operators.index("~") + 1 if "~" in operators else len(members)
    exact_members, rough = members[:cut], members[cut:]
    closed_members = [member for member in exact_members if _is_closed(member)]
    if any(same_expression(left, right) is False for left, right in pairwise(closed_members)):
        return []  # 42 = 43 claims nothing
    out = []
    if len(exact_members) > 1:
        first, last = exact_members[0], exact_members[-1]
        if last.kind == "sym" and first.kind != "sym":
            first, last = last, first
        closed = not symbols(first)
        if len(exact_members) > 2 or closed or _is_label(first) or (from_answer and _is_total(first)):
            out.append(last)
    elif not _is_label(exact_members[0]):
        out.append(exact_members[0])
    else:
        return [rough[-1]]
    return out + list(rough[-1:])


def _is_closed(node: Node) -> bool:
    """Numbers only: no names, unknown functions or operators."""
    return is_expression(node) and not symbols(node) and not {"app", "op"} & kinds(node)


def _is_label(node: Node) -> bool:
    """A name, f(x), an angle, a ratio or product of capital letters: the left side of an assignment."""
    if node.kind in _NAMES or node.kind == "unit":
        return True
    if node.kind in ("mul", "div", "ratio", "abs", "tuple", "add"):
        names = symbols(node)
        capitals = bool(names) and all(name[:1].isupper() for name in names)
        return (capitals and "num" not in kinds(node)) or (node.kind == "tuple" and "num" not in kinds(node))
    return False


def _is_total(node: Node) -> bool:
    """m + n, a b c: several names and no numbers."""
    return (
        len(symbols(node)) > 1 and not ({"num", "pow", "root", "func"} & kinds(node) - {"num"}) and not _numbers(node)
    )


def _numbers(node: Node) -> bool:
    return "num" in kinds(node)


def _two_relations(truth: Node, answer: Node, same: Same) -> bool | None:
    mine, theirs = truth.args, answer.args
    if mine[0] == theirs[0]:
        verdict = _memberwise(mine[1], theirs[1], same)
        if verdict:
            return True
    flipped = tuple(_FLIP.get(op, op) for op in reversed(theirs[0]))
    if mine[0] == flipped and _memberwise(mine[1], theirs[1][::-1], same):
        return True
    if mine[0] == theirs[0] == ("=",):
        return _equations(mine[1], theirs[1], same)
    if set(mine[0]) | set(theirs[0]) <= {"=", "~"}:
        left = _chain_values(truth, from_answer=False)
        right = _chain_values(answer, from_answer=True)
        if left and right and key(mine[1][0]) == key(theirs[1][0]):
            return same(left[0], right[0])
        return False
    if len(mine[0]) == len(theirs[0]) == 1 and mine[0][0] in _FLIP and theirs[0][0] in _FLIP:
        return _inequalities(truth, answer)
    return False


def _equations(mine: tuple[Node, Node], theirs: tuple[Node, Node], same: Same) -> bool | None:
    left, right = mine[0], theirs[0]
    if left.kind in _NAMES and right.kind in _NAMES:
        if key(left) == key(right):
            return same(mine[1], theirs[1])
        if (left.kind == "app" or right.kind == "app") and symbols(mine[1]) and symbols(mine[1]) == symbols(theirs[1]):
            return same(mine[1], theirs[1])
    if not (symbols(mine[0]) | symbols(mine[1])) & (symbols(theirs[0]) | symbols(theirs[1])):
        return False
    return _proportional(_difference(*mine), _difference(*theirs), positive=False)


def _memberwise(mine: Sequence[Node], theirs: Sequence[Node], same: Same) -> bool:
    return len(mine) == len(theirs) and all(same(left, right) for left, right in zip(mine, theirs, strict=True))


def _difference(left: Node, right: Node) -> Node:
    return Node("add", ((left, Node("mul", ((MINUS_ONE, right),))),))


def _inequalities(truth: Node, answer: Node) -> bool | None:
    """2x + 3y < 6 against 4x + 6y < 12: differences in the direction of ">" in a positive constant ratio."""
    sides = []
    for (op,), (left, right) in (truth.args, answer.args):
        if op in ("<", "<="):
            left, right = right, left
        sides.append((op.strip("<>"), _difference(left, right)))
    if sides[0][0] != sides[1][0]:
        return False
    return _proportional(sides[0][1], sides[1][1], positive=True)


def _proportional(a: Node, b: Node, positive: bool) -> bool | None:
    """Whether a = c b for a constant c that is not zero (and positive, if asked)."""
    if {"op", "pm", "ellipsis"} & (kinds(a) | kinds(b)):
        return None
    try:
        values = [(modular(a, point), modular(b, point)) for point in (1, 2, 3)]
        if any(x == 0 or y == 0 for x, y in values):
            return all(x == y for x, y in values)
        same_ratio = all(p[0] * q[1] % PRIME == q[0] * p[1] % PRIME for p, q in pairwise(values))
        if not same_ratio or not positive:
            return same_ratio
        ratio = values[0][0] * pow(values[0][1], -1, PRIME) % PRIME
        for below in range(1, 1001):
            above = ratio * below % PRIME
            if above <= 10**6:
                return True
            if PRIME - above <= 10**6:
                return False
        return None
    except Refused:
        pass
    verdict = same_expression(a, b)
    if verdict:
        return True
    shifted = Node("div", (a, b))
    for factor in (num(2), num(3), num(-1)) if not positive else (num(2), num(3)):
        if same_expression(shifted, factor) or same_expression(Node("div", (b, a)), factor):
            return True
    return verdict


def is_assignment(node: Node) -> bool:
    return node.kind == "rel" and node.args[0] == ("=",) and node.args[1][0].kind in _NAMES
