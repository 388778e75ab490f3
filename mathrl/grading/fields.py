"""The value of an expression in a prime field: names are random residues, or capital letters random matrices.

Two different rational functions of degree d agree at a random point with probability below d / prime (Schwartz, 1980).
"""

from __future__ import annotations

from fractions import Fraction
from operator import mul

from mathrl.core.hashing import hash_text
from mathrl.grading.evaluate import Refused, exact_value, in_base
from mathrl.grading.syntax import Node, key, kinds, symbols

PRIMES = tuple((1 << bits) - 1 for bits in (61, 89, 107, 127))
PRIME = PRIMES[0]
FIELD_KINDS = frozenset(["num", "sym", "add", "mul", "div", "pow", "percent", "app", "base"])


def residue(node: Node, point: int, prime: int = PRIME) -> int:
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
        inside = key(node.args[1]) if kinds(node.args[1]) - FIELD_KINDS else str(residue(node.args[1], point, prime))
        return hash_text(f"{point}:{args[0]}({inside})") % (prime - 2) + 1
    if kind == "add":
        return sum(residue(child, point, prime) for child in args[0]) % prime
    if kind == "mul":
        product = 1
        for child in args[0]:
            product = product * residue(child, point, prime) % prime
        return product
    if kind == "div":
        return residue(args[0], point, prime) * _inverse(residue(args[1], point, prime), prime) % prime
    if kind == "pow":
        exponent = exact_value(args[1])
        if exponent is None or exponent.denominator != 1:
            raise Refused("an exponent that is not an integer")
        base = residue(args[0], point, prime)
        if base == 0 and exponent <= 0:
            raise Refused("a pole")
        return pow(base, int(exponent), prime)
    if kind == "percent":
        return residue(args[0], point, prime) * _inverse(100, prime) % prime
    raise Refused(kind)


def _inverse(value: int, prime: int) -> int:
    if value % prime == 0:
        raise Refused("a pole")
    return pow(value, -1, prime)


_SIZE = 3  # of the matrices that stand for capital letters
Matrix = tuple[tuple[int, ...], ...]


def matrix_residue(node: Node, point: int, prime: int = PRIME) -> Matrix:
    """The value where capital letters are random matrices over the field and other names random scalars.

    So AB differs from BA, and (AB)^{-1} equals B^{-1}A^{-1}.

    Raises:
        Refused: as `residue`.
    """
    kind, args = node.kind, node.args
    if kind == "sym" and len(args[0]) == 1 and args[0].isupper():
        entries = (hash_text(f"{point}:{args[0]}:{i}") % (prime - 2) + 1 for i in range(_SIZE * _SIZE))
        return tuple(zip(*[entries] * _SIZE, strict=True)) if args[0] != "I" else _scalar(1)
    if kind == "add":
        parts = [matrix_residue(child, point, prime) for child in args[0]]
        return tuple(
            tuple(sum(cells) % prime for cells in zip(*rows, strict=True)) for rows in zip(*parts, strict=True)
        )
    if kind == "mul":
        product = _scalar(1)
        for child in args[0]:
            product = _times(product, matrix_residue(child, point, prime), prime)
        return product
    if kind == "pow" and any(name.isupper() for name in symbols(args[0])):
        if args[1].kind == "sym" and args[1].args[0] in ("T", "\\top", "t"):
            return tuple(zip(*matrix_residue(args[0], point, prime), strict=True))
        exponent = exact_value(args[1])
        if exponent is None or exponent.denominator != 1 or abs(exponent) > 50:
            raise Refused("an exponent that is not a small integer")
        base = matrix_residue(args[0], point, prime)
        power = _scalar(1)
        for _ in range(abs(int(exponent))):
            power = _times(power, base, prime)
        return power if exponent >= 0 else _inverse_matrix(power, prime)
    return _scalar(residue(node, point, prime))


def _scalar(value: int) -> Matrix:
    return tuple(tuple(value if i == j else 0 for j in range(_SIZE)) for i in range(_SIZE))


def _times(left: Matrix, right: Matrix, prime: int) -> Matrix:
    columns = list(zip(*right, strict=True))
    return tuple(tuple(sum(map(mul, row, column)) % prime for column in columns) for row in left)


def _inverse_matrix(matrix: Matrix, prime: int) -> Matrix:
    """By cofactors of a matrix of three rows."""
    (a, b, c), (d, e, f), (g, h, i) = matrix
    cofactors = ((e * i - f * h, c * h - b * i, b * f - c * e), (f * g - d * i, a * i - c * g, c * d - a * f))
    rows = (*cofactors, (d * h - e * g, b * g - a * h, a * e - b * d))
    below = _inverse(a * rows[0][0] + b * rows[1][0] + c * rows[2][0], prime)
    return tuple(tuple(cell * below % prime for cell in row) for row in rows)
