"""The number sets that the names of a family range over."""

from __future__ import annotations

from mathrl.grading.evaluate import Refused, exact_value
from mathrl.grading.syntax import Node, is_expression, num, substitute, sym, symbols

_DOMAINS = {"N^+": "Z+", "N+": "Z+", "N^*": "Z+", "N*": "Z+", "Z^+": "Z+", "Z_+": "Z+", "Z^{+}": "Z+", "Z_>0": "Z+"}
_DOMAINS |= {"N_0": "N0", "Z_ge0": "N0", "Z_geq0": "N0", "Z^ge0": "N0", "Z_>=0": "N0", "N_+": "Z+", "N_>0": "Z+"}
INTEGERS = frozenset(["Z", "N", "Z+", "N0"])


def domain_of(node: Node) -> str | None:
    """The name of a number set: "Z" for \\mathbb{Z}, "Z+" for \\mathbb{N}^*; None for other nodes."""
    if node.kind == "reals":
        return "R"
    if node.kind == "sym" and node.args[0].startswith("set:"):
        name: str = node.args[0][4:]
        return _DOMAINS.get(name, name)
    return None


def domain_clause(clause: Node) -> tuple[str, str] | None:
    r"""("k", "Z") of k \in \mathbb{Z}, or of "k is an integer"."""
    if clause.kind == "rel" and clause.args[0] == ("in",) and clause.args[1][0].kind == "sym":
        domain = domain_of(clause.args[1][1])
        return (clause.args[1][0].args[0], domain) if domain is not None and domain != "R" else None
    if clause.kind == "unit" and clause.args[0].kind == "sym":
        words = clause.args[1].lower().replace("-", "").removeprefix("is ").removeprefix("an ").removeprefix("any ")
        domain = _IN_WORDS.get(words.removeprefix("a ").removesuffix("s"))
        return (clause.args[0].args[0], domain) if domain else None
    return None


_IN_WORDS = {"integer": "Z", "positive integer": "Z+", "natural number": "N", "nonnegative integer": "N0"}
_IN_WORDS |= {"natural": "N", "whole number": "N0"}


def as_congruence(node: Node) -> Node:
    """4 | p - 1 as p = 1 (mod 4); any other node as it is."""
    if node.kind != "rel" or node.args[0] != ("mid",):
        return node
    modulus, value = node.args[1]
    names = symbols(value)
    if modulus.kind != "num" or len(names) != 1 or not is_expression(value):
        return node
    (name,) = names
    try:
        at = [exact_value(substitute(value, {name: num(i)})) for i in (0, 1, 3)]
    except Refused:
        return node
    if at[0] is None or at[1] is None or at[1] - at[0] != 1 or at[2] != at[0] + 3:
        return node
    return Node("rel", (("==",), (sym(name), Node("op", ("mod", num(-at[0]), modulus)))))
