"""Comparing two models after parts of a benchmark, and stopping early, without more false claims than one test has."""

import math
from functools import cache

import numpy as np
from scipy.special import ndtr

MOST_LOOKS = 10
GRID = 2001  # points per look at which the density of the statistic is kept


@cache
def look_levels(looks: int, level: float) -> tuple[float, ...]:
    """The p-value below which a difference is shown at each of `looks` equal parts (O'Brien and Fleming, 1979).

    The first looks ask for much, so that the last asks for little more than a single test would. The chance that any
    look shows a difference that is not there is `level`.

    >>> [round(p, 5) for p in look_levels(2, 0.05)]
    [0.00517, 0.04799]
    """
    if looks == 1:
        return (level,)
    from scipy.optimize import brentq  # 0.3 s, and --help needs the module

    bound = brentq(lambda c: crossing(looks, c) - level, 1.0, 5.0, xtol=1e-8)
    return tuple(float(2 * ndtr(-bound * math.sqrt(looks / look))) for look in range(1, looks + 1))


def crossing(looks: int, bound: float) -> float:
    """The chance that a Brownian motion is outside ±bound √looks at one of the times 1 to `looks`.

    Its density is carried from look to look on a grid (Armitage, McPherson and Rowe, JRSS A 132, 1969).
    """
    limit = bound * math.sqrt(looks)
    grid, step = np.linspace(-limit, limit, GRID, retstep=True)
    weights = np.full(GRID, step)
    weights[[0, -1]] /= 2
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    kernel = np.exp(-((grid[:, None] - grid[None, :]) ** 2) / 2) / math.sqrt(2 * math.pi)
    for _ in range(looks - 1):
        density = kernel @ (density * weights)
    return 1 - float((density * weights).sum())
