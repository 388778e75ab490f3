import numpy as np
import pytest
from scipy import stats

from mathrl.core.seeding import derive_seed
from mathrl.core.statistics import wilson
from mathrl.evaluation.intervals import BATCH, bootstrap_means, cluster_interval


def test_the_interval_of_a_known_spread_is_the_normal_one() -> None:
    rng = np.random.default_rng(1)
    values = rng.binomial(8, 0.6, size=500) / 8
    found = cluster_interval(values.tolist(), resamples=20_000, seed=3)
    error = 1.96 * values.std(ddof=1) / 500**0.5
    # Monte-Carlo error of a 20,000-fold quantile is about 2 % of the half width; 6 % is three times that.
    assert found.low == pytest.approx(values.mean() - error, abs=0.06 * error)
    assert found.high == pytest.approx(values.mean() + error, abs=0.06 * error)


def test_the_problem_is_the_unit_and_not_the_response() -> None:
    """Eight equal samples a problem tell as much as one: pooling them claims a third of the width."""
    values = [1.0, 0.0] * 50
    found = cluster_interval(values, resamples=5_000, seed=0)
    pooled = 2 * 1.96 * (0.25 / 800) ** 0.5
    assert found.high - found.low > 2.5 * pooled


def test_nine_in_ten_intervals_hold_the_truth() -> None:
    rng = np.random.default_rng(5)
    inside = 0
    for trial in range(200):
        abilities = rng.beta(2, 2, size=60)
        values = rng.binomial(4, abilities) / 4
        found = cluster_interval(values.tolist(), confidence=0.9, resamples=400, seed=trial)
        inside += found.low <= 0.5 <= found.high
    # 0.9 x 200 with a standard deviation of 4.2; four of them either way.
    assert 163 <= inside <= 197


def test_all_wrong_and_all_right_still_have_a_width() -> None:
    none = cluster_interval([0.0] * 40)
    assert (none.mean, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(wilson(0, 40)[1])
    assert cluster_interval([1.0] * 40).low == pytest.approx(wilson(40, 40)[0])
    assert cluster_interval([0.5] * 40).low < 0.5 < cluster_interval([0.5] * 40).high


def test_equal_seeds_give_equal_intervals() -> None:
    values = [0.0, 0.25, 1.0, 0.5, 0.75]
    assert cluster_interval(values, seed=4) == cluster_interval(values, seed=4)


@pytest.mark.parametrize(
    ("correct", "samples", "low", "high"),
    [(0, 8, 0.0, 0.3244), (8, 8, 0.6756, 1.0), (4, 8, 0.2152, 0.7848), (3, 10, 0.1078, 0.6032)],
)
def test_wilson_by_table(correct: int, samples: int, low: float, high: float) -> None:
    assert wilson(correct, samples) == pytest.approx((low, high), abs=5e-5)


def test_the_bootstrap_draws_whole_sets_from_the_seeds_stream() -> None:
    values, resamples = np.array([0.0, 0.25, 1.0, 0.5, 0.75]), 2 * BATCH + 3
    rng = np.random.default_rng(derive_seed(4, "bootstrap"))
    expected = []
    for rows in (BATCH, BATCH, 3):
        expected += [sum(values[i] for i in draw) / 5 for draw in rng.integers(0, 5, (rows, 5))]
    found = bootstrap_means(values, resamples, 4)
    assert found.tolist() == pytest.approx(expected, abs=1e-12) and len(found) == resamples
    low, high = np.quantile(found, [0.1, 0.9])
    wanted = pytest.approx((0.5, low, high))
    interval = cluster_interval(values.tolist(), confidence=0.8, resamples=resamples, seed=4)
    assert (interval.mean, interval.low, interval.high) == wanted


def test_the_defaults_are_those_that_the_docs_name() -> None:
    values = np.random.default_rng(0).random(40).tolist()
    given = cluster_interval(values, confidence=0.95, resamples=10_000, seed=0)
    assert cluster_interval(values) == given
    assert cluster_interval(values, seed=1) != given != cluster_interval(values, resamples=9_999)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_equal_values_have_wilsons_interval_of_their_share(share: float) -> None:
    found = cluster_interval([share] * 40, confidence=0.9)
    assert (found.mean, found.low, found.high) == pytest.approx((share, *wilson(share * 40, 40, 0.9)))
    # So has a single problem, and values that differ by rounding alone.
    assert cluster_interval([share]).high == pytest.approx(wilson(share, 1)[1])
    near = [0.1 + 0.2 if i % 2 else 0.3 for i in range(40)]
    assert cluster_interval(near).high == pytest.approx(wilson(12, 40)[1])


def test_no_problem_has_no_interval() -> None:
    with pytest.raises(ValueError, match=r"^an interval over no problems is not defined$"):
        cluster_interval([])
    assert str(cluster_interval([1.0] * 40)) == "1.000 [0.912, 1.000]"


def test_equal_lengths_have_an_interval_of_no_width() -> None:
    found = cluster_interval([6.0, 6.0, 6.0], share=False)
    assert (found.mean, found.low, found.high) == (6.0, 6.0, 6.0)


@pytest.mark.parametrize("problems", [2, 40, 500])
def test_the_bootstrap_is_scipys_to_the_bit(problems: int) -> None:
    values = np.random.default_rng(problems).random(problems)
    rng = np.random.default_rng(derive_seed(3, "bootstrap"))
    theirs = stats.bootstrap((values,), np.mean, n_resamples=1_000, batch=BATCH, method="percentile", rng=rng)
    assert bootstrap_means(values, 1_000, 3).tolist() == theirs.bootstrap_distribution.tolist()
    interval = cluster_interval(values.tolist(), resamples=1_000, seed=3)
    assert (interval.low, interval.high) == pytest.approx(tuple(theirs.confidence_interval), abs=1e-12)
