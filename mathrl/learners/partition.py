"""Who computes what: groups over processes by tokens, and a process's groups over micro-batches."""

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def balanced(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Item numbers in `parts` lists of nearly equal total size: the largest first, each to the lightest.

    >>> balanced([5, 1, 4, 2], 2)
    [[0, 1], [2, 3]]
    """
    out: list[list[int]] = [[] for _ in range(parts)]
    totals = [0] * parts
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        lightest = totals.index(min(totals))
        out[lightest].append(index)
        totals[lightest] += sizes[index]
    return out


def filled(items: Sequence[Item], sizes: Sequence[int], budget: int) -> list[list[Item]]:
    """Consecutive items in lists of at most `budget` in size; a larger item stands alone.

    >>> filled("abcd", [3, 3, 9, 1], 6)
    [['a', 'b'], ['c'], ['d']]
    """
    out: list[list[Item]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if not out or size > room:
            out.append([])
            room = budget
        out[-1].append(item)
        room -= size
    return out
