"""Statements of logic: for all and for some, and, or, not."""

from __future__ import annotations

from collections.abc import Callable

from mathrl.grading.relations import Same, same_relation
from mathrl.grading.syntax import Node, explain, find, key, substitute, sym, symbols

_OPPOSITE = {"forall": "exists", "exists": "forall"}
InAnyOrder = Callable[[list[Node], list[Node]], bool | None]


def bound_names(node: Node) -> list[tuple[str, str]]:
    """The quantifiers of a statement with the names that they bind: [("exists", "x")]."""
    found = [part for part in find(node, "app") if part.args[0] in ("exists", "forall", "nexists")]
    return [(part.args[0], key(part.args[1].args[0][0])) for part in found]


def same_quantified(truth: Node, answer: Node, same: Same) -> bool:
    """Two statements of all or some x: the same quantifiers in their order, whatever the names are, and equal parts."""
    own, other = bound_names(truth), bound_names(answer)
    if [kind for kind, _ in own] != [kind for kind, _ in other]:
        explain("for all / for some")
        return False
    renaming = {name: sym(new) for (_, name), (_, new) in zip(other, own, strict=True) if name != new}
    if any(new.args[0] in symbols(answer) and new.args[0] not in renaming for new in renaming.values()):
        return False
    statements = [node.args[0] if node.kind == "list" else (node,) for node in (truth, substitute(answer, renaming))]
    if len(statements[0]) != len(statements[1]):
        return False
    return all(_same_clause(own, other, same) for own, other in zip(*statements, strict=True))


def _same_clause(truth: Node, answer: Node, same: Same) -> bool:
    if key(truth) == key(answer):
        return True
    if bound_names(truth) or bound_names(answer):
        return False
    return truth.kind == answer.kind == "rel" and bool(same_relation(truth, answer, same))


def push_negation(node: Node) -> Node:
    """not (p and q) as (not p) or (not q), and not not p as p: De Morgan's laws."""
    if len(node.args[1].args[0]) != 1:
        return node
    denied = node.args[1].args[0][0]
    if denied.kind == "logic" and denied.args[0] in ("and", "or"):
        parts = tuple(Node("app", ("neg", Node("list", ((part,),)))) for part in denied.args[1])
        return Node("logic", ("or" if denied.args[0] == "and" else "and", parts))
    if denied.kind == "app" and denied.args[0] in _OPPOSITE and len(denied.args[1].args[0]) == 2:
        name, clause = denied.args[1].args[0]
        opposite = push_negation(Node("app", ("neg", Node("list", ((clause,),)))))
        return Node("app", (_OPPOSITE[denied.args[0]], Node("list", ((name, opposite),))))
    if denied.kind == "app" and denied.args[0] == "neg" and len(denied.args[1].args[0]) == 1:
        inner: Node = denied.args[1].args[0][0]
        return push_negation(inner) if inner.kind == "app" and inner.args[0] == "neg" else inner
    return node


def same_logic(truth: Node, answer: Node, in_any_order: InAnyOrder) -> bool | None:
    """p and q, p or q: the same connective, in any order."""
    parts = []
    for node in (truth, answer):
        if node.kind == "logic":
            parts.append(node.args)
        elif node.kind == "list" and len(node.args) > 1:
            parts.append((node.args[1], node.args[0]))
        else:
            return False
    if parts[0][0] != parts[1][0]:
        explain("and / or")
        return False
    return in_any_order(list(parts[0][1]), list(parts[1][1]))
