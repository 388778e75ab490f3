"""The relation, set and constant names that the grammar knows."""

from __future__ import annotations

from mathrl.grading.syntax import EMPTY_SET, INFINITY, Node

RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "le": "<=", "leq": "<=", "leqslant": "<=",
    "leqq": "<=",
    "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=", "lt": "<", "gt": ">", "ne": "!=", "neq": "!=",
    "\\ne": "!=", "approx": "~", "simeq": "~", "cong": "~", "sim": "~", "equiv": "==", "in": "in",
    "coloneqq": "=",
    "to": "->", "rightarrow": "->", "mapsto": "->", "implies": "=>", "Rightarrow": "=>", "=>": "=>",
    "notin": "notin", "subset": "sub", "subseteq": "sub", "mid": "mid", "perp": "perp", "parallel": "par",
}  # fmt: skip
SET_OPS = {"cup": "union", "cap": "inter", "setminus": "minus", "backslash": "minus", "bigcup": "union"}
CONSTANTS = {"pi": Node("const", ("pi",)), "infty": INFINITY, "emptyset": EMPTY_SET, "varnothing": EMPTY_SET}
