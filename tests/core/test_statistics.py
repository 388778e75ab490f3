"""Sums in outputs are the same bits in every version of Python."""

import random
import statistics
import sys
from functools import reduce
from operator import add

import pytest

from mathrl.core.statistics import sum_in_order
from mathrl.trainers.rollouts import correlation


def test_a_sum_rounds_after_each_value() -> None:
    assert sum_in_order([0.1] * 10) == 0.9999999999999999 != 1.0, "which is the built-in's from Python 3.12 on"
    assert sum_in_order([]) == 0.0 and sum_in_order([1, 0.5]) == 1.5
    rng = random.Random(0)
    values = [rng.gauss(0, 1) * 10 ** rng.randint(-9, 9) for _ in range(1000)]
    assert sum_in_order(values) == reduce(add, values)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the standard library rounds otherwise from 3.12 on")
def test_correlation_is_that_of_python_3_11_to_the_bit() -> None:
    rng = random.Random(1)
    for _ in range(200):
        lengths = [rng.randint(1, 60) for _ in range(16)]
        rewards = [rng.choice([0.0, 1.0, 0.1, rng.random()]) for _ in range(16)]
        assert correlation(lengths, rewards) == statistics.correlation(lengths, rewards)


def test_correlation_by_hand() -> None:
    # Deviations -1, 0, 1 and -4/3, -1/3, 5/3: 3 / sqrt(2 * 42/9).
    assert correlation([1, 2, 3], [0, 1, 3]) == pytest.approx(3 / (2 * 42 / 9) ** 0.5, rel=1e-15)
