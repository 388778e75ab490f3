"""Plans of evaluations agree with what the comparison and the interval of such data say, and with the arithmetic."""

import numpy as np
import pytest
from scipy import optimize, stats

from mathrl.core.errors import UserError
from mathrl.core.types import EvalRow
from mathrl.evaluation.paired import compare
from mathrl.evaluation.runs import compare_runs
from mathrl.evaluation.spread import cluster_interval
from mathrl.planning.evaluation_plan import (
    ANY_MODEL,
    Runs,
    Spread,
    problems_needed,
    smallest_difference,
    spread_of_model,
    spread_of_pair,
    width,
)

ONE = Runs()


def rows_of(correct_Pk: np.ndarray) -> list[EvalRow]:
    size = correct_Pk.shape[1]
    none, lengths, kept = (None,) * size, (5,) * size, (False,) * size
    return [
        EvalRow("m", "test", f"p{number:04}", None, None, tuple(map(bool, row)), none, lengths, kept)
        for number, row in enumerate(correct_Pk)
    ]


def test_a_pilots_spread_is_that_of_its_model() -> None:
    """Rates Beta(2, 2): variance 1/20 between problems, and 1/4 - 1/20 within."""
    rng = np.random.default_rng(0)
    correct = rng.random((4000, 3)) < rng.beta(2, 2, (4000, 1))
    spread = spread_of_model(rows_of(correct))
    assert spread.between == pytest.approx(0.05, abs=0.006) and spread.within == pytest.approx(0.2, abs=0.006)
    assert spread.of_problem(4) == spread.between + spread.within / 4
    # By hand: rates 1/2 and 1 of two responses each; within 1/2 and 0.
    by_hand = spread_of_model(rows_of(np.array([[1, 0], [1, 1]])))
    assert (by_hand.within, by_hand.between) == (pytest.approx(0.25), pytest.approx(max(0.0, 0.125 - 0.125)))
    assert by_hand.account == "measured on 2 problems with 2 responses each"


def test_a_pair_of_pilots_shows_the_spread_of_its_differences() -> None:
    rng = np.random.default_rng(1)
    rates = rng.uniform(0.3, 0.5, (6000, 1))
    gains = rng.choice([0.0, 0.4], (6000, 1))
    before, after = rng.random((6000, 8)) < rates, rng.random((6000, 6)) < rates + gains
    spread = spread_of_pair(rows_of(before), rows_of(after)[::-1])
    assert spread.between == pytest.approx(0.04, abs=0.008)
    within = float((rates * (1 - rates)).mean() + ((rates + gains) * (1 - rates - gains)).mean())
    assert spread.within == pytest.approx(within, abs=0.01)


@pytest.mark.parametrize(("problems", "samples"), [(40, 2), (300, 8), (30, 64)])
def test_the_plan_is_what_the_comparison_of_such_data_says(problems: int, samples: int) -> None:
    rng = np.random.default_rng(2)
    said, widths = [], []
    for _ in range(60):
        rates = rng.beta(2, 2, problems)
        sides = [rng.binomial(samples, rates) / samples for _ in "ab"]
        values = [{str(number): float(value) for number, value in enumerate(side)} for side in sides]
        said.append(compare("a", "b", *values, responses=samples).detectable)
        interval = cluster_interval(list(values[0].values()))
        widths.append(interval.high - interval.low)
    planned = smallest_difference(problems, samples, Spread(0.0, 0.4, ""), ONE, 0.95)
    # The mean of 60 of them has a standard error of 0.017 of itself at 30 problems, of 0.005 at 300.
    assert planned == pytest.approx(np.mean(said), rel=0.05 if problems == 30 else 0.03)
    assert width(problems, samples, Spread(0.05, 0.2, ""), ONE, 0.95) == pytest.approx(np.mean(widths), rel=0.06)


@pytest.mark.parametrize("figure", [smallest_difference, width])
def test_the_number_of_problems_is_the_smallest_that_is_enough(figure: object) -> None:
    for samples in (1, 8):
        needed = problems_needed(figure, 0.05, samples, ANY_MODEL, ONE, 0.95)  # type: ignore[arg-type]
        assert needed is not None and needed > 10
        assert figure(needed, samples, ANY_MODEL, ONE, 0.95) <= 0.05  # type: ignore[operator]
        assert figure(needed - 1, samples, ANY_MODEL, ONE, 0.95) > 0.05  # type: ignore[operator]


def shown_with(freedom: float) -> float:
    """The standard errors of a mean that Student's test shows with a power of 0.8."""
    bound = stats.t.ppf(0.975, freedom)
    return float(optimize.brentq(lambda size: stats.nct.sf(bound, freedom, size) - 0.8, 1.0, 20.0))


def test_runs_that_differ_bound_what_any_number_of_problems_shows() -> None:
    """Welch's test has between two and four degrees of freedom, that of three pairs has two."""
    error = (2 / 3) ** 0.5 * 0.02
    least = smallest_difference(10**6, 64, ANY_MODEL, Runs(3, 0.02), 0.95) / error
    assert shown_with(4) < least < shown_with(2) - 0.5
    pairs = smallest_difference(10**6, 64, ANY_MODEL, Runs(3, 0.02, 0.96), 0.95) / error / 0.2
    assert pairs == pytest.approx(shown_with(2), rel=0.03)
    assert problems_needed(smallest_difference, 0.05, 8, ANY_MODEL, Runs(3, 0.02), 0.95) is None
    assert problems_needed(smallest_difference, 0.05, 8, ANY_MODEL, Runs(10, 0.02), 0.95) is not None


@pytest.mark.parametrize("correlation", [None, 0.8])
def test_recipes_that_differ_as_planned_are_shown_four_times_of_five(correlation: float | None) -> None:
    rng, spread, shown, trials = np.random.default_rng(3), Spread(0.02, 0.4, ""), 0, 300
    difference = smallest_difference(40, 4, spread, Runs(3, 0.03, correlation), 0.95)
    for _ in range(trials):
        common = rng.normal(0, 0.03 * (correlation or 0.0) ** 0.5, (3, 1))
        tables = [
            common + rng.normal(0, 0.03 * (1 - (correlation or 0.0)) ** 0.5, (3, 1))
            + rng.normal(0, 0.1, (1, 40)) + rng.normal(0, (0.2 / 4) ** 0.5, (3, 40))
            for _ in "ab"
        ]  # fmt: skip
        runs = [[{f"p{id:02}": value for id, value in enumerate(run)} for run in table] for table in tables]
        runs[1] = [{id: value + difference for id, value in run.items()} for run in runs[1]]
        shown += compare_runs("a", "b", *runs, responses=(4, 4), by_seed=correlation is not None).shown
    assert shown / trials == pytest.approx(0.8, abs=0.07)  # three standard deviations


def test_pilots_that_show_no_spread_are_refused() -> None:
    with pytest.raises(UserError, match=r"a pilot of 3 problems with 1 responses each does not show"):
        spread_of_model(rows_of(np.ones((3, 1))))
    with pytest.raises(UserError, match=r"a pilot of 0 problems with 0 responses"):
        spread_of_pair(rows_of(np.ones((2, 2))), [])
