"""The items of a list: both signs of a plus-minus, progressions with an ellipsis, labels and assignments."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from mathrl.grading.relations import is_assignment, is_forgiven
from mathrl.grading.syntax import (
    Node,
    choose_sign,
    find,
    is_expression,
    key,
    kinds,
    neg,
    num,
    rebuild,
    substitute,
    sym,
    symbols,
)
from mathrl.grading.units import meaning


def both_signs(node: Node) -> list[Node]:
    """Both values of an expression with a plus-minus sign in it, or the four of one with two."""
    if "pm" not in kinds(node):
        return [node]
    if node.kind == "rel" and is_assignment(node):
        return both_signs(node.args[1][1])
    if node.kind == "tuple" and sum(1 for _ in find(node, "pm")) == 1:
        return [choose_sign(node, False), choose_sign(node, True)]
    if node.kind in ("tuple", "matrix", "rel", "list", "set", "union"):
        return [node]
    signs = [sign.args[0] for sign in find(node, "pm")]
    if signs in (["pm"] * 2, ["pm"] * 3):  # \pm 1 \pm i are four values, a \mp beside a \pm has the opposite sign
        return list(dict.fromkeys(_independent_signs(node)))
    return list(dict.fromkeys([choose_sign(node, False), choose_sign(node, True)]))


def _independent_signs(node: Node) -> list[Node]:
    first = next(find(node, "pm"), None)
    if first is None:
        return [node]

    def with_value(part: Node, value: Node) -> Node:
        return value if part == first else rebuild(part, lambda inner: with_value(inner, value))

    inside = first.args[1]
    return [each for value in (inside, neg(inside)) for each in _independent_signs(with_value(node, value))]


# Names that stand for the nouns of an answer in words.
_NOUN_OF = {"q": "quotient", "r": "remainder", "\\mu": "mean", "\\sigma": "deviation standard"}


def _labels(items: Sequence[Node]) -> list[str] | None:
    r"""What each item is said to be: max = 3, \text{mean } 5, q(x) = x + 1; None where an item does not say it."""
    names = []
    for item in items:
        if is_assignment(item):
            name = item.args[1][0]
            said = meaning(name.args[0]) if name.kind == "text" else None
            label = (
                " ".join(sorted(said.names))
                if said and said.names and not said.rest
                else key(name).replace("text(min)", "minimum")
            )
            names.append(_NOUN_OF.get(label.lower() if len(label) == 1 else label, label))
        elif item.kind == "unit" and (said := meaning(item.args[1])).names and not said.dimension and not said.rest:
            names.append(" ".join(sorted(said.names)))
        else:
            return None
    return names if len({*names}) == len(names) else None


def without_index(items: list[Node], others: list[Node]) -> list[Node]:
    """x_1 = 2, x_2 = 3 as x = 2, x = 3 beside values of one x."""
    names = [str(item.args[1][0].args[0]) for item in items]
    single = {str(item.args[1][0].args[0]) for item in others}
    if len(single) != 1 or sorted(names) != [f"{min(single)}_{n + 1}" for n in range(len(names))] or len(names) < 2:
        return items
    return [Node("rel", (("=",), (sym(min(single)), item.args[1][1]))) for item in items]


def progression(items: Sequence[Node]) -> tuple[Any, ...] | None:
    r"""First term, step and last term of 1, 3, 5, \ldots, 99, whose last term may be left out."""
    place = next((i for i, item in enumerate(items) if item.kind == "ellipsis"), 0)
    if place < 2 or len(items) > place + 2 or any(item.kind != "num" for item in items[:place]):
        return None
    terms = [item.args[0] for item in items[:place]]
    steps = {later - earlier for earlier, later in pairwise(terms)}
    return (terms[0], steps.pop(), *map(key, items[place + 1 :])) if len(steps) == 1 else None


def written_out(items: list[Node]) -> list[Node]:
    r"""1, 2, \ldots, 6 with the terms that are left out; items as they are where that cannot be told."""
    place = next((i for i, item in enumerate(items) if item.kind == "ellipsis"), 0)
    terms = progression(items)
    if place == 1 and len(items) == 3 and items[0].kind == "num":
        terms = (items[0].args[0], Fraction(1), key(items[2]))
    if terms is None or len(items) != place + 2 or items[-1].kind != "num" or not terms[1]:
        return items
    first, step, last = terms[0], terms[1], items[-1].args[0]
    count = (last - first) / step
    if count.denominator != 1 or not place <= count < 200:
        return items
    return [num(first + i * step) for i in range(int(count) + 1)]


def by_label(truth_items: list[Node], answer_items: list[Node]) -> tuple[list[Node], list[Node]] | None:
    """The values in one order where words name them on a side: by the words, or as they stand beside other names."""
    if len(truth_items) != len(answer_items) or len(truth_items) < 2:
        return None
    own, other = _labels(truth_items), _labels(answer_items)
    if own is None or other is None:
        bare = answer_items if other is None else truth_items
        worded = truth_items if other is None else answer_items
        if (own is None) == (other is None) or not all(map(is_expression, bare)) or not all(map(_by_words, worded)):
            return None
        return [_labelled_value(item) for item in truth_items], [_labelled_value(item) for item in answer_items]
    if not any(map(_by_words, (*truth_items, *answer_items))):
        return None
    bare, other_bare = ([_labelled_value(item) for item in items] for items in (truth_items, answer_items))
    if {*own} == {*other}:
        return bare, [other_bare[other.index(name)] for name in own]
    return ([], []) if {*own} & {*other} else (bare, other_bare)


def _by_words(item: Node) -> bool:
    return item.kind == "unit" or (item.kind == "rel" and bool(item.args[1][0].kind == "text"))


def _labelled_value(item: Node) -> Node:
    if item.kind not in ("rel", "unit"):
        return item
    return item.args[1][1] if item.kind == "rel" else item.args[0]  # type: ignore[no-any-return]


def listed_set(node: Node) -> Node:
    r"""\{2k : k \in \{1, 2, 3\}\} with its members one by one; any other node as it is."""
    if node.kind != "builder":
        return node
    pattern, clauses, joiner = node.args
    domains = [part for part in clauses if part.kind == "rel" and part.args[0] == ("in",)]
    ranges = [part for part in domains if part.args[1][1].kind == "set"]
    defined = [part for part in clauses if part not in ranges]
    if len(ranges) != 1 or ranges[0].args[1][0].kind != "sym" or joiner == "or" or len(defined) > 1:
        return node
    for part in defined:
        if part.kind != "rel" or part.args[0] != ("=",) or part.args[1][0] != pattern:
            return node
        pattern = part.args[1][1]
    name, members = ranges[0].args[1][0].args[0], written_out(list(ranges[0].args[1][1].args[0]))
    if symbols(pattern) != {name} or any(map(symbols, members)) or any(member.kind == "ellipsis" for member in members):
        return node
    return Node("set", (tuple(substitute(pattern, {name: member}) for member in members),))


def values_of(items: list[Node]) -> list[Node]:
    """x_1 = 2, x_2 = 3 as 2, 3; groups of assignments as tuples of their values."""
    values = []
    for item in items:
        if is_assignment(item) and is_forgiven(item.args[1][0]):
            values.append(item.args[1][1])
        elif item.kind == "list":
            values.append(Node("tuple", ("(", ")", tuple(assigned_values(item.args[0]) or item.args[0]))))
        else:
            values.append(item)
    return values


def assigned_values(items: Sequence[Node]) -> list[Node] | None:
    """The values of assignments to different names, in the order of the names."""
    if not all(is_assignment(item) for item in items):
        return None
    named = sorted((key(item.args[1][0]), i) for i, item in enumerate(items))
    if len({name for name, _ in named}) < len(items):
        return None
    return [items[i].args[1][1] for _, i in named]


def by_unit(items: list[Node]) -> dict[str, Node]:
    """7 goats and 4 helicopters by the words."""
    return {item.args[1].lower(): item for item in items if item.kind == "unit"}


def flatten(parts: Sequence[Node]) -> list[Node]:
    """(1,1;2,2) read as (1,1,2,2)."""
    return [inner for part in parts for inner in (part.args[0] if part.kind == "list" else (part,))]
