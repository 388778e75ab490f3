"""Looks at parts of a benchmark: levels by the published table, and the error that they keep."""

import numpy as np
import pytest
from scipy.special import ndtri

from mathrl.evaluation.compare import crossing_chance, look_levels
from mathrl.evaluation.paired import compare


@pytest.mark.parametrize(
    ("looks", "last"),
    # Jennison and Turnbull, Group Sequential Methods (2000), table 2.3: C_B(K, 0.05).
    [(2, 1.977), (5, 2.040)],
)
def test_the_levels_are_those_of_the_table(looks: int, last: float) -> None:
    bounds = [-float(ndtri(p / 2)) for p in look_levels(looks, 0.05)]
    assert bounds == pytest.approx([last * (looks / look) ** 0.5 for look in range(1, looks + 1)], abs=0.003)


def test_one_look_is_one_test_and_more_confidence_asks_for_more() -> None:
    assert look_levels(1, 0.05) == (0.05,)
    strict, lenient = look_levels(4, 0.01), look_levels(4, 0.05)
    assert all(a < b for a, b in zip(strict, lenient, strict=True)) and list(lenient) == sorted(lenient)
    assert crossing_chance(4, 1.5) > crossing_chance(4, 2.024) == pytest.approx(0.05, abs=2e-4)


def test_looking_four_times_claims_no_more_than_looking_once() -> None:
    """Two equal models; looking each time at the level of one test would claim a difference in more than a tenth."""
    rng = np.random.default_rng(0)
    levels, claimed, naive = look_levels(4, 0.05), 0, 0
    for _ in range(400):
        rates = rng.beta(0.5, 0.5, 400)
        sides = [rng.binomial(4, rates) / 4 for _ in "ab"]
        values = [{str(n): float(v) for n, v in enumerate(side)} for side in sides]
        tests = []
        for look in range(1, 5):
            seen = [dict(list(side.items())[: 100 * look]) for side in values]
            tests.append(compare("a", "b", *seen, responses=4).p_value)
        claimed += any(p < level for p, level in zip(tests, levels, strict=True))
        naive += any(p < 0.05 for p in tests)
    # At most 5 % of 400 with a standard deviation of 4.4; four of them above.
    assert claimed <= 37 and naive > claimed + 8
