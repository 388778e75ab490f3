import numpy as np
import pytest
from scipy import stats

from mathrl.core.statistics import wilson
from mathrl.evaluation.spread import cluster_interval


def test_single_samples_have_wilsons_interval_by_students_quantile() -> None:
    """Answers that are right or wrong: the effective number of problems is their number, here 12 and 28 with halves."""
    interval = cluster_interval([1.0] * 12 + [0.0] * 28)
    share, quantile, size = 12.5 / 41, stats.t.ppf(0.975, 39), 40
    middle = (share + quantile**2 / (2 * size)) / (1 + quantile**2 / size)
    root = (share * (1 - share) / size + quantile**2 / (4 * size**2)) ** 0.5
    half = quantile * root / (1 + quantile**2 / size)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.3, middle - half, middle + half))


def test_problems_with_partial_rates_count_for_more() -> None:
    """By hand: ten problems at 0.4 and ten at 0.6, with halves at 0 and 1."""
    interval = cluster_interval([0.4, 0.6] * 10, confidence=0.9)
    variance = (20 * 0.1**2 + 2 * 0.5 * 0.5**2) / 20 / 21
    size, quantile = 0.25 / variance, stats.t.ppf(0.95, 19)
    half = quantile / (1 + quantile**2 / size) * (0.25 / size + quantile**2 / (4 * size**2)) ** 0.5
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Also where the pass rates of few problems are skewed; a percentile bootstrap would hold it 0.90 of the time."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(400):
        values = rng.binomial(32, rng.beta(0.1, 0.9, size=30)) / 32
        interval = cluster_interval(values.tolist())
        inside += interval.low <= 0.1 <= interval.high
    # 0.95 x 400 with a standard deviation of 4.4; four of them below.
    assert inside >= 363


def test_all_wrong_and_all_right_still_have_a_width() -> None:
    none, every = cluster_interval([0.0] * 40), cluster_interval([1.0] * 40)
    assert (none.mean, none.low, every.mean, every.high) == (0.0, 0.0, 1.0, 1.0)
    assert none.high == pytest.approx(1 - every.low) and wilson(0, 40)[1] < none.high < 0.12
    assert str(every) == "1.000 [0.886, 1.000]"
    single = cluster_interval([1.0])
    assert single.low < 0.1 and single.high == 1.0


@pytest.mark.parametrize("values", [[0.0] * 7 + [0.125], [1.0] * 30, [0.3] * 9, [0.0, 1.0], [0.5]])
def test_the_interval_holds_what_was_measured_and_mirrors(values: list[float]) -> None:
    interval, mirrored = cluster_interval(values), cluster_interval([1 - value for value in values])
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1 and interval.low < interval.high
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - interval.high, 1 - interval.low))
    assert cluster_interval(values, confidence=0.99).high >= interval.high
    assert cluster_interval(values, confidence=0.95) == interval


@pytest.mark.parametrize(
    ("correct", "samples", "low", "high"),
    [(0, 8, 0.0, 0.3244), (8, 8, 0.6756, 1.0), (4, 8, 0.2152, 0.7848), (3, 10, 0.1078, 0.6032)],
)
def test_wilson_by_table(correct: int, samples: int, low: float, high: float) -> None:
    assert wilson(correct, samples) == pytest.approx((low, high), abs=5e-5)


def test_no_problem_has_no_interval() -> None:
    with pytest.raises(ValueError, match=r"^an interval over no problems is not defined$"):
        cluster_interval([])


def test_lengths_have_students_interval() -> None:
    lengths = [6.0, 9.0, 21.0, 4.0]
    interval = cluster_interval(lengths, share=False, confidence=0.9)
    theirs = stats.ttest_1samp(lengths, 0.0).confidence_interval(0.9)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((10.0, theirs.low, theirs.high))
    for equal in ([6.0, 6.0, 6.0], [6.0]):
        interval = cluster_interval(equal, share=False)
        assert (interval.mean, interval.low, interval.high) == (6.0, 6.0, 6.0)


def test_two_lengths_have_an_interval_and_short_floats_are_widened() -> None:
    """1 and 3: mean 2, variance of it 1, t(0.975, 1) = 12.706. In 32 bits the second sum would round off its ones."""
    interval = cluster_interval([1.0, 3.0], share=False)
    assert (interval.mean, interval.high) == (2.0, pytest.approx(14.706, abs=1e-3))
    assert cluster_interval(list(np.array([2.0**24, 1.0, 1.0], np.float32)), share=False).mean == (2**24 + 2) / 3
