"""Rational functions at random points of the field of 2**61 - 1 elements."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b

from mathrl.grading.exact import Refused, exact, in_base
from mathrl.grading.syntax import Node, key, kinds

PRIME = (1 << 61) - 1
PRIMES = tuple((1 << bits) - 1 for bits in (61, 89, 107, 127))
FIELD_KINDS = frozenset(["num", "sym", "add", "mul", "div", "pow", "percent", "app", "base"])


@lru_cache(maxsize=4096)
def hash_text(text: str) -> int:
    """A stable 64-bit hash (Python's own is salted per process)."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def modular(node: Node, point: int, prime: int = PRIME) -> int:
    """The value in the field of `prime` elements at a random point.

    Raises:
        Refused: a kind without a rule there, an exponent that is not an integer, or a pole.
    """
    kind, args = node.kind, node.args
    if kind in ("num", "base"):
        value: Fraction = args[0] if kind == "num" else in_base(args[0], args[1])
        return value.numerator * _inverse(value.denominator, prime) % prime
    if kind == "sym":  # a name always has the same residue at a point
        return hash_text(f"{point}:{args[0]}") % (prime - 2) + 1
    if kind == "app":  # an unknown function is a random one
        inside = key(node.args[1]) if kinds(node.args[1]) - FIELD_KINDS else str(modular(node.args[1], point, prime))
        return hash_text(f"{point}:{args[0]}({inside})") % (prime - 2) + 1
    if kind == "add":
        return sum(modular(child, point, prime) for child in args[0]) % prime
    if kind == "mul":
        product = 1
        for child in args[0]:
            product = product * modular(child, point, prime) % prime
        return product
    if kind == "div":
        return modular(args[0], point, prime) * _inverse(modular(args[1], point, prime), prime) % prime
    if kind == "pow":
        exponent = exact(args[1])
        if exponent is None or exponent.denominator != 1:
            raise Refused("an exponent that is not an integer")
        base = modular(args[0], point, prime)
        if base == 0 and exponent <= 0:
            raise Refused("a pole")
        return pow(base, int(exponent), prime)
    if kind == "percent":
        return modular(args[0], point, prime) * _inverse(100, prime) % prime
    raise Refused(kind)


def _inverse(value: int, prime: int) -> int:
    if value % prime == 0:
        raise Refused("a pole")
    return pow(value, -1, prime)
