"""How many responses each prompt of a step gets: where they most raise the chance of a group that teaches.

A group teaches where it has correct and incorrect responses. Shapes: P prompts.
"""

import heapq
from collections.abc import Sequence

from mathrl.params.curriculum import AdaptiveSamples


def mixed_chance(alpha: float, beta: float, samples: int) -> float:
    """The chance that `samples` responses are not all right or all wrong, the pass rate being Beta(alpha, beta).

    1 - E[p^n] - E[(1 - p)^n]; for a uniform pass rate 1 - 2 / (n + 1).

    >>> round(mixed_chance(1, 1, 4), 6)
    0.6
    """
    right, wrong = 1.0, 1.0
    for number in range(samples):
        right *= (alpha + number) / (alpha + beta + number)
        wrong *= (beta + number) / (alpha + beta + number)
    return 1 - right - wrong


def sample_counts(posteriors: Sequence[tuple[float, float]], budget: int, params: AdaptiveSamples) -> list[int]:
    """Responses per prompt, [P], of at most `budget` in all, where `least` for each are within it.

    `posteriors` are alpha and beta of each prompt's pass rate. Every prompt gets `least`; then the part of `least`
    with the largest rise of `mixed_chance` is given out, and the next, until the rise per response is below
    `min_gain`. The rises of a prompt only fall, so no other division of the same budget has a larger sum of chances.
    """
    part = params.least
    counts = [part] * len(posteriors)
    left = (budget - part * len(posteriors)) // part
    heap = [(-_gain(posterior, part, part), place) for place, posterior in enumerate(posteriors)]
    heapq.heapify(heap)
    while heap and left > 0:
        negative_gain, place = heapq.heappop(heap)
        if -negative_gain / part < params.min_gain:
            break
        if counts[place] + part > params.most:
            continue
        counts[place] += part
        left -= 1
        heapq.heappush(heap, (-_gain(posteriors[place], counts[place], part), place))
    return counts


def _gain(posterior: tuple[float, float], count: int, part: int) -> float:
    """The rise of the chance of a mixed group, rounded so that no last bit decides."""
    return round(mixed_chance(*posterior, count + part) - mixed_chance(*posterior, count), 9)
