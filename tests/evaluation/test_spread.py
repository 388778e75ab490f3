"""Parts of a variance: by hand and by their limits."""

import numpy as np
import pytest

from mathrl.evaluation.spread import SMALLEST_P, VariancePart, half_width, part_of, two_sided_p, with_further

PARTS = [VariancePart(0.0004, 1), VariancePart(0.0001, 29)]


def test_parts_add_by_their_own_quantiles() -> None:
    # t(0.975, 1) = 12.7062, t(0.975, 29) = 2.0452; Satterthwaite's would be t(0.975, 1.6) = 5.6 times 0.0224.
    assert half_width(PARTS, 0.95) == pytest.approx((12.7062**2 * 0.0004 + 2.0452**2 * 0.0001) ** 0.5, rel=1e-4)
    assert half_width([], 0.95) == 0.0


@pytest.mark.parametrize("mean", [0.001, 0.05, 0.254, 3.0])
def test_the_p_value_is_where_the_interval_ends_at_zero(mean: float) -> None:
    p = two_sided_p(mean, PARTS)
    assert half_width(PARTS, 1 - p) == pytest.approx(mean, rel=1e-9)
    assert two_sided_p(-mean, PARTS) == p
    assert two_sided_p(2 * mean, PARTS) < p


def test_p_values_stay_between_their_ends() -> None:
    assert two_sided_p(0.0, PARTS) == two_sided_p(0.0, PARTS[:1]) == 1.0
    assert two_sided_p(1.0, [VariancePart(1e-8, 200), VariancePart(1e-9, 50)]) == SMALLEST_P
    assert two_sided_p(1.0, [VariancePart(1e-8, 200)]) == SMALLEST_P


def test_further_values_count_half_each() -> None:
    """As a weighted sample, by hand: 0.5, 1 and half of 0 and of 1."""
    mean, part = with_further(np.array([0.5, 1.0]), (0.0, 1.0))
    assert mean == pytest.approx(2.0 / 3)
    squares = (0.5 - mean) ** 2 + (1 - mean) ** 2 + (0 - mean) ** 2 / 2 + (1 - mean) ** 2 / 2
    assert part == (pytest.approx(squares / 2 / 3), 1)
    alone, without = with_further(np.array([0.5, 1.0]), ())
    assert (alone, without) == (0.75, part_of(np.array([0.5, 1.0])))
    assert with_further(np.array([1.0]), (0.0, 1.0))[1].freedom == 1


def test_no_spread_and_no_mean_is_no_evidence() -> None:
    assert two_sided_p(0.0, [VariancePart(0.0, 2), VariancePart(0.0, 3)]) == 1.0
