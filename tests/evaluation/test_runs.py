"""Several seeds: by hand, against scipy's tests where they apply, and by how often they are right."""

import numpy as np
import pytest
from scipy import stats

from mathrl.core.errors import UserError
from mathrl.evaluation.intervals import cluster_interval
from mathrl.evaluation.paired import compare
from mathrl.evaluation.runs import compare_runs, seeds_interval

Run = dict[str, float]


def simulated(rng: np.random.Generator, mean: float, runs: int, problems: int, run_sd: float) -> np.ndarray:
    """8 samples a problem: abilities of problems (common to all runs), of runs, and what they share not."""
    ability = rng.normal(0, 0.15, problems)[None] + rng.normal(0, run_sd, runs)[:, None]
    ability = np.clip(mean + ability + rng.normal(0, 0.05, (runs, problems)), 0, 1)
    return rng.binomial(8, ability) / 8


def as_runs(table: np.ndarray) -> list[Run]:
    return [{f"p{i}": float(value) for i, value in enumerate(row)} for row in table]


def test_the_interval_by_hand() -> None:
    found = seeds_interval([{"x": 0.4, "y": 0.8}, {"x": 0.6, "y": 1.0}])
    # Run means 0.6 and 0.8: 0.02 / 2. Problem means 0.5 and 0.9: 0.08 / 2. No rest. One degree each.
    variance, freedom = 0.05, 0.05**2 / (0.01**2 + 0.04**2)
    half = stats.t.ppf(0.975, freedom) * variance**0.5
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, 0.7 - half, 0.7 + half))


def test_what_runs_and_problems_share_is_not_counted_twice() -> None:
    """Independent noise alone: all three mean squares estimate the same variance, which counts once."""
    rng = np.random.default_rng(0)
    table = rng.normal(0.5, 0.1, (40, 50))
    found = seeds_interval(as_runs(table))
    error = 0.1 / 2000**0.5
    # The runs part alone has a relative error of 1 / sqrt(2 x 39) = 0.11; counted twice it would be 1.41.
    assert (found.high - found.low) / 2 == pytest.approx(2.0 * error, rel=0.25)


@pytest.mark.parametrize("run_sd", [0.0, 0.03, 0.1])
def test_intervals_over_three_runs_hold_the_truth_as_often_as_they_say(run_sd: float) -> None:
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(300):
        found = seeds_interval(as_runs(simulated(rng, 0.5, 3, 60, run_sd)))
        inside += found.low <= 0.5 <= found.high
    # 0.95 x 300 with a standard deviation of 3.8; four of them below. Wider than said is allowed.
    assert inside >= 270


def test_a_bootstrap_over_three_runs_would_not() -> None:
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(300):
        table = simulated(rng, 0.5, 3, 60, 0.1)
        means = [table[rng.integers(0, 3, 3)][:, rng.integers(0, 60, 60)].mean() for _ in range(200)]
        low, high = np.quantile(means, [0.025, 0.975])
        inside += low <= 0.5 <= high
    assert inside < 265


def test_runs_that_differ_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    alike = seeds_interval(as_runs(np.stack([rng.binomial(8, 0.8, 200) / 8 for _ in range(3)])))
    unlike = seeds_interval(as_runs(np.stack([rng.binomial(8, mean, 200) / 8 for mean in (0.7, 0.8, 0.9)])))
    assert unlike.high - unlike.low > 0.3 > 0.08 > alike.high - alike.low
    with pytest.raises(ValueError, match="1 runs with 2 problems"):
        seeds_interval([{"x": 1.0, "y": 0.0}])
    with pytest.raises(ValueError, match="2 runs with 1 problems"):
        seeds_interval([{"x": 1.0, "y": 0.0}, {"x": 1.0}])


def test_where_problems_do_not_matter_it_is_welchs_t_test() -> None:
    """Runs whose problems are all equal: only the run means speak."""
    before, after = [0.50, 0.54, 0.52], [0.61, 0.57, 0.62, 0.66]
    found = compare_runs("a", "b", [{"x": v, "y": v} for v in before], [{"x": v, "y": v} for v in after])
    welch = stats.ttest_ind(after, before, equal_var=False)
    assert found.difference == pytest.approx(np.mean(after) - np.mean(before))
    assert found.p_value == pytest.approx(welch.pvalue, rel=1e-6)
    low, high = welch.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)
    error = (high - low) / 2 / stats.t.ppf(0.975, welch.df)
    assert found.detectable == pytest.approx(error * (stats.t.ppf(0.975, welch.df) + stats.t.ppf(0.8, welch.df)))
    assert found.shown and "3 and 4 runs" in found.verdict()


def test_one_model_against_runs_that_agree_is_the_paired_t_test() -> None:
    before = {"x": 0.25, "y": 0.5, "z": 0.75, "w": 0.0}
    after = {"x": 0.5, "y": 0.75, "z": 0.75, "w": 0.25}
    found = compare_runs("a", "b", [before], [after, after])
    paired = stats.ttest_rel(list(after.values()), list(before.values()))
    assert found.p_value == pytest.approx(paired.pvalue, rel=1e-6)
    low, high = paired.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)
    assert (found.before_runs, found.after_runs) == (1, 2)


@pytest.mark.parametrize("run_sd", [0.0, 0.05])
def test_false_alarms_are_as_rare_as_said_and_power_is_as_high(run_sd: float) -> None:
    rng = np.random.default_rng(9)
    alarms, detectable, errors = 0, [], []
    for _ in range(300):
        problems = rng.normal(0.5, 0.15, 60)
        tables = [rng.binomial(8, np.clip(problems + rng.normal(0, run_sd, (3, 1)), 0, 1), (3, 60)) / 8 for _ in "ab"]
        found = compare_runs("a", "b", as_runs(tables[0]), as_runs(tables[1]))
        alarms += found.shown
        detectable.append(found.detectable)
        errors.append(found.difference)
    # 5 % of 300 with a standard deviation of 3.8; four of them above.
    assert alarms <= 30
    # With many degrees of freedom 2.8 standard errors; with four, 3.7; with fewer, more.
    assert 2.3 < np.median(detectable) / np.std(errors) < 6


def test_one_run_each_is_the_paired_test_of_two_models() -> None:
    a, b = as_runs(simulated(np.random.default_rng(1), 0.5, 2, 80, 0.1))
    assert compare_runs("a", "b", [a], [b], seed=3) == compare("a", "b", a, b, seed=3)


def test_equal_runs_do_not_claim_to_exclude_every_difference() -> None:
    same = {f"p{i}": 1.0 for i in range(50)}
    found = compare_runs("a", "b", [same, same], [same])
    assert (found.difference, found.p_value, found.shown) == (0.0, 1.0, False)
    assert found.detectable > 0.05 and found.low < -0.05
    other = compare_runs("a", "b", [dict.fromkeys(same, 0.0)] * 2, [same] * 2)
    assert other.shown and other.difference == 1.0 and other.high == 1.0


def test_problems_in_common_are_needed() -> None:
    with pytest.raises(UserError, match="1 problems in common"):
        compare_runs("a", "b", [{"x": 1.0}, {"x": 0.0}], [{"x": 1.0}])


def test_the_rest_is_taken_off_by_hand() -> None:
    """Two runs of three problems; the tables of sums of squares written out."""
    runs = [{"x": 0.1, "y": 0.5, "z": 0.9}, {"x": 0.5, "y": 0.7, "z": 0.9}]
    # Run means 0.5, 0.7; problem means 0.3, 0.6, 0.9; the rest -+0.1, 0, +-0.1 with (2-1)(3-1) degrees.
    runs_part, problems_part, rest = 0.02 / 2, 0.09 / 3, 4 * 0.01 / 2 / 6
    variance = runs_part + problems_part - rest
    freedom = variance**2 / (runs_part**2 / 1 + problems_part**2 / 2 + rest**2 / 2)
    found = seeds_interval(runs, confidence=0.9)
    half = stats.t.ppf(0.95, freedom) * variance**0.5
    assert (found.mean, found.low, found.high) == pytest.approx((0.6, 0.6 - half, 0.6 + half))
    # The same against one model that solves nothing: its problems' spread is that of the differences.
    none = dict.fromkeys("xyz", 0.0)
    test = compare_runs("a", "b", [none], runs, confidence=0.9)
    assert (test.low, test.high, test.problems) == (pytest.approx(0.6 - half), pytest.approx(min(1.0, 0.6 + half)), 3)
    assert test.p_value == pytest.approx(2 * stats.t.sf(0.6 / variance**0.5, freedom))
    assert test.verdict().startswith(f"{'b is better than a' if test.shown else 'no difference'}")
    back = compare_runs("a", "b", runs, [none], confidence=0.9)
    assert (back.before, back.after, back.difference, back.low) == ("a", "b", pytest.approx(-0.6), -1.0)
    assert (back.before_runs, back.after_runs) == (2, 1)


def test_a_side_of_exactly_two_runs_counts_its_runs() -> None:
    before, after = [0.50, 0.54], [0.61, 0.57]
    found = compare_runs("a", "b", [{"x": v, "y": v} for v in before], [{"x": v, "y": v} for v in after])
    welch = stats.ttest_ind(after, before, equal_var=False)
    assert found.p_value == pytest.approx(welch.pvalue, rel=1e-6) and not found.shown
    assert found.p_value > 0.05 and "no difference shown" in found.verdict()


def test_options_reach_the_paired_test_of_one_run_each() -> None:
    a, b = as_runs(simulated(np.random.default_rng(1), 0.5, 2, 80, 0.1))
    options = {"confidence": 0.8, "resamples": 500, "seed": 3}
    assert compare_runs("a", "b", [a], [b], **options) == compare("a", "b", a, b, **options)
    assert compare_runs("a", "b", [a], [b]) == compare("a", "b", a, b)


def test_runs_without_any_spread_are_judged_as_one() -> None:
    same, worse = {f"p{i}": 0.3 for i in range(30)}, {f"p{i}": 0.1 + 0.2 - 0.3 for i in range(30)}
    found = compare_runs("a", "b", [same, same], [worse, worse, worse], confidence=0.9, resamples=200, seed=2)
    one = compare("a", "b", same, worse, confidence=0.9, resamples=200, seed=2)
    assert (found.low, found.high, found.p_value) == pytest.approx((one.low, one.high, one.p_value))
    assert (found.before, found.after, found.before_runs, found.after_runs) == ("a", "b", 2, 3)
    few = compare_runs("a", "b", [{"x": 0.0, "y": 0.0, "z": 0.0}] * 2, [{"x": 1.0, "y": 1.0, "z": 1.0}] * 2)
    assert few.p_value == 0.25 and not few.shown
    assert seeds_interval([same, same]) == cluster_interval([0.3] * 30)
    assert seeds_interval([same, same], confidence=0.8) == cluster_interval([0.3] * 30, confidence=0.8)


def test_what_is_needed_is_said() -> None:
    with pytest.raises(UserError, match=r"a and b have 1 .* needed; evaluate all of them on the same benchmark$"):
        compare_runs("a", "b", [{"x": 1.0}, {"x": 0.0}], [{"x": 1.0}])
    with pytest.raises(ValueError, match="0 runs with 0 problems"):
        seeds_interval([])


def test_equal_lengths_of_all_runs_have_an_interval_of_no_width() -> None:
    found = seeds_interval([{"x": 5.0, "y": 5.0}] * 2, share=False)
    assert (found.mean, found.low, found.high) == (5.0, 5.0, 5.0)
