from itertools import product
from statistics import NormalDist

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.core.results import Comparison
from mathrl.core.seeding import derive_seed
from mathrl.core.statistics import wilson
from mathrl.evaluation.intervals import BATCH, bootstrap_means
from mathrl.evaluation.paired import compare, sign_flip_p


def p_by_listing(differences: list[float]) -> float:
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return sum(s >= abs(sum(differences)) - 1e-12 for s in sums) / len(sums)


@pytest.mark.parametrize(
    "differences", [[0.5], [0.5, 0.5, 0.5], [0.5, -0.25, 0.75, 0.125], [1.0] * 6, [0.1, -0.1, 0.2, -0.3, 0.4, 0.5, 0.0]]
)
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
        compare("a", "b", values(0.6, 40, 2 * t), values(0.6, 40, 2 * t + 1), resamples=300).shown for t in range(200)
    )
    # At most 5 % of 200 with a standard deviation of 3.1; four of them above.
    assert alarms <= 22


def test_a_pairing_is_by_problem() -> None:
    before = {"x": 1.0, "y": 0.0, "only before": 0.0}
    after = {"y": 1.0, "x": 1.0}
    assert compare("a", "b", before, after).problems == 2
    with pytest.raises(UserError, match="1 problems in common"):
        compare("a", "b", {"x": 1.0}, {"x": 0.0})


def test_random_signs_come_whole_from_the_seeds_stream() -> None:
    differences, resamples = ([0.5, -0.25, 0.75, 0.125, 0.0, -0.5, 0.25, 0.25, 0.5, -0.125, 0.3, 0.4], 2 * BATCH + 5)
    moved = [each for each in differences if each]
    rng = np.random.default_rng(derive_seed(11, "sign_flip"))
    extreme = 0
    for rows in (BATCH, BATCH, 5):
        for flips in rng.integers(0, 2, (rows, len(moved))):
            total = abs(sum(d if flip else -d for d, flip in zip(moved, flips, strict=True)))
            extreme += total > abs(sum(moved)) - 1e-6
    assert 1 < extreme < resamples / 2 and total > abs(sum(moved)) - 1e-6  # the last draw counts too
    assert sign_flip_p(differences, resamples, seed=11) == (1 + extreme) / (1 + resamples)


def test_patterns_are_listed_where_they_are_no_more_than_the_resamples() -> None:
    differences = [0.5, -0.25, 0.75]
    exact = p_by_listing(differences)
    assert sign_flip_p(differences, 8, seed=0) == exact
    sampled = {sign_flip_p(differences, 7, seed=seed) for seed in range(20)}
    assert len(sampled) > 1 and all(round(p * 8, 9).is_integer() for p in sampled)


def test_the_p_value_knows_no_scale() -> None:
    differences = [0.5, -0.25, 0.75, 0.125, 0.1]
    for scale in (1e-7, 1e7):
        assert sign_flip_p([each * scale for each in differences], 100, seed=0) == p_by_listing(differences)


def pair(differences: list[float]) -> tuple[dict[str, float], dict[str, float]]:
    ids = [f"p{i:04}" for i in range(len(differences))]
    return dict.fromkeys(ids, 0.0), dict(zip(ids, differences, strict=True))


def test_the_interval_is_the_quantiles_of_the_bootstrap() -> None:
    differences = (np.random.default_rng(3).random(8) - 0.4).tolist()
    found = compare("a", "b", *pair(differences), confidence=0.8, resamples=1_000, seed=5)
    means = bootstrap_means(np.array(differences), 1_000, 5)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.1, 0.9])))
    assert found.p_value == sign_flip_p(differences, 1_000, seed=5)
    normal = NormalDist().inv_cdf(0.9) + NormalDist().inv_cdf(0.8)
    assert found.detectable == pytest.approx(normal * np.std(differences, ddof=1) / 8**0.5)
    assert compare("a", "b", *pair(differences)) == compare(
        "a", "b", *pair(differences), confidence=0.95, resamples=10_000, seed=0
    )
    many = [0.5, -0.25, 0.75, 0.125] * 5  # too many signs to list: the seed is the draw's
    assert compare("a", "b", *pair(many), seed=1).p_value == sign_flip_p(many, 10_000, seed=1)


def test_both_the_interval_and_the_p_value_must_show_it() -> None:
    # Four problems, all better: the bootstrap leaves out 0, but one pattern of signs in eight is as extreme.
    few = compare("a", "b", *pair([0.5, 0.5, 0.5, 0.75]))
    assert few.low > 0 and few.p_value == 0.125 and not few.shown
    worse = compare("a", "b", *pair([-0.5, -0.5, -0.5, -0.75]))
    assert worse.high < 0 and not worse.shown
    assert compare("a", "b", *pair([-0.5, -0.75] * 5)).shown
    # Equal differences on 200 problems: signs say p = 0, Wilson's bound that a share of 0.019 could hide.
    hidden = compare("a", "b", *pair([0.01] * 200))
    assert hidden.p_value < 0.001 and hidden.low < 0 and not hidden.shown


@pytest.mark.parametrize("difference", [0.0, 1.0, -1.0])
def test_equal_differences_have_wilsons_bound(difference: float) -> None:
    found = compare("a", "b", *pair([difference] * 30), confidence=0.9)
    assert found.detectable == pytest.approx(wilson(0, 30, 0.9)[1])
    assert found.low == max(-1.0, difference - found.detectable)
    assert found.high == min(1.0, difference + found.detectable)


def comparison(**changes: object) -> Comparison:
    plain: dict[str, object] = {
        "before": "a",
        "after": "b",
        "problems": 50,
        "difference": 0.2,
        "low": 0.1,
        "high": 0.3,
        "p_value": 0.0123,
        "detectable": 0.14,
        "shown": True,
    }
    return Comparison(**{**plain, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "b is better than a: +0.200 [+0.100, +0.300], p = 0.0123, 50 problems"),
        (
            {"difference": -0.2, "low": -0.3, "high": -0.1},
            "a is better than b: -0.200 [-0.300, -0.100], p = 0.0123, 50 problems",
        ),
        ({"p_value": 0.0001}, "b is better than a: +0.200 [+0.100, +0.300], p = 0.0001, 50 problems"),
        ({"p_value": 0.00009}, "b is better than a: +0.200 [+0.100, +0.300], p < 0.0001, 50 problems"),
        ({"after_runs": 2}, "b is better than a: +0.200 [+0.100, +0.300], p = 0.0123, 50 problems, 1 and 2 runs"),
        (
            {"shown": False},
            "no difference shown between a and b: +0.200 [+0.100, +0.300], p = 0.0123, "
            "50 problems; this set shows differences from 0.140 up",
        ),
    ],
)
def test_the_verdict_word_by_word(changes: dict[str, object], said: str) -> None:
    found = comparison(**changes)
    assert found.verdict() == said
    row = found.to_row()
    assert row["verdict"] == said and row["p_value"] == found.p_value and len(row) == 12


def test_too_few_problems_in_common() -> None:
    with pytest.raises(UserError, match=r"^a and b have 0 problems in common.*; evaluate both on the same bench"):
        compare("a", "b", {"x": 1.0}, {"y": 0.0})
