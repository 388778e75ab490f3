"""Relations: equations, inequalities with their direction, chains that claim a value, assignments and their labels.

`same` in the arguments is `structure.same_answer`, for what stands on either side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from mathrl.grading.by_value import constant_ratio, same_expression
from mathrl.grading.evaluate import Refused, numeric_value
from mathrl.grading.fields import PRIME, residue
from mathrl.grading.syntax import (
    MINUS_ONE,
    Node,
    children,
    explain,
    is_expression,
    key,
    kinds,
    substitute,
    sym,
    symbols,
)
from mathrl.grading.units import compatible, meaning

Same = Callable[[Node, Node], bool | None]
_NAMES = frozenset(["sym", "app", "text"])
_COMPUTED = frozenset("det sum prod int lim gcd lcm".split())  # what an equation gives the value of
_FUNCTIONS = frozenset("fghFGH")  # whose names do not count
_COUNT = re.compile(r"[CAP]_\d+")  # C_5^2, the number of pairs of five
_APPLIED = frozenset(["\\dim", "\\varphi", "\\phi", "\\nabla", "\\tau", "\\sigma"])
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
# Relations read from right to left; those that are not here have a direction.
_REVERSED = {**_FLIP, **{op: op for op in ("=", "!=", "~", "==", "cong", "perp", "par", "<=>", "prop")}}
_REVERSED |= {"sub": "sup", "sup": "sub", "subeq": "supeq", "supeq": "subeq", "=>": "<==", "<==": "=>"}
_REVERSED |= {"->": "<-", "<-": "->"}


def same_relation(truth: Node, answer: Node, same: Same) -> bool | None:
    if truth.kind == answer.kind:
        return _two_relations(truth, answer, same)
    relation, counterpart = (truth, answer) if truth.kind == "rel" else (answer, truth)
    operators = relation.args[0]
    if not all(map(is_forgiven, relation.args[1][:-1])) or ("=>" in operators and "=" not in operators):
        return False

    label = relation.args[1][0]
    if label.kind == "text" and counterpart.kind == "unit":
        contradiction = compatible(meaning(label.args[0]), meaning(counterpart.args[1]))
        if contradiction:
            explain(contradiction)
            return False

    def same_value(value: Node) -> bool | None:
        return same(value, counterpart) if relation is truth else same(counterpart, value)

    if operators == ("in",):
        label, values = relation.args[1]
        return (
            (bool(symbols(label)) or label.kind in _NAMES)
            and values.kind != "unit"
            and not is_expression(values)
            and same_value(values)
        )
    if not set(operators) <= {"=", "~", "=>"} or _is_far_off(relation):
        return False
    candidates = _chain_values(relation, from_answer=relation is answer)
    result: bool | None = False
    for i, value in enumerate(candidates):
        if i and not (counterpart.kind == "num" and counterpart.args[1]):
            break  # the approximate member counts only against a decimal
        verdict = same_value(value)
        if verdict:
            return True
        result = None if verdict is None else result
    return result


def _is_far_off(relation: Node) -> bool:
    r"""Whether an approximation is not one: \frac16 \approx 7 and 1 \approx x claim nothing."""
    operators, members = relation.args
    if "~" not in operators:
        return False
    sides = [members[operators.index("~")], members[-1]]
    said = [meaning(side.args[1] if side.kind == "unit" else "") for side in sides]
    exact, rough = (
        side.args[0] if side.kind == "unit" and not words.rest else side
        for side, words in zip(sides, said, strict=True)
    )
    if not (_is_closed(exact) and _is_closed(rough)):
        return _is_closed(exact)
    scale = said[1].size / said[0].size if said[0].dimension and said[1].dimension else 1
    value = numeric_value(exact)
    return bool(abs(value - numeric_value(rough) * float(scale)) > abs(value) / 20 + 1e-9)


def _chain_values(relation: Node, from_answer: bool) -> list[Node]:
    """What a chain of equalities claims: its last exact member, then an approximate one.

    ``x = 5``, ``f(x) = 5``, ``m+n = 5`` and ``2+3 = 5`` claim 5; ``a^2+b = 0`` is an equation, no claim.
    """
    operators, members = relation.args
    cut = operators.index("~") + 1 if "~" in operators else len(members)
    exact_members, rough = members[:cut], members[cut:]
    closed_members = [bare for member in exact_members if _is_closed(bare := _without_noun(member))]
    contradiction = any(same_expression(left, right) is False for left, right in pairwise(closed_members))
    if contradiction and len(closed_members) == len(exact_members):
        return []  # 42 = 43 claims nothing; x = 42 = 43 claims its last link
    values = []
    if len(exact_members) > 1:
        first, last = exact_members[0], exact_members[-1]
        if (last.kind == "sym" and first.kind != "sym") or (_is_closed(first) and not _is_closed(last)):
            first, last = last, first
        names = symbols(first)
        total = len(names) > 1 and not {"num", "pow", "root", "func"} & kinds(first)  # m + n, a b c
        if len(exact_members) > 2 or not names or _is_label(first) or (from_answer and total):
            values.append(last)
    elif not _is_label(exact_members[0]):
        values.append(exact_members[0])
    else:
        return [rough[-1]]
    if values and rough and rough[-1].kind == "unit" and values[0].kind != "unit":  # pi = 3.14 cm is pi cm
        values[0] = Node("unit", (values[0], *rough[-1].args[1:]))
    return values + list(rough[-1:])


def is_forgiven(label: Node) -> bool:
    """Whether a label, such as Total, may be missing on the other side: its words only name a value."""
    if label.kind not in ("text", "unit"):
        return all(map(is_forgiven, children(label)))
    said = meaning(label.args[label.kind == "unit"])
    if said.rest:
        explain(f"other words: {' '.join(said.rest)} / none")
    return not said.rest


def _without_noun(node: Node) -> Node:
    """The 12 of 12 points."""
    return node.args[0] if node.kind == "unit" and not meaning(node.args[1]).dimension else node


def _is_closed(node: Node) -> bool:
    """Numbers only: no names, unknown functions or operators."""
    return is_expression(node) and not symbols(node) and not {"app", "op"} & kinds(node)


def _is_label(node: Node) -> bool:
    """A name, f(x), an angle, a ratio or product of capital letters: the left side of an assignment."""
    if node.kind in _NAMES or node.kind == "unit":
        return True
    if node.kind == "op":
        return node.args[0] in _COMPUTED
    if node.kind == "func":  # \cos A = 1/2
        return bool(node.args[0] == "conj" or node.args[1].kind == "sym")
    if node.kind == "pow" and node.args[0].kind == "sym" and node.args[1].kind == "num":
        inverse = key(node.args[1]) == "-1" and node.args[0].args[0].isupper()
        return inverse or bool(_COUNT.fullmatch(node.args[0].args[0]))
    if node.kind == "mul" and node.args[0][0].kind == "sym" and node.args[0][0].args[0] in _APPLIED:
        return len(node.args[0]) == 2 and node.args[0][1].kind in ("sym", "num")
    if node.kind in ("mul", "div", "ratio", "abs", "tuple", "add", "union", "inter", "minus"):
        names = symbols(node)
        capitals = bool(names) and all(name[:1].isupper() for name in names)
        return (capitals and "num" not in kinds(node)) or (node.kind == "tuple" and "num" not in kinds(node))
    return False


def _two_relations(truth: Node, answer: Node, same: Same) -> bool | None:
    truth_operators, truth_members = truth.args
    answer_operators, answer_members = answer.args
    if {truth_operators, answer_operators} == {("->",), ("=>",)} and not {"num", "const"} & (
        kinds(truth) | kinds(answer)
    ):
        return _memberwise(truth_members, answer_members, same)  # p implies q; a limit has numbers
    if truth_operators == answer_operators:
        verdict = _memberwise(truth_members, answer_members, same)
        if verdict:
            return True
    flipped = tuple(_REVERSED.get(op, "") for op in reversed(answer_operators))
    if truth_operators == flipped and _memberwise(truth_members, answer_members[::-1], same):
        return True
    if truth_operators == answer_operators == ("=",):
        return _equations(truth_members, answer_members, same)
    if _is_far_off(truth) or _is_far_off(answer):
        return False
    if set(truth_operators) | set(answer_operators) <= {"=", "~"}:
        left = _chain_values(truth, from_answer=False)
        right = _chain_values(answer, from_answer=True)
        if left and right and key(truth_members[0]) == key(answer_members[0]):
            return same(left[0], right[0])
        return False
    if len(truth_operators) == len(answer_operators) == 1 and {*truth_operators, *answer_operators} <= set(_FLIP):
        return _inequalities(truth, answer)
    return False


def _equations(truth_sides: tuple[Node, Node], answer_sides: tuple[Node, Node], same: Same) -> bool | None:
    left, right = truth_sides[0], answer_sides[0]
    if key(_without_hat(left)) == key(right) or key(left) == key(_without_hat(right)):  # of a regression line
        return same(truth_sides[1], answer_sides[1])
    if left.kind in _NAMES and right.kind in _NAMES:
        names = symbols(truth_sides[1])
        marks = [_mark(node) for node in (left, right)]
        derivatives = marks[0] != marks[1] or marks[0].startswith("d^")
        derivatives = derivatives or (bool(marks[0]) and not {_name_of(left)[0], _name_of(right)[0]} <= _FUNCTIONS)
        functions = "app" in (left.kind, right.kind) and bool(names) and names == symbols(answer_sides[1])
        arguments = [symbols(node) for node in (left, right) if node.kind == "app"]
        functions = functions and not derivatives and all(not inside or inside & names for inside in arguments)
        functions = functions and len({*arguments}) < 2
        if key(left) == key(right) or functions:
            return same(truth_sides[1], answer_sides[1])
        renamed = _variable_map(left, right, symbols(answer_sides[1])) if not derivatives else None
        if renamed is not None:
            return same(truth_sides[1], substitute(answer_sides[1], renamed))
    if not _names(*truth_sides) & _names(*answer_sides):
        return False
    sides = [difference(*truth_sides), difference(*answer_sides)]
    verdict = _proportional(sides[0], sides[1], positive=False)
    below = [_denominators(side) for side in sides]
    if verdict is False and any(below):  # y = 3/x and x y = 3
        truth_side, answer_side = (Node("mul", ((side, *parts),)) for side, parts in zip(sides, below, strict=True))
        return _proportional(truth_side, answer_side, positive=False)
    return verdict


def _without_hat(node: Node) -> Node:
    return node.args[1] if node.kind == "app" and node.args[0] == "hat" and node.args[1].kind == "sym" else node


def _denominators(node: Node) -> list[Node]:
    """The names, to their powers, and the products of names that terms of a sum are divided by, each once."""
    if node.kind in ("add", "mul"):
        parts = [part for term in node.args[0] for part in _denominators(term)]
        return [part for i, part in enumerate(parts) if part not in parts[:i]]
    if node.kind == "div" and symbols(node.args[1]):
        factors = node.args[1].args[0] if node.args[1].kind == "mul" else (node.args[1],)
        bare = [factor.args[0] if factor.kind == "pow" else factor for factor in factors]
        if all(factor.kind == "sym" for factor in bare) or node.args[0].kind == "num":  # r = 1 / (1 - sin t)
            return [node.args[1]]
    return []


def _name_of(node: Node) -> str:
    return str(node.args[0]) if node.kind in ("app", "sym") else ""


def _mark(node: Node) -> str:
    """What makes a function of another one: its derivative or its inverse; "" for a plain name."""
    name = _name_of(node)
    return name if name.startswith(("d^", "dot", "ddot")) else name[1:] if name[1:].startswith(("'", "^-1")) else ""


def _names(*nodes: Node) -> frozenset[str]:
    """The symbols, and the unknown functions too."""
    return frozenset[str]().union(*(symbols(node) | _functions(node) for node in nodes))


def _functions(node: Node) -> frozenset[str]:
    applied = frozenset([key(node)]) if node.kind == "app" else frozenset[str]()
    return applied.union(*map(_functions, children(node)))


def _variable_map(left: Node, right: Node, names: frozenset[str]) -> dict[str, Node] | None:
    """The variables of f(n) in terms of those of f(x), those of a_n in terms of a_k; None if they are others."""
    if left.kind == right.kind == "app":
        inner = [node.args[1].args[0] if node.args[1].kind == "list" else (node.args[1],) for node in (left, right)]
        truth_names, answer_names = ([part for part in parts if part.kind == "sym"] for parts in inner)
        if len(truth_names) == len(inner[0]) == len(answer_names) == len(inner[1]):
            return _used({name.args[0]: value for name, value in zip(answer_names, truth_names, strict=True)}, names)
    if left.kind == right.kind == "sym":
        (head, mark, index), (answer_head, _, answer_index) = (node.args[0].partition("_") for node in (left, right))
        if mark and head == answer_head and index.isalpha() and answer_index.isalpha():
            return _used({answer_index: sym(index)}, names)
    return None


def _used(renaming: dict[str, Node], names: frozenset[str]) -> dict[str, Node] | None:
    """The renaming, unless the expression has none of its names, or has a new name already."""
    new = {value.args[0] for value in renaming.values()}
    return renaming if renaming.keys() & names and not (new - renaming.keys()) & names else None


def _memberwise(truth_members: Sequence[Node], answer_members: Sequence[Node], same: Same) -> bool:
    return len(truth_members) == len(answer_members) and all(
        same(left, right) for left, right in zip(truth_members, answer_members, strict=True)
    )


def difference(left: Node, right: Node) -> Node:
    return Node("add", ((left, Node("mul", ((MINUS_ONE, right),))),))


def _inequalities(truth: Node, answer: Node) -> bool | None:
    """2x + 3y < 6 against 4x + 6y < 12: differences in the direction of ">" in a positive constant ratio."""
    sides = []
    for (op,), (left, right) in (truth.args, answer.args):
        if op in ("<", "<="):
            left, right = right, left
        sides.append((op.strip("<>"), difference(left, right)))
    if sides[0][0] != sides[1][0]:
        return False
    return _proportional(sides[0][1], sides[1][1], positive=True)


def _proportional(a: Node, b: Node, positive: bool) -> bool | None:
    """Whether a = c b for a constant c that is not zero (and positive, if asked)."""
    if {"op", "pm", "ellipsis"} & (kinds(a) | kinds(b)):
        return None
    try:
        values = [(residue(a, point), residue(b, point)) for point in (1, 2, 3)]
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
    return constant_ratio(a, b, positive)


def is_assignment(node: Node) -> bool:
    return node.kind == "rel" and node.args[0] == ("=",) and node.args[1][0].kind in _NAMES
