from itertools import product

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.evaluation.paired import compare, sign_flip_p


def p_by_listing(differences: list[float]) -> float:
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in
            product((1, -1), repeat=len(differences))]  # fmt: skip
    return sum(s >= abs(sum(differences)) - 1e-12 for s in sums) / len(sums)


@pytest.mark.parametrize("differences", [
    [0.5], [0.5, 0.5, 0.5], [0.5, -0.25, 0.75, 0.125], [1.0] * 6, [0.1, -0.1, 0.2, -0.3, 0.4, 0.5, 0.0],
])  # fmt: skip
def test_the_permutation_test_lists_every_pattern_of_signs(differences: list[float]) -> None:
    assert sign_flip_p(differences, 10_000, seed=0) == pytest.approx(p_by_listing(differences))


def test_random_signs_agree_with_all_of_them() -> None:
    differences = [0.5, -0.25, 0.75, 0.125, 0.25, -0.5, 0.5, 0.25, 0.125, 0.0, 0.3, 0.6]
    exact = p_by_listing(differences)
    # Standard error of 2,000 draws at p = 0.06 is 0.005.
    assert sign_flip_p(differences * 1, 2_000, seed=1) == pytest.approx(exact, abs=0.02)
    assert 0.01 < exact < 0.2


def test_no_p_value_is_zero() -> None:
    assert sign_flip_p([1.0] * 300, 999, seed=0) == pytest.approx(1 / 1000)


def values(mean: float, count: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    return {f"p{i}": float(v) for i, v in enumerate(rng.binomial(8, mean, size=count) / 8)}


def test_a_large_difference_is_shown_in_words() -> None:
    found = compare("sft", "rl", values(0.35, 400, 1), values(0.88, 400, 2))
    assert found.shown and 0.49 < found.difference < 0.57
    assert found.low < found.difference < found.high
    assert found.verdict().startswith("rl is better than sft: +0.5")
    assert "p < 0.0001" in found.verdict() and "400 problems" in found.verdict()
    back = compare("rl", "sft", values(0.88, 400, 2), values(0.35, 400, 1))
    assert back.verdict().startswith("rl is better than sft: -0.5")


def test_no_difference_is_said_plainly_with_what_the_set_could_show() -> None:
    found = compare("sft", "rl", values(0.5, 100, 1), values(0.5, 100, 2))
    assert not found.shown
    assert found.verdict().startswith("no difference shown between sft and rl")
    spread = np.std([values(0.5, 100, 2)[k] - values(0.5, 100, 1)[k] for k in values(0.5, 100, 1)], ddof=1)
    assert found.detectable == pytest.approx((1.95996 + 0.84162) * spread / 10, rel=1e-4)
    assert f"from {found.detectable:.3f} up" in found.verdict()


def test_equal_models_do_not_claim_to_exclude_every_difference() -> None:
    same = {f"p{i}": 0.0 for i in range(50)}
    found = compare("a", "b", same, same)
    assert (found.difference, found.p_value, found.shown) == (0.0, 1.0, False)
    assert found.low < -0.05 and found.high > 0.05 and found.detectable > 0.05


def test_false_alarms_are_as_rare_as_said() -> None:
    alarms = sum(
        compare("a", "b", values(0.6, 40, 2 * t), values(0.6, 40, 2 * t + 1), resamples=300).shown
        for t in range(200)
    )
    # At most 5 % of 200 with a standard deviation of 3.1; four of them above.
    assert alarms <= 22


def test_a_pairing_is_by_problem() -> None:
    before = {"x": 1.0, "y": 0.0, "only before": 0.0}
    after = {"y": 1.0, "x": 1.0}
    assert compare("a", "b", before, after).problems == 2
    with pytest.raises(UserError, match="1 problems in common"):
        compare("a", "b", {"x": 1.0}, {"x": 0.0})
