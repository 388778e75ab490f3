"""Several seeds: by hand, against scipy's tests where they apply, and by how often they are right."""

import numpy as np
import pytest
from scipy import stats

from mathrl.core.errors import UserError
from mathrl.evaluation.paired import compare
from mathrl.evaluation.runs import _paired_part, compare_runs, seeds_interval
from mathrl.evaluation.spread import cluster_interval

Run = dict[str, float]


def simulated(rng: np.random.Generator, mean: float, runs: int, problems: int, run_sd: float) -> np.ndarray:
    """8 samples a problem: abilities of problems (common to all runs), of runs, and what they share not."""
    ability = rng.normal(0, 0.15, problems)[None] + rng.normal(0, run_sd, runs)[:, None]
    ability = np.clip(mean + ability + rng.normal(0, 0.05, (runs, problems)), 0, 1)
    return rng.binomial(8, ability) / 8


def as_runs(table: np.ndarray) -> list[Run]:
    return [{f"p{i}": float(value) for i, value in enumerate(row)} for row in table]


def test_the_interval_of_lengths_by_hand() -> None:
    found = seeds_interval([{"x": 4.0, "y": 8.0}, {"x": 6.0, "y": 10.0}], share=False)
    # Run means 6 and 8: 2 / 2. Problem means 5 and 9: 8 / 2. No rest. One degree each.
    half = stats.t.ppf(0.975, 1) * (1.0 + 4.0) ** 0.5
    assert (found.mean, found.low, found.high) == pytest.approx((7.0, 7.0 - half, 7.0 + half))


def test_the_interval_of_shares_by_hand() -> None:
    """Wilson's form: the problems with halves at 0 and 1, the runs beside them, and the effective number."""
    runs = [{f"p{i}": value for i, value in enumerate(row)} for row in ([0.4, 0.8, 0.6], [0.6, 1.0, 0.8])]
    found = seeds_interval(runs, confidence=0.9)
    mean = (0.5 + 0.9 + 0.7 + 0.5) / 4
    spread = ((0.5 - mean) ** 2 + (0.9 - mean) ** 2 + (0.7 - mean) ** 2 + (mean**2 + (1 - mean) ** 2) / 2) / 3 / 4
    variance = spread + 0.02 / 2
    half = (stats.t.ppf(0.95, 2) ** 2 * spread + stats.t.ppf(0.95, 1) ** 2 * 0.01) ** 0.5
    size, quantile = mean * (1 - mean) / variance, half / variance**0.5
    middle = (mean + quantile**2 / (2 * size)) / (1 + quantile**2 / size)
    root = (mean * (1 - mean) / size + quantile**2 / (4 * size**2)) ** 0.5
    width = quantile * root / (1 + quantile**2 / size)
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, middle - width, middle + width))
    assert found.low >= 0 and found.high <= 1


def test_intervals_over_three_runs_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(300):
        found = seeds_interval(as_runs(simulated(rng, 0.5, 3, 60, 0.1)))
        inside += found.low <= 0.5 <= found.high
    # 0.95 x 300 with a standard deviation of 3.8; four of them below. Wider than said is allowed.
    assert inside >= 270


def test_where_problems_do_not_matter_runs_decide() -> None:
    """A hundred problems that are all equal: the runs' parts by hand, each with its own quantile."""
    before, after = [0.50, 0.54, 0.52], [0.61, 0.57, 0.62, 0.66]
    ids = [f"p{i}" for i in range(100)]
    found = compare_runs("a", "b", [dict.fromkeys(ids, v) for v in before], [dict.fromkeys(ids, v) for v in after])
    assert found.difference == pytest.approx(np.mean(after) - np.mean(before))
    mean = 100 * found.difference / 102
    first, second = np.var(before, ddof=1) / 3, np.var(after, ddof=1) / 4
    parts = [(first + second, (first + second) ** 2 / (first**2 / 2 + second**2 / 3))]
    # Each side's problems are the mean of three and of four responses: half the square of 24/7 of each, or of what is
    # seen, is added.
    added = (1 / 3 + 1 / 4) / 2
    added = min(added, (100 * found.difference**2 + 2 * added) / 102) / 2
    parts.append(((100 * found.difference**2 + added - 102 * mean**2) / 101 / 102, 99))
    half = sum(stats.t.ppf(0.975, freedom) ** 2 * variance for variance, freedom in parts) ** 0.5
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half))
    power = sum(stats.t.ppf(0.8, freedom) ** 2 * variance for variance, freedom in parts) ** 0.5
    assert found.detectable == pytest.approx((half + power) * 102 / 100)
    assert found.shown == (found.low > 0) and "3 and 4 runs" in found.verdict()
    # Little less certain than Welch's test of the runs alone, never more.
    alone = stats.ttest_ind(after, before, equal_var=False).pvalue
    assert alone < found.p_value < alone + 0.01


def test_false_alarms_are_as_rare_as_said_and_power_is_as_high() -> None:
    rng = np.random.default_rng(9)
    alarms, detectable, errors = 0, [], []
    for _ in range(300):
        problems = rng.normal(0.5, 0.15, 60)
        tables = [rng.binomial(8, np.clip(problems + rng.normal(0, 0.05, (3, 1)), 0, 1), (3, 60)) / 8 for _ in "ab"]
        found = compare_runs("a", "b", as_runs(tables[0]), as_runs(tables[1]), responses=(8, 8))
        alarms += found.shown
        detectable.append(found.detectable)
        errors.append(found.difference)
    # 5 % of 300 with a standard deviation of 3.8; four of them above.
    assert alarms <= 30
    # With many degrees of freedom 2.8 standard errors; with four, 3.7; with fewer, more.
    assert 2.3 < np.median(detectable) / np.std(errors) < 6


def test_equal_runs_do_not_claim_to_exclude_every_difference() -> None:
    same = {f"p{i}": 1.0 for i in range(50)}
    found = compare_runs("a", "b", [same, same], [same])
    assert (found.difference, found.p_value, found.shown) == (0.0, 1.0, False)
    assert found.detectable > 0.03 and found.low < -0.02
    other = compare_runs("a", "b", [dict.fromkeys(same, 0.0)] * 2, [same] * 2)
    assert other.shown and other.difference == 1.0 and other.high == 1.0


def test_the_rest_is_taken_off_by_hand() -> None:
    """Two runs of three problems; the tables of sums of squares written out."""
    runs = [{"x": 0.1, "y": 0.5, "z": 0.9}, {"x": 0.5, "y": 0.7, "z": 0.9}]
    # Run means 0.5, 0.7; problem means 0.3, 0.6, 0.9; the rest -+0.1, 0, +-0.1 with (2-1)(3-1) degrees.
    runs_part, problems_part, rest = 0.02 / 2, 0.09 / 3, 4 * 0.01 / 2 / 6
    quantiles = [stats.t.ppf(0.95, freedom) ** 2 for freedom in (1, 2)]
    half = (quantiles[0] * (runs_part - rest) + quantiles[1] * problems_part) ** 0.5
    found = seeds_interval(runs, confidence=0.9, share=False)
    assert (found.mean, found.low, found.high) == pytest.approx((0.6, 0.6 - half, 0.6 + half))
    # The same against one model that solves nothing: its problems' spread is that of the differences.
    none = dict.fromkeys("xyz", 0.0)
    test = compare_runs("a", "b", [none], runs, confidence=0.9)
    mean = 1.8 / 5
    seen = 0.3**2 + 0.6**2 + 0.9**2
    added = min((1 + 1 / 2) / 2, (seen + 2 * (1 + 1 / 2) / 2) / 5) / 2
    squares = (seen + added - 5 * mean**2) / 4 / 5
    half = (quantiles[0] * (runs_part - rest) + quantiles[1] * squares) ** 0.5
    assert (test.low, test.high, test.problems) == (pytest.approx(mean - half), pytest.approx(min(1.0, mean + half)), 3)
    assert test.difference == pytest.approx(0.6)
    back = compare_runs("a", "b", runs, [none], confidence=0.9)
    assert (back.before, back.after, back.difference) == ("a", "b", pytest.approx(-0.6))
    assert (back.low, back.high) == pytest.approx((-test.high, -test.low))
    assert (back.before_runs, back.after_runs) == (2, 1)


def test_a_side_of_exactly_two_runs_counts_its_runs() -> None:
    ids = [f"p{i}" for i in range(500)]
    before, after = ([dict.fromkeys(ids, v) for v in side] for side in ([0.50, 0.54], [0.61, 0.57]))
    found = compare_runs("a", "b", before, after)
    assert found.p_value > 0.05 and "no difference shown" in found.verdict()
    assert compare_runs("a", "b", before[:1], after[:1]).shown


def test_options_reach_the_paired_test_of_one_run_each() -> None:
    a, b = as_runs(simulated(np.random.default_rng(1), 0.5, 2, 80, 0.1))
    assert compare_runs("a", "b", [a], [b], confidence=0.8) == compare("a", "b", a, b, confidence=0.8)
    assert compare_runs("a", "b", [a], [b]) == compare("a", "b", a, b) == compare("a", "b", a, b, confidence=0.95)
    two = {"x": 0.25, "y": 0.5}, {"x": 0.5, "y": 1.0}
    assert compare_runs("a", "b", two[:1], two[1:]) == compare("a", "b", *two)


def test_runs_without_any_spread_are_judged_as_one() -> None:
    same, worse = {f"p{i}": 0.3 for i in range(30)}, {f"p{i}": 0.1 + 0.2 - 0.3 for i in range(30)}
    found = compare_runs("a", "b", [same, same], [worse, worse, worse], confidence=0.9)
    one = compare("a", "b", same, worse, responses=2 / (1 / 2 + 1 / 3), confidence=0.9)
    assert (found.low, found.high, found.p_value) == pytest.approx((one.low, one.high, one.p_value))
    assert (found.before, found.after, found.before_runs, found.after_runs) == ("a", "b", 2, 3)
    merged, alone = seeds_interval([same, same], confidence=0.8), cluster_interval([0.3] * 30, confidence=0.8)
    assert (merged.low, merged.high) == pytest.approx((alone.low, alone.high))


def test_what_is_needed_is_said() -> None:
    with pytest.raises(UserError, match=r"a and b have 1 .* needed; evaluate all of them on the same benchmark$"):
        compare_runs("a", "b", [{"x": 1.0}, {"x": 0.0}], [{"x": 1.0}])
    for few, said in (
        ([], "0 runs with 0"),
        ([{"x": 1.0, "y": 0.0}], "1 runs with 2"),
        ([{"x": 1.0}] * 2, "2 runs with 1"),
    ):
        with pytest.raises(ValueError, match=f"{said} problems"):
            seeds_interval(few)


def test_equal_lengths_of_all_runs_have_an_interval_of_no_width() -> None:
    found = seeds_interval([{"x": 5.0, "y": 5.0}] * 2, share=False)
    assert (found.mean, found.low, found.high) == (5.0, 5.0, 5.0)


def test_runs_paired_by_seed_by_hand() -> None:
    """Three seeds, five equal problems: only the differences of the runs vary, and their mean has two degrees."""
    ids, before, after = "vwxyz", [0.50, 0.60, 0.55], [0.62, 0.71, 0.69]
    sides = [[dict.fromkeys(ids, value) for value in side] for side in (before, after)]
    found = compare_runs("a", "b", *sides, by_seed=True)
    theirs = stats.ttest_rel(after, before)
    runs = np.var(np.subtract(after, before), ddof=1) / 3
    mean, added = 5 * found.difference / 7, min(1 / 3, (5 * found.difference**2 + 2 / 3) / 7) / 2
    problems = (5 * found.difference**2 + added - 7 * mean**2) / 6 / 7
    half = (stats.t.ppf(0.975, 2) ** 2 * runs + stats.t.ppf(0.975, 4) ** 2 * problems) ** 0.5
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half))
    assert found.difference / runs**0.5 == pytest.approx(theirs.statistic) and found.by_seed
    # Seeds that go apart do not widen it beyond the runs of both sides.
    crossed = [sides[1][place] for place in (1, 0, 2)]
    back = compare_runs("a", "b", sides[0], crossed, by_seed=True)
    apart = np.var(before, ddof=1) / 3 + np.var(after, ddof=1) / 3
    assert np.var(np.subtract([0.71, 0.62, 0.69], before), ddof=1) / 3 > apart
    half = (stats.t.ppf(0.975, 2) ** 2 * apart + stats.t.ppf(0.975, 4) ** 2 * problems) ** 0.5
    assert (back.low, back.high) == pytest.approx((mean - half, mean + half))
    with pytest.raises(UserError, match=r"^a has 3 runs and b 2: to pair them by seed, give as many of both"):
        compare_runs("a", "b", sides[0], sides[1][:2], by_seed=True)
    assert not compare_runs("a", "b", sides[0][:1], sides[1][:1], by_seed=True).by_seed


def test_half_of_the_rest_of_three_pairs_is_taken_off_by_hand() -> None:
    """Run means 0.1, 0.3 and 0.8, of two problems each; the rest is +-0.02 in two runs."""
    none, some = np.zeros((3, 2)), np.array([[0.12, 0.08], [0.28, 0.32], [0.8, 0.8]])
    spread, rest = (0.3**2 + 0.1**2 + 0.4**2) / 2 / 3, 4 * 0.02**2 / 2 / 6  # (3-1)(2-1) degrees, six values
    for tables in ((none, some), (some, none)):
        assert _paired_part(*tables) == (pytest.approx(spread - rest / 2), 2)
    five = np.array([[0.12, 0.08], [0.28, 0.32], [0.8, 0.8], [0.4, 0.4], [0.4, 0.4]])
    assert _paired_part(none[[0] * 5], five).variance == pytest.approx(0.26 / 4 / 5 - 0.75 * 4 * 0.02**2 / 4 / 10)


@pytest.mark.parametrize(("by_seed", "common", "ratio"), [(False, 0.0, 2.0), (True, 0.1, 1.0)])
def test_equal_recipes_differ_in_one_of_twenty_comparisons(by_seed: bool, common: float, ratio: float) -> None:
    """Three runs, 30 problems; those of the second recipe differ `ratio` times as much, or have a start in common."""
    rng, shown, trials = np.random.default_rng(1), 0, 400
    for _ in range(trials):
        start = rng.normal(0, common, (3, 1))
        tables = [
            start + rng.normal(0, scale * 0.05, (3, 1)) + rng.normal(0, 0.12, (1, 30)) + rng.normal(0, 0.2, (3, 30))
            for scale in (1.0, ratio)
        ]
        shown += compare_runs("a", "b", *map(as_runs, tables), responses=(4, 4), by_seed=by_seed).shown
    # 20 of 400 with a standard deviation of 4.4. Without the runs 98 and 47 are claimed, with quantiles of the normal
    # distribution 28 and 20, and runs with a start in common that are not paired show 2.
    assert 5 <= shown <= (18 if by_seed else 24)
