"""Rational functions at random points of the field of 2**61 - 1 elements."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b

from mathrl.grading.exact import Refused, exact, in_base
from mathrl.grading.syntax import Node, key

PRIME = (1 << 61) - 1
FIELD_KINDS = frozenset(["num", "sym", "add", "mul", "div", "pow", "percent", "app", "base"])


@lru_cache(maxsize=4096)
def hash_text(text: str) -> int:
    """A stable 64-bit hash (Python's own is salted per process)."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def _residue(name: str, point: int) -> int:
    """A fixed pseudo-random residue for a symbol; the same name always has the same value at a point."""
    state = hash_text(f"{point}:{name}")
    return state % (PRIME - 2) + 1


def modular(node: Node, point: int) -> int:
    """The value in the field of 2**61 - 1 elements at a random point.

    Raises:
        Refused: a kind without a rule there, an exponent that is not an integer, or a pole.
    """
    kind, args = node.kind, node.args
    if kind == "num":
        value: Fraction = args[0]
        if value.denominator == 1:
            return value.numerator % PRIME
        return value.numerator * pow(value.denominator, -1, PRIME) % PRIME
    if kind == "sym":
        return _residue(args[0], point)
    if kind == "app":
        return _residue(key(node), point)
    if kind == "add":
        return sum(modular(child, point) for child in args[0]) % PRIME
    if kind == "mul":
        product = 1
        for child in args[0]:
            product = product * modular(child, point) % PRIME
        return product
    if kind == "div":
        below = modular(args[1], point)
        if below == 0:
            raise Refused("a pole")
        return modular(args[0], point) * pow(below, -1, PRIME) % PRIME
    if kind == "pow":
        exponent = exact(args[1])
        if exponent is None or exponent.denominator != 1:
            raise Refused("an exponent that is not an integer")
        base = modular(args[0], point)
        if base == 0 and exponent <= 0:
            raise Refused("a pole")
        return pow(base, int(exponent), PRIME)
    if kind == "percent":
        return modular(args[0], point) * pow(100, -1, PRIME) % PRIME
    if kind == "base":
        value = in_base(args[0], args[1])
        return value.numerator * pow(value.denominator, -1, PRIME) % PRIME
    raise Refused(kind)
