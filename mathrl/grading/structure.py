"""Two parsed answers: lists, tuples, sets, matrices element by element, equations and inequalities, and values.

House rules: a bare list is unordered (1,2 = 2,1), a tuple is ordered, a tuple is never a set; a bare list in
the tuple's own order may stand for the tuple; ``k=1`` may stand for 1, ``0<x<1`` for (0,1), ``x=1,y=2`` for (1,2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mathrl.grading.affine import same_affine
from mathrl.grading.domains import as_congruence
from mathrl.grading.evaluate import Refused, check_clock
from mathrl.grading.families import same_family
from mathrl.grading.lists import (
    assigned_values,
    both_signs,
    by_label,
    by_unit,
    flatten,
    listed_set,
    progression,
    values_of,
    without_index,
    written_out,
)
from mathrl.grading.names import align_names
from mathrl.grading.relations import is_assignment, same_relation
from mathrl.grading.scalar import carried_out, letters_in_formula, refuse_restated, same_scalar, spelled_out
from mathrl.grading.sets import INEQUALITIES, NotASet, is_contradiction, real_set, same_members, same_real_set
from mathrl.grading.statements import bound_names, push_negation, same_logic, same_quantified
from mathrl.grading.syntax import Node, choose_sign, explain, is_expression, key, kinds, num, same_tree, sym, symbols

MAX_ITEMS = 200
_PARAMETERS = frozenset(["t", "s", "k", "r", "c", "a", "\\lambda", "\\mu", "\\alpha", "\\beta"])
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
    if same_tree(truth, answer):
        return True
    if bound_names(truth) or bound_names(answer):
        truth, answer = (
            push_negation(node) if node.kind == "app" and node.args[0] == "neg" else node for node in (truth, answer)
        )
        return same_quantified(truth, answer, same_answer)
    truth, answer = listed_set(as_congruence(truth)), listed_set(as_congruence(answer))
    verdict = same_affine(truth, answer)
    if verdict is not None:
        return verdict
    verdict = same_family(truth, answer, same_answer)
    if verdict is not None:
        return verdict
    if letters_in_formula(truth) or letters_in_formula(answer):
        truth, answer = spelled_out(truth), spelled_out(answer)
    if "unit" in (kinds(truth) | kinds(answer)) and "unit" not in (truth.kind, answer.kind):
        truth, answer = (spelled_out(node) if symbols(node) else node for node in (truth, answer))
    truth, answer = align_names(truth, answer)
    labels = [_label_of_list(node) for node in (truth, answer)]
    if all(labels) and labels[0] != labels[1]:
        return False
    truth, answer = _simplify(truth), _simplify(answer)
    truth, answer = _apart(truth, answer), _apart(answer, truth)
    truth, answer = _without_point(truth, answer), _without_point(answer, truth)
    answer = carried_out(answer, truth)
    if "logic" in (truth.kind, answer.kind):
        return same_logic(truth, answer, _in_any_order)
    verdict = _as_real_sets(truth, answer)
    if verdict is not None:
        return verdict
    verdict = same_members(truth, answer)
    if verdict is not None:
        return verdict
    if truth.kind == answer.kind and truth.kind in ("union", "inter"):
        return _in_any_order(_parts_of_union(truth, truth.kind), _parts_of_union(answer, truth.kind))
    if truth.kind in _SETS or answer.kind in _SETS:
        counterpart = answer if truth.kind in _SETS else truth
        if is_expression(counterpart) or counterpart.kind == "matrix":
            return False
    if truth.kind == answer.kind == "unit" and truth.args[0].kind in (*_SETS, "set", "list", "tuple", "matrix"):
        return truth.args[1:] == answer.args[1:] and same_answer(truth.args[0], answer.args[0])
    curves = [_curves(node) for node in (truth, answer)]
    if "rel" in (truth.kind, answer.kind) and len(curves[0]) == len(curves[1]) == 2 and _in_any_order(*curves):
        return True
    if truth.kind == "rel" or answer.kind == "rel":
        return same_relation(truth, answer, same_answer)
    truth_items, answer_items = _items(truth), _items(answer)
    for node, items in ((truth, answer_items), (answer, truth_items)):
        if node.kind == "tuple" and items is not None and len(spread := both_signs(node)) == 2:
            return _in_any_order(spread, items)
    if truth.kind == "tuple" or answer.kind == "tuple":
        return _tuples(truth, answer)
    if truth.kind == "matrix" or answer.kind == "matrix":
        return _matrices(truth, answer)
    if truth_items is not None or answer_items is not None:
        lists = [[node] if items is None else items for node, items in ((truth, truth_items), (answer, answer_items))]
        return _collections(truth, answer, *lists)
    if all(node.kind == "mul" and [part.kind for part in node.args[0]] == ["sym", "tuple"] for node in (truth, answer)):
        (name, inside), (other, other_inside) = truth.args[0], answer.args[0]  # N(0, 4)
        return name == other and _tuples(inside, other_inside)
    if truth.kind == "base" and answer.kind == "base" and truth.args[1] == answer.args[1]:
        return truth.args[0].lstrip("0") == answer.args[0].lstrip("0")  # type: ignore[no-any-return]
    if truth.kind == "text" or answer.kind == "text":
        return truth.kind == answer.kind and truth.args[0].lower() == answer.args[0].lower()
    return same_scalar(truth, answer)


def _parts_of_union(node: Node, kind: str) -> list[Node]:
    """The sets of a union, or of an intersection, of several."""
    return [part for arg in node.args for part in _parts_of_union(arg, kind)] if node.kind == kind else [node]


def _label_of_list(node: Node) -> str:
    """The x of x = 1, 2 and of x in {1, 2}, or ""."""
    relation = node.args[0][0] if node.kind == "list" and len({part.kind for part in node.args[0]}) > 1 else node
    if relation.kind == "rel" and relation.args[0] in (("=",), ("in",)) and relation.args[1][0].kind == "sym":
        return str(relation.args[1][0].args[0]) if relation is not node or relation.args[0] == ("in",) else ""
    return ""


def _is_scalar(node: Node) -> bool:
    """Whether a factor before a tuple scales it: a number, or a letter of parameters; f(1,2) and N(0,4) are none."""
    return symbols(node) <= _PARAMETERS


def _simplify(node: Node) -> Node:
    """Without a set of one element, a label list ("k = 1, 2, 3"), or a scalar before a matrix."""
    if node.kind == "set" and len(node.args[0]) == 1 and node.args[0][0].kind not in ("rel", "set", "builder"):
        return _simplify(node.args[0][0])
    if node.kind == "pow" and node.args[1].kind == "num" and node.args[0].kind == "sym":
        chosen = re.fullmatch(r"([CAP])_(\d{1,3})", node.args[0].args[0])
        if chosen and 0 <= node.args[1].args[0] <= int(chosen[2]):
            subsets = Node("binom", (num(int(chosen[2])), node.args[1]))
            return subsets if chosen[1] == "C" else Node("mul", ((subsets, Node("fact", (node.args[1],))),))
    if node.kind == "mul" and node.args[0][-1].kind == "tuple" and all(map(_is_scalar, node.args[0][:-1])):
        *scalars, vector = node.args[0]
        cells = tuple(Node("mul", ((*scalars, cell),)) for cell in vector.args[2])
        return Node("tuple", (*vector.args[:2], cells))
    if node.kind == "mul":
        matrices = [factor for factor in node.args[0] if factor.kind == "matrix"]
        if len(matrices) == 1:
            scalars = tuple(factor for factor in node.args[0] if factor.kind != "matrix")
            rows = tuple(tuple(Node("mul", ((*scalars, cell),)) for cell in row) for row in matrices[0].args[0])
            return Node("matrix", (rows,))
    if node.kind == "list":
        first, *rest = node.args[0]
        if is_assignment(first) and all(part.kind not in ("rel", "list") for part in rest):
            return Node("list", ((first.args[1][1], *rest),))
    if node.kind == "rel" and node.args[0] == ("!=",) and "pm" in kinds(node.args[1][1]):
        left, right = node.args[1]
        holes = tuple(Node("rel", (("!=",), (left, choose_sign(right, sign)))) for sign in (False, True))
        return Node("list", (holes,))
    if node.kind == "app" and node.args[0] == "neg":
        return push_negation(node)
    if node.kind == "rel" and node.args[0] == ("in",) and node.args[1][1].kind == "set":
        return node.args[1][1]  # type: ignore[no-any-return]
    return node


def _without_point(node: Node, other: Node) -> Node:
    """P(-1, 4) as (-1, 4) beside a tuple."""
    if other.kind != "tuple" or node.kind not in ("app", "mul"):
        return node
    name, *inside = node.args if node.kind == "app" else node.args[0]
    if node.kind == "mul":
        name = name.args[0] if name.kind == "sym" else ""
    elif len(inside) == 1 and inside[0].kind == "list":
        inside = [Node("tuple", ("(", ")", inside[0].args[0]))]
    point = len(inside) == 1 and inside[0].kind == "tuple" and not symbols(inside[0])
    return inside[0] if point and len(name.rstrip("'")) == 1 and name[0].isupper() else node


def _apart(node: Node, other: Node) -> Node:
    """x = y = 1 as x = 1, y = 1 beside a tuple or several assignments."""
    several = other.kind == "tuple" or (other.kind == "list" and all(map(is_assignment, other.args[0])))
    several = several or (other.kind == "rel" and other.args[1][0].kind == "tuple")
    if not several or node.kind != "rel" or len(node.args[0]) < 2 or set(node.args[0]) != {"="}:
        return node
    *names, value = node.args[1]
    if len({key(name) for name in names}) < len(names) or any(name.kind != "sym" for name in names) or symbols(value):
        return node
    assigned = tuple(Node("rel", (("=",), (name, value))) for name in names)
    if other.kind == "rel":
        return Node(
            "rel", (("=",), (Node("tuple", ("(", ")", tuple(names))), Node("tuple", ("(", ")", (value,) * len(names)))))
        )
    return Node("list", (assigned,))


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
    bounded = [node.kind == "list" or (node.kind == "rel" and "in" not in node.args[0]) for node in both]
    if all(bounded) and symbols(truth) != symbols(answer):
        return False
    try:
        truth_set, answer_set = real_set(truth), real_set(answer)
        if is_contradiction(answer) and not is_contradiction(truth):  # data sets write "and" for "or"
            explain("and / or")
            return False
    except NotASet:
        return None
    return same_real_set(truth_set, answer_set)


def _items(node: Node) -> list[Node] | None:
    """The elements of a list or set, plus-minus written out; None for a single value."""
    if node.kind in ("list", "set"):
        elements: list[Node] = []
        for part in node.args[0]:
            elements.extend(both_signs(part))
        return elements
    spread = both_signs(node)
    return spread if len(spread) > 1 else None


def _curves(node: Node) -> list[Node]:
    """The equations of an answer: both of one with a plus-minus sign, those of a list."""
    if node.kind == "rel" and node.args[0] == ("=",) and "pm" in kinds(node):
        return [choose_sign(node, False), choose_sign(node, True)]
    return list(node.args[0]) if node.kind == "list" and all(part.kind == "rel" for part in node.args[0]) else []


def _collections(truth: Node, answer: Node, truth_items: list[Node], answer_items: list[Node]) -> bool | None:
    if len(truth_items) > MAX_ITEMS or len(answer_items) > MAX_ITEMS:
        raise Refused("a list too long")
    if (ordered := by_label(truth_items, answer_items)) is not None:
        return _in_order(*ordered) if ordered[0] else False
    if all(is_assignment(part) for part in (*truth_items, *answer_items)):
        truth_items, answer_items = without_index(truth_items, answer_items), without_index(answer_items, truth_items)
        named = [{key(part.args[1][0]): part for part in items} for items in (truth_items, answer_items)]
        if named[0].keys() == named[1].keys() and len(named[0]) == len(truth_items) == len(answer_items):
            return _in_order(list(named[0].values()), [named[1][name] for name in named[0]])
        return _in_any_order(truth_items, answer_items)
    joiners = [node.args[1] for node in (truth, answer) if node.kind == "list" and len(node.args) > 1]
    every = (*truth_items, *answer_items)
    bounds = all(item.kind == "rel" and INEQUALITIES & set(item.args[0]) for item in every)
    if joiners in (["and", "or"], ["or", "and"]) and (bounds or all(item.kind == "sym" for item in every)):
        explain("and / or")
        return False
    if all(item.kind == "rel" and item.args[0] == ("=",) and len(item.args[1]) == 2 for item in every):
        labelled = [{key(item.args[1][0]): item.args[1][1] for item in items} for items in (truth_items, answer_items)]
        if labelled[0].keys() == labelled[1].keys() and len(labelled[0]) == len(truth_items) == len(answer_items):
            return _in_order(list(labelled[0].values()), [labelled[1][name] for name in labelled[0]])
        if _in_any_order(truth_items, answer_items):
            return True
    progressions = [progression(items) for items in (truth_items, answer_items)]
    if all(progressions):
        return progressions[0] == progressions[1]
    truth_items, answer_items = written_out(truth_items), written_out(answer_items)
    both = (truth_items, answer_items)
    bounded = [any("rel" in kinds(item) and not is_assignment(item) for item in items) for items in both]
    if all(bounded) and symbols(truth) != symbols(answer):
        return False
    truth_items, answer_items = values_of(truth_items), values_of(answer_items)
    if "set" in (truth.kind, answer.kind):
        if _in_any_order(truth_items, answer_items):  # mostly by their texts, where repeats take n² comparisons
            return True
        truth_items, answer_items = _drop_repeats(truth_items), _drop_repeats(answer_items)
    return _in_any_order(truth_items, answer_items)


def _drop_repeats(items: list[Node]) -> list[Node]:
    first: dict[str, Node] = {}
    for item in items:
        first.setdefault(key(item), item)
    distinct: list[Node] = []
    for item in first.values():
        if not any(
            not _other_number(seen, item) and symbols(item) == symbols(seen) and same_answer(seen, item)
            for seen in distinct
        ):
            distinct.append(item)
    return distinct


def _other_number(first: Node, second: Node) -> bool:
    """Whether both are plain numbers, and different: told at once, as a set of 100 numbers has 5,000 pairs."""
    return first.kind == second.kind == "num" and first.args[0] != second.args[0] and not first.args[1] | second.args[1]


def _in_any_order(truth_items: list[Node], answer_items: list[Node]) -> bool | None:
    if len(truth_items) != len(answer_items):
        return False
    truth_counts, answer_counts = by_unit(truth_items), by_unit(answer_items)
    if len(truth_items) > 1 and truth_counts.keys() == answer_counts.keys() and len(truth_counts) == len(truth_items):
        return _in_order(list(truth_counts.values()), [answer_counts[word] for word in truth_counts])
    unmatched, unknown = list(answer_items), False
    for item in truth_items:
        index = next((i for i, candidate in enumerate(unmatched) if key(candidate) == key(item)), None)
        if index is None:
            for i, candidate in enumerate(unmatched):
                # \{\{1\}\} is not \{1\}
                if (item.kind == "set") != (candidate.kind == "set") or _other_number(item, candidate):
                    continue
                verdict = same_answer(item, candidate)
                if verdict:
                    index = i
                    break
                unknown = unknown or verdict is None
        if index is None:
            return None if unknown else False
        unmatched.pop(index)
    return True


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


def _tuples(truth: Node, answer: Node) -> bool | None:
    if truth.kind == answer.kind:
        truth_parts, answer_parts = flatten(truth.args[2]), flatten(answer.args[2])
        if len(truth_parts) <= 2 and truth.args[:2] != answer.args[:2]:
            return False
        return _in_order(truth_parts, answer_parts)
    tuple_node, counterpart = (truth, answer) if truth.kind == "tuple" else (answer, truth)
    tuple_parts = flatten(tuple_node.args[2])

    def truth_first(own: Any, other: Any) -> tuple[Any, Any]:
        return (own, other) if tuple_node is truth else (other, own)

    if counterpart.kind == "list":
        if tuple_node.args[:2] != ("(", ")") and len(tuple_parts) < 3:  # an interval
            return False
        return _in_order(*truth_first(tuple_parts, assigned_values(counterpart.args[0]) or counterpart.args[0]))
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


def _identity(node: Node, size: int) -> Node | None:
    """2I_3, the identity matrix with a factor, as a matrix."""
    *factors, last = node.args[0] if node.kind == "mul" else (node,)
    if last not in (sym("I"), sym(f"I_{size}")) or not all(map(is_expression, factors)):
        return None
    scalar = Node("mul", (tuple(factors),)) if factors else num(1)
    return Node("matrix", (tuple(tuple(scalar if i == k else num(0) for k in range(size)) for i in range(size)),))


def _matrices(truth: Node, answer: Node) -> bool | None:
    if truth.kind != answer.kind:
        counterpart = answer if truth.kind == "matrix" else truth
        if (scaled := _identity(counterpart, len((truth if truth.kind == "matrix" else answer).args[0]))) is not None:
            return _matrices(*((truth, scaled) if counterpart is answer else (scaled, answer)))
        if {"matrix", "op"} & kinds(counterpart):
            refuse_restated(truth, answer)
            return None
        return False
    truth_rows, answer_rows = truth.args[0], answer.args[0]
    if [len(row) for row in truth_rows] != [len(row) for row in answer_rows]:
        return False
    return _in_order([cell for row in truth_rows for cell in row], [cell for row in answer_rows for cell in row])
