r"""Families and set-builders: a pattern, the domains of its bound names, and conditions.

2k+1, k \in \mathbb{Z}   ->   Family((2k+1,), {"k": "Z"}, ())
x \equiv 3 \pmod 7       ->   Family((7t+3,), {"t": "Z"}, ())
\{n \in \mathbb{N} : n even\}   ->   Family((n,), {"n": "N"}, (n even,))

Two of them are equal if their parts are, under some naming of the bound names; if they are unions of the same
arithmetic progressions (7k-4 and 7k+3, pi/2 + k pi and -pi/2 + k pi); or, where all is about integers of moderate size,
if they have the same members in a window that is longer than every period. Nothing else is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import permutations
from typing import NamedTuple

from mathrl.grading.domains import INTEGERS, domain_clause, domain_of
from mathrl.grading.lists import progression
from mathrl.grading.points import INTEGER_NAMES
from mathrl.grading.progressions import MODERATE, WINDOW, Pair, members_in_window, progressions_of, same_progressions
from mathrl.grading.syntax import Node, explain, is_expression, key, kinds, num, substitute, sym, symbols

Same = Callable[[Node, Node], bool | None]


class Family(NamedTuple):
    """`values` by pattern; `domains` of bound names, "" where none is stated; `conditions` that must hold together.

    `subject` is the x of "x = …".
    """

    values: tuple[Node, ...]
    domains: dict[str, str]
    conditions: tuple[Node, ...]
    subject: str = ""


_BOUND = "t"


def is_family(node: Node) -> bool:
    """Whether a tree states a set-builder, a family with a domain, or a congruence."""
    if node.kind == "builder":
        return True
    if node.kind == "list":
        if _congruences(node) is not None:
            return True
        return any(domain_clause(part) is not None for part in _clauses(node)) or _counter(node.args[0]) is not None
    if node.kind == "rel":
        return _congruences(node) is not None
    return (domain_of(node) or "") in INTEGERS


def same_family(truth: Node, answer: Node, same: Same) -> bool | None:
    """Whether two answers, at least one of which states a family, are the same set; None where neither does."""
    if not is_family(truth) and not is_family(answer):
        return _same_periods(truth, answer)
    first, second = read_family(truth), read_family(answer)
    for own, other, counterpart in ((first, second, answer), (second, first, truth)):
        if other is None and own is not None:
            borrowed = _endless(counterpart) or _with_domains_of(own, counterpart)
            if borrowed is None:
                return _finite_members(own, counterpart, same)
            first, second = (own, borrowed) if own is first else (borrowed, own)
    if first is None or second is None:
        return False
    if first.subject and second.subject and first.subject != second.subject:
        explain(f"another name: {first.subject} / {second.subject}")
        return False
    if _same_parts(first, second, same):
        return True
    progressions, others = _all_integers(first), _all_integers(second)
    if progressions is not None and others is not None:
        return same_progressions(progressions, others)
    members, other_members = _members(first), _members(second)
    if members is not None and other_members is not None:
        return members == other_members
    explain("another pattern, domain or condition")
    return False


def _clauses(node: Node) -> list[Node]:
    r"""The clauses of a list, those of x = k\pi or (x = 1, k \in \mathbb{Z}) too, where each part has one value."""
    clauses: list[Node] = []
    for part in node.args[0]:
        inner = list(part.args[0]) if part.kind == "list" else [part]
        if sum(domain_clause(clause) is None for clause in inner) > 1:
            return list(node.args[0])
        clauses += inner
    return clauses


def _counter(clauses: Sequence[Node]) -> tuple[int, str, str] | None:
    """Where k = 0, 1, 2, … begins among the clauses, the name, and the domain."""
    if len(clauses) < 3 or clauses[-1].kind != "ellipsis":
        return None
    for i, clause in enumerate(clauses[1:], start=1):
        if clause.kind == "rel" and clause.args[0] == ("=",) and clause.args[1][0].kind == "sym":
            signs = any(part.kind == "pm" for part in clauses[i:])
            begin = clause.args[1][1]
            listed = [part.args[0] for part in clauses[i + 1 : -1] if part.kind == "num"]
            if not signs and (
                begin.kind != "num" or listed != [begin.args[0] + n for n in range(1, len(clauses) - i - 1)]
            ):
                return None
            domain = "Z" if signs else {"0": "N0", "1": "Z+"}.get(key(begin))
            return (i, clause.args[1][0].args[0], domain) if domain else None
    return None


def read_family(node: Node) -> Family | None:
    """The family that a tree states, or None."""
    if node.kind == "builder":
        return _read_builder(node)
    _, domain = domain_clause(node) or ("", domain_of(node))  # n \\in \\mathbb{Z} beside \\mathbb{Z}
    if domain in INTEGERS:
        return Family((sym(_BOUND),), {_BOUND: domain}, ())
    classes = _congruences(node)
    if classes is not None:
        return Family(tuple(classes), {_BOUND: "Z"}, (), _subject(node.args[0] if node.kind == "list" else (node,)))
    if node.kind != "list":
        return None
    clauses = _clauses(node)
    domains: dict[str, str] = {}
    counted = _counter(clauses)
    if counted is not None:
        clauses, domains[counted[1]] = clauses[: counted[0]], counted[2]
    values: list[Node] = []
    conditions: list[Node] = []
    waiting: list[Node] = []
    for clause in clauses:
        found = domain_clause(clause)
        if found is not None:
            domains[found[0]] = found[1]
            domains |= {part.args[0]: found[1] for part in waiting}
            values, waiting = [value for value in values if value not in waiting], []
            continue
        if clause.kind == "sym" and values:  # m of "m, n \in \mathbb{Z}"
            waiting.append(clause)
        elif clause.kind != "sym":
            waiting = []
        (conditions if _is_condition(clause, bool(values)) else values).append(clause)
    used = frozenset[str]().union(*map(symbols, (*map(_assigned_value, values), *conditions)))
    if not domains or not values or not domains.keys() <= used:
        return None
    return _bound_family(tuple(map(_assigned_value, values)), domains, conditions)._replace(subject=_subject(values))


def _subject(clauses: Sequence[Node]) -> str:
    """The one name that all clauses are about, as in x = …, or "" """
    names = {
        clause.args[1][0].args[0] for clause in clauses if clause.kind == "rel" and clause.args[1][0].kind == "sym"
    }
    return names.pop() if len(names) == 1 else ""


def _is_condition(clause: Node, after_values: bool) -> bool:
    if clause.kind == "unit" and clause.args[0].kind == "sym":
        return after_values
    return clause.kind == "rel" and (clause.args[0] != ("=",) or clause.args[1][0].kind != "sym") and after_values


def _assigned_value(value: Node) -> Node:
    """The value of x = …, the interval of x in [k, k + 1] and of k <= x <= k + 1."""
    if value.kind != "rel":
        return value
    operators, members = value.args
    if operators == ("=",) or (operators == ("in",) and members[1].kind == "tuple"):
        return members[1]  # type: ignore[no-any-return]
    if len(operators) == 2 and {*operators} <= {"<", "<="} and members[1].kind == "sym" and symbols(members[0]):
        brackets = "(" if operators[0] == "<" else "[", ")" if operators[1] == "<" else "]"
        return Node("tuple", (*brackets, (members[0], members[2])))
    return value


def _congruences(node: Node) -> list[Node] | None:
    r"""The classes of x \equiv 1, 3 \pmod 8 and of x \equiv 1 \pmod 8 \text{ or } x \equiv 3 \pmod 8."""
    clauses = node.args[0] if node.kind == "list" else (node,)
    if node.kind == "list" and len(node.args) > 1 and node.args[1] == "and":
        return None
    classes: list[Node] = []
    modulus: Node | None = None
    subjects = set[Node]()
    for clause in reversed(clauses):
        value = clause
        if clause.kind == "rel":
            if clause.args[0] != ("==",) or clause.args[1][0].kind != "sym":
                return None
            subject, value = clause.args[1]
            subjects.add(subject)
        if value.kind == "op" and value.args[0] == "mod":
            _, value, modulus = value.args
        if modulus is None or not is_expression(value):
            return None
        classes.append(_class_of(value, modulus))
    return classes if len(subjects) == 1 else None


def _class_of(remainder: Node, modulus: Node) -> Node:
    return Node("add", ((Node("mul", ((modulus, sym(_BOUND)),)), remainder),))


def _read_builder(node: Node) -> Family | None:
    pattern, clauses, joiner = node.args
    domains: dict[str, str] = {}
    if pattern.kind == "rel" and pattern.args[0] == ("in",):
        pattern, domain = pattern.args[1]
        if pattern.kind != "sym":
            return None
        domains[pattern.args[0]] = domain_of(domain) or key(domain)
    if joiner == "or" and len(clauses) > 1:
        clauses = (Node("logic", ("or", clauses)),)
    conditions = []
    for clause in clauses:
        found = domain_clause(clause)
        real = clause.kind == "rel" and clause.args[0] == ("in",) and domain_of(clause.args[1][1]) == "R"
        if found is not None:
            domains[found[0]] = found[1]
        elif real and clause.args[1][0].kind == "sym":
            domains[clause.args[1][0].args[0]] = "R"
        else:
            conditions.append(clause)
    for i, clause in enumerate(conditions):  # \{x : x = 2k, k \in \mathbb{Z}\}, \{x : 2k < x < 2k+1, …\}
        value = _assigned_value(clause)
        if pattern.kind != "sym" or value == clause or pattern not in clause.args[1][:2] or not domains:
            continue
        if pattern.args[0] not in symbols(value):
            domains.pop(pattern.args[0], None)
            pattern, conditions = value, conditions[:i] + conditions[i + 1 :]
            break
    for name in sorted(symbols(pattern)):
        domains.setdefault(name, "")
    return _bound_family((pattern,), domains, conditions)


def _bound_family(values: tuple[Node, ...], domains: dict[str, str], conditions: list[Node]) -> Family:
    """With k >= 0 and k > 0 of integers as domains of their own."""
    kept = []
    for clause in conditions:
        low = None
        if clause.kind == "rel" and clause.args[0] in ((">=",), (">",)) and clause.args[1][0].kind == "sym":
            name, bound = clause.args[1][0].args[0], clause.args[1][1]
            if domains.get(name) in ("Z", "N", "N0") and bound.kind == "num" and bound.args[0] in (0, 1):
                low = bound.args[0] + (clause.args[0] == (">",))
        if low in (0, 1):
            domains[name] = "N0" if low == 0 else "Z+"
        else:
            kept.append(clause)
    return Family(values, domains, tuple(kept))


def _with_domains_of(family: Family, node: Node) -> Family | None:
    """An answer that leaves the domain out, read with the other's: 2k+1 beside 2k+1, k in Z."""
    clauses = node.args[0] if node.kind == "list" else (node,)
    values = tuple(map(_assigned_value, clauses))
    names = frozenset[str]().union(*map(symbols, values))
    bound = [name for name in family.domains if name in names] or sorted(names & INTEGER_NAMES)
    if family.conditions or len(bound) != len(family.domains) or not all(map(_is_value, values)):
        return None
    return Family(values, dict(zip(bound, family.domains.values(), strict=True)), (), _subject(clauses))


def _endless(node: Node) -> Family | None:
    r"""6, 12, 18, \ldots as 6 + 6t for t = 0, 1, 2, …"""
    terms = progression(node.args[0]) if node.kind in ("set", "list") else None
    if terms is None or len(terms) > 2:
        return None
    value = Node("add", ((num(terms[0]), Node("mul", ((num(terms[1]), sym(_BOUND)),))),))
    return Family((value,), {_BOUND: "N0"}, ())


def _is_value(node: Node) -> bool:
    return is_expression(node) or node.kind == "tuple"


def _same_domain(left: str, right: str) -> bool:
    return left == right or (left == "N" and right in ("Z+", "N0")) or (right == "N" and left in ("Z+", "N0"))


def _same_parts(first: Family, second: Family, same: Same) -> bool:
    """Whether a naming of the bound names makes values, domains and conditions the same."""
    names, others = list(first.domains), list(second.domains)
    if len(names) != len(others) or len(names) > 4 or len(first.conditions) != len(second.conditions):
        return False
    free = frozenset[str]().union(*map(symbols, (*second.values, *second.conditions))) - set(others)
    if free & set(names):
        return False
    for naming in permutations(names):
        if not all(
            _same_domain(first.domains[name], second.domains[other]) for name, other in zip(naming, others, strict=True)
        ):
            continue
        renamed = {other: sym(name) for name, other in zip(naming, others, strict=True)}
        values = [substitute(value, renamed) for value in second.values]
        conditions = [substitute(clause, renamed) for clause in second.conditions]
        if _match_all(first.values, values, same) and _match_all(first.conditions, conditions, same):
            return True
    return False


def _match_all(left: Sequence[Node], right: Sequence[Node], same: Same) -> bool:
    unmatched = list(right)
    for part in left:
        found = next((i for i, other in enumerate(unmatched) if key(part) == key(other) or same(part, other)), None)
        if found is None:
            return False
        unmatched.pop(found)
    return not unmatched


def _same_periods(truth: Node, answer: Node) -> bool | None:
    r"""True for pi/2 + k pi and -pi/2 + n pi: a lone k that counts half turns needs no domain. Else None.

    Any other lone name is a quantity, as in (n - 2) pi, unless the accepted answer says what it solves: x = n pi.
    """
    if not ("const:pi" in kinds(truth) or "degree" in kinds(truth)):
        return None
    if symbols(truth) != {"k"} and "rel" not in kinds(truth):
        return None
    families = []
    for node in (truth, answer):
        names = symbols(node)
        clauses = node.args[0] if node.kind == "list" else (node,)
        values = tuple(map(_assigned_value, clauses))
        names = frozenset[str]().union(*map(symbols, values))
        if len(names) != 1 or not names <= INTEGER_NAMES or not all(map(is_expression, values)):
            return None
        families.append(Family(values, dict.fromkeys(names, "Z"), ()))
    progressions, others = map(_all_integers, families)
    if progressions is None or others is None or any(step[0] for step, _ in progressions + others):
        return None
    return same_progressions(progressions, others) or None


def _all_integers(family: Family) -> list[tuple[Pair, Pair]] | None:
    return None if family.conditions else progressions_of(family.values, family.domains)


def _members(family: Family) -> frozenset[Fraction] | None:
    if len(family.values) != 1 or len(family.domains) != 1:
        return None
    ((name, domain),) = family.domains.items()
    return members_in_window(family.values[0], name, domain, family.conditions)


def _finite_members(family: Family, node: Node, same: Same) -> bool | None:
    r"""\{x \in \mathbb{Z} : 1 \le x \le 3\} beside \{1, 2, 3\}: False where the family is not finite and small."""
    members = _members(family)
    listed = node.args[0] if node.kind in ("set", "list") else (node,)
    if members is None or not all(map(is_expression, listed)):
        explain("another pattern, domain or condition")
        return False
    if any(abs(member) > WINDOW // 2 - 2 * MODERATE for member in members):
        return False
    return _match_all([num(member) for member in sorted(members)], list(dict.fromkeys(listed)), same)
