"""Two parsed answers: lists, tuples, sets, matrices element by element, equations and inequalities, and values.

House rules: a bare list is unordered (1,2 = 2,1), a tuple is ordered, a tuple is never a set; a bare list in
the tuple's own order may stand for the tuple; ``k=1`` may stand for 1, ``0<x<1`` for (0,1), ``x=1,y=2`` for (1,2).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mathrl.grading.by_value import INTEGER_NAMES, constant_ratio, same_expression
from mathrl.grading.evaluate import PRIME, Refused, check_clock, residue
from mathrl.grading.scalar import refuse_restated, same_scalar
from mathrl.grading.sets import INEQUALITIES, NotASet, real_set, same_real_set
from mathrl.grading.syntax import (
    MINUS_ONE,
    Node,
    children,
    is_expression,
    key,
    kinds,
    neg,
    num,
    substitute,
    sym,
    symbols,
)

_NAMES = frozenset(["sym", "app", "text"])
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
MAX_ITEMS = 200
_SETS = frozenset(["union", "inter", "minus", "reals"])


def same_answer(truth: Node, answer: Node) -> bool | None:
    r"""Whether two parsed answers agree; None where nothing here settles it.

    Raises:
        Refused, Restated: the answer is undefined, too large, or repeats the task.

    >>> from mathrl.grading.parser import parse
    >>> same_answer(parse("0<x<1"), parse("(0,1)")), same_answer(parse("(1,2)"), parse("(2,1)"))
    (True, False)
    """
    check_clock()
    if key(truth) == key(answer):
        return True
    truth, answer = _same_integer_name(*_drop_domains(truth, answer))
    truth, answer = _simplify(truth), _simplify(answer)
    verdict = _as_real_sets(truth, answer)
    if verdict is not None:
        return verdict
    if truth.kind in _SETS or answer.kind in _SETS:
        counterpart = answer if truth.kind in _SETS else truth
        if is_expression(counterpart) or counterpart.kind == "matrix":
            return False
    if truth.kind == "rel" or answer.kind == "rel":
        return _same_relation(truth, answer)
    truth_items, answer_items = _items(truth), _items(answer)
    if truth.kind == "tuple" or answer.kind == "tuple":
        return _tuples(truth, answer)
    if truth.kind == "matrix" or answer.kind == "matrix":
        return _matrices(truth, answer)
    if truth_items is not None or answer_items is not None:
        return _collections(truth, answer, truth_items or [truth], answer_items or [answer])
    if truth.kind == "base" and answer.kind == "base" and truth.args[1] == answer.args[1]:
        return truth.args[0].lstrip("0") == answer.args[0].lstrip("0")  # type: ignore[no-any-return]
    if truth.kind == "text" or answer.kind == "text":
        return truth.kind == answer.kind and truth.args[0].lower() == answer.args[0].lower()
    return same_scalar(truth, answer)


def _drop_domains(truth: Node, answer: Node) -> tuple[Node, Node]:
    r"""Without clauses such as k \in \mathbb{Z}; where both have one, the answer with the truth's name."""
    names, stripped = [], []
    for node in (truth, answer):
        clauses = list(node.args[0]) if node.kind == "list" else [node]
        domains = [clause for clause in clauses if clause.kind == "rel" and clause.args[0] == ("in",)]
        domains = [clause for clause in domains if key(clause.args[1][1]).startswith("set:")]
        kept = [clause for clause in clauses if clause not in domains]
        names.append([clause.args[1][0] for clause in domains if clause.args[1][0].kind == "sym"])
        if domains and kept:
            node = kept[0] if len(kept) == 1 else Node("list", (tuple(kept),))
        stripped.append(node)
    if len(names[0]) == len(names[1]) == 1:
        stripped[1] = substitute(stripped[1], {names[1][0].args[0]: names[0][0]})
    return stripped[0], stripped[1]


def _same_integer_name(truth: Node, answer: Node) -> tuple[Node, Node]:
    r"""k\pi as n\pi: a free integer beside pi may have any of the letters of integers."""
    names, answer_names = symbols(truth), symbols(answer)
    periods = "const:pi" in kinds(truth) and "const:pi" in kinds(answer)
    if not periods or names == answer_names or len(names) != 1 or len(answer_names) != 1:
        return truth, answer
    if not names | answer_names <= INTEGER_NAMES:
        return truth, answer
    return truth, substitute(answer, {next(iter(answer_names)): sym(next(iter(names)))})


def _simplify(node: Node) -> Node:
    """Without a set of one element, a label list ("k = 1, 2, 3"), or a scalar before a matrix."""
    if node.kind == "set" and len(node.args[0]) == 1 and node.args[0][0].kind != "rel":
        return _simplify(node.args[0][0])
    if node.kind == "mul":
        matrices = [factor for factor in node.args[0] if factor.kind == "matrix"]
        if len(matrices) == 1:
            scalars = tuple(factor for factor in node.args[0] if factor.kind != "matrix")
            rows = tuple(tuple(Node("mul", ((*scalars, cell),)) for cell in row) for row in matrices[0].args[0])
            return Node("matrix", (rows,))
    if node.kind == "list":
        first, *rest = node.args[0]
        if _is_assignment(first) and all(part.kind not in ("rel", "list") for part in rest):
            return Node("list", ((first.args[1][1], *rest),))
    if node.kind == "rel" and node.args[0] == ("in",) and node.args[1][1].kind == "set":
        return node.args[1][1]  # type: ignore[no-any-return]
    return node


def _as_real_sets(truth: Node, answer: Node) -> bool | None:
    """True or False where both are sets of reals and at least one is unmistakably so."""
    both = (truth, answer)
    marked = any(
        node.kind in ("union", "inter", "minus", "reals")
        or (node.kind == "rel" and (INEQUALITIES & set(node.args[0]) or "in" in node.args[0]))
        or (
            node.kind == "list"
            and all(part.kind == "rel" for part in node.args[0])
            and any(INEQUALITIES & set(part.args[0]) for part in node.args[0])
        )
        for node in both
    )
    if not marked:
        return None
    if all(node.kind == "rel" and "in" not in node.args[0] for node in both):
        subjects = [key(next((m for m in node.args[1] if symbols(m)), num(0))) for node in both]
        if subjects[0] != subjects[1] and symbols(truth) != symbols(answer):
            return False
    try:
        truth_set, answer_set = real_set(truth), real_set(answer)
    except NotASet:
        return None
    return same_real_set(truth_set, answer_set)


def _items(node: Node) -> list[Node] | None:
    """The elements of a list or set, plus-minus written out; None for a single value."""
    if node.kind in ("list", "set"):
        elements: list[Node] = []
        for part in node.args[0]:
            elements.extend(_signs(part))
        return elements
    spread = _signs(node)
    return spread if len(spread) > 1 else None


def _signs(node: Node) -> list[Node]:
    """Both values of an expression with a plus-minus sign in it."""
    if "pm" not in kinds(node):
        return [node]
    if node.kind == "rel" and _is_assignment(node):
        return _signs(node.args[1][1])
    if node.kind in ("tuple", "matrix", "rel", "list", "set", "union"):
        return [node]
    values: list[Node] = []
    for value in (_with_sign(node, False), _with_sign(node, True)):
        if value not in values:
            values.append(value)
    return values


def _with_sign(node: Node, minus: bool) -> Node:
    if node.kind == "pm":
        inner = _with_sign(node.args[1], minus)
        return neg(inner) if minus == (node.args[0] == "pm") else inner
    return Node(
        node.kind,
        tuple(
            _with_sign(arg, minus)
            if isinstance(arg, Node)
            else tuple(_with_sign(part, minus) if isinstance(part, Node) else part for part in arg)
            if isinstance(arg, tuple)
            else arg
            for arg in node.args
        ),
    )


def _collections(truth: Node, answer: Node, truth_items: list[Node], answer_items: list[Node]) -> bool | None:
    if len(truth_items) > MAX_ITEMS or len(answer_items) > MAX_ITEMS:
        raise Refused("a list too long")
    if all(_is_assignment(part) for part in (*truth_items, *answer_items)):
        return _in_any_order(truth_items, answer_items)
    truth_items, answer_items = _values(truth_items), _values(answer_items)
    if "set" in (truth.kind, answer.kind):
        truth_items, answer_items = _drop_repeats(truth_items), _drop_repeats(answer_items)
    return _in_any_order(truth_items, answer_items)


def _values(items: list[Node]) -> list[Node]:
    """x_1 = 2, x_2 = 3 as 2, 3; groups of assignments as tuples of their values."""
    values = []
    for item in items:
        if _is_assignment(item):
            values.append(item.args[1][1])
        elif item.kind == "list":
            values.append(Node("tuple", ("(", ")", tuple(_assigned_values(item.args[0]) or item.args[0]))))
        else:
            values.append(item)
    return values


def _assigned_values(items: Sequence[Node]) -> list[Node] | None:
    """The values of assignments to different names, in the order of the names."""
    if not all(_is_assignment(item) for item in items):
        return None
    named = sorted((key(item.args[1][0]), i) for i, item in enumerate(items))
    if len({name for name, _ in named}) < len(items):
        return None
    return [items[i].args[1][1] for _, i in named]


def _drop_repeats(items: list[Node]) -> list[Node]:
    distinct: list[Node] = []
    for item in items:
        if not any(
            key(item) == key(seen) or (symbols(item) == symbols(seen) and same_answer(seen, item)) for seen in distinct
        ):
            distinct.append(item)
    return distinct


def _in_any_order(truth_items: list[Node], answer_items: list[Node]) -> bool | None:
    if len(truth_items) != len(answer_items):
        return False
    truth_counts, answer_counts = _by_unit(truth_items), _by_unit(answer_items)
    if len(truth_items) > 1 and truth_counts.keys() == answer_counts.keys() and len(truth_counts) == len(truth_items):
        return _in_order(list(truth_counts.values()), [answer_counts[word] for word in truth_counts])
    unmatched, unknown = list(answer_items), False
    for item in truth_items:
        index = next((i for i, candidate in enumerate(unmatched) if key(candidate) == key(item)), None)
        if index is None:
            for i, candidate in enumerate(unmatched):
                verdict = same_answer(item, candidate)
                if verdict:
                    index = i
                    break
                unknown = unknown or verdict is None
        if index is None:
            return None if unknown else False
        unmatched.pop(index)
    return True


def _by_unit(items: list[Node]) -> dict[str, Node]:
    """7 goats and 4 helicopters by the words."""
    return {item.args[1].lower(): item for item in items if item.kind == "unit"}


def _in_order(truth_items: Sequence[Node], answer_items: Sequence[Node]) -> bool | None:
    if len(truth_items) != len(answer_items):
        return False
    result: bool | None = True
    for left, right in zip(truth_items, answer_items, strict=True):
        verdict = same_answer(left, right)
        if verdict is False:
            return False
        result = None if verdict is None else result
    return result


def _flatten(parts: Sequence[Node]) -> list[Node]:
    """(1,1;2,2) read as (1,1,2,2)."""
    return [inner for part in parts for inner in (part.args[0] if part.kind == "list" else (part,))]


def _tuples(truth: Node, answer: Node) -> bool | None:
    if truth.kind == answer.kind:
        truth_parts, answer_parts = _flatten(truth.args[2]), _flatten(answer.args[2])
        if len(truth_parts) <= 2 and truth.args[:2] != answer.args[:2]:
            return False
        return _in_order(truth_parts, answer_parts)
    tuple_node, counterpart = (truth, answer) if truth.kind == "tuple" else (answer, truth)
    tuple_parts = _flatten(tuple_node.args[2])

    def truth_first(own: Any, other: Any) -> tuple[Any, Any]:
        return (own, other) if tuple_node is truth else (other, own)

    if counterpart.kind == "list":
        if tuple_node.args[:2] != ("(", ")"):
            return False
        return _in_order(*truth_first(tuple_parts, _assigned_values(counterpart.args[0]) or counterpart.args[0]))
    if counterpart.kind == "matrix":
        rows = counterpart.args[0]
        if len(rows) == 1 or all(len(row) == 1 for row in rows):
            verdict = _in_order(*truth_first(tuple_parts, [cell for row in rows for cell in row]))
            if verdict or not all(part.kind == "tuple" for part in tuple_parts):
                return verdict
        if all(part.kind == "tuple" for part in tuple_parts):
            nested = Node("matrix", (tuple(tuple(part.args[2]) for part in tuple_parts),))
            return _matrices(*truth_first(nested, counterpart))
        if len(tuple_parts) == 1:
            return same_answer(*truth_first(tuple_parts[0], counterpart))
    return False


def _matrices(truth: Node, answer: Node) -> bool | None:
    if truth.kind != answer.kind:
        counterpart = answer if truth.kind == "matrix" else truth
        if {"matrix", "op"} & kinds(counterpart):
            refuse_restated(truth, answer)
            return None
        return False
    truth_rows, answer_rows = truth.args[0], answer.args[0]
    if [len(row) for row in truth_rows] != [len(row) for row in answer_rows]:
        return False
    return _in_order([cell for row in truth_rows for cell in row], [cell for row in answer_rows for cell in row])


def _same_relation(truth: Node, answer: Node) -> bool | None:
    if truth.kind == answer.kind:
        return _two_relations(truth, answer)
    relation, counterpart = (truth, answer) if truth.kind == "rel" else (answer, truth)
    operators = relation.args[0]

    def same_value(value: Node) -> bool | None:
        return same_answer(value, counterpart) if relation is truth else same_answer(counterpart, value)

    if operators == ("in",):
        return same_value(relation.args[1][1])
    if not set(operators) <= {"=", "~", "->", "=>"}:
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


def _chain_values(relation: Node, from_answer: bool) -> list[Node]:
    """What a chain of equalities claims: its last exact member, then an approximate one.

    ``x = 5``, ``f(x) = 5``, ``m+n = 5`` and ``2+3 = 5`` claim 5; ``a^2+b = 0`` is an equation, no claim.
    """
    operators, members = relation.args
    cut = operators.index("~") + 1 if "~" in operators else len(members)
    exact_members, rough = members[:cut], members[cut:]
    closed_members = [member for member in exact_members if _is_closed(member)]
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
    return values + list(rough[-1:])


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


def _two_relations(truth: Node, answer: Node) -> bool | None:
    truth_operators, truth_members = truth.args
    answer_operators, answer_members = answer.args
    if truth_operators == answer_operators:
        verdict = _memberwise(truth_members, answer_members)
        if verdict:
            return True
    flipped = tuple(_FLIP.get(op, op) for op in reversed(answer_operators))
    if truth_operators == flipped and _memberwise(truth_members, answer_members[::-1]):
        return True
    if truth_operators == answer_operators == ("=",):
        return _equations(truth_members, answer_members)
    if set(truth_operators) | set(answer_operators) <= {"=", "~"}:
        left = _chain_values(truth, from_answer=False)
        right = _chain_values(answer, from_answer=True)
        if left and right and key(truth_members[0]) == key(answer_members[0]):
            return same_answer(left[0], right[0])
        return False
    if len(truth_operators) == len(answer_operators) == 1 and {*truth_operators, *answer_operators} <= set(_FLIP):
        return _inequalities(truth, answer)
    return False


def _equations(truth_sides: tuple[Node, Node], answer_sides: tuple[Node, Node]) -> bool | None:
    left, right = truth_sides[0], answer_sides[0]
    if left.kind in _NAMES and right.kind in _NAMES:
        names = symbols(truth_sides[1])
        functions = "app" in (left.kind, right.kind) and bool(names) and names == symbols(answer_sides[1])
        if key(left) == key(right) or functions:
            return same_answer(truth_sides[1], answer_sides[1])
        renamed = _variable_map(left, right)
        if renamed is not None:
            return same_answer(truth_sides[1], substitute(answer_sides[1], renamed))
    if not _names(*truth_sides) & _names(*answer_sides):
        return False
    return _proportional(_difference(*truth_sides), _difference(*answer_sides), positive=False)


def _names(*nodes: Node) -> frozenset[str]:
    """The symbols, and the unknown functions too."""
    return frozenset[str]().union(*(symbols(node) | _functions(node) for node in nodes))


def _functions(node: Node) -> frozenset[str]:
    applied = frozenset([key(node)]) if node.kind == "app" else frozenset[str]()
    return applied.union(*map(_functions, children(node)))


def _variable_map(left: Node, right: Node) -> dict[str, Node] | None:
    """The variables of f(n) in terms of those of f(x), those of a_n in terms of a_k; None if they are others."""
    if left.kind == right.kind == "app":
        inner = [node.args[1].args[0] if node.args[1].kind == "list" else (node.args[1],) for node in (left, right)]
        truth_names, answer_names = ([part for part in parts if part.kind == "sym"] for parts in inner)
        if len(truth_names) == len(inner[0]) == len(answer_names) == len(inner[1]):
            return {name.args[0]: value for name, value in zip(answer_names, truth_names, strict=True)}
    if left.kind == right.kind == "sym":
        (head, mark, index), (answer_head, _, answer_index) = (node.args[0].partition("_") for node in (left, right))
        if mark and head == answer_head and index.isalpha() and answer_index.isalpha():
            return {answer_index: sym(index)}
    return None


def _memberwise(truth_members: Sequence[Node], answer_members: Sequence[Node]) -> bool:
    return len(truth_members) == len(answer_members) and all(
        same_answer(left, right) for left, right in zip(truth_members, answer_members, strict=True)
    )


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


def _is_assignment(node: Node) -> bool:
    return node.kind == "rel" and node.args[0] == ("=",) and node.args[1][0].kind in _NAMES
