"""Orders of problems: seeded, resumable, and what they say they are."""

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.params.curriculum import (
    AdaptiveSamples,
    DottedOptions,
    EasyToHard,
    PassRate,
    PoolCurriculum,
    Pools,
    PoolWeights,
    Retire,
    UserCurriculum,
)
from mathrl.params.train import Rl
from mathrl.trainers.curriculum import ProblemOrder, make_order
from mathrl.trainers.pools import PoolOrder, features, predict, sample_counts
from tests.trainers.test_pools import mixture, pools


def problem(number: int, pass_rate: float | None = None, level: int | None = None) -> Problem:
    return Problem(
        id=f"p{number}", question="?", answers=("1",), source="s", split="rl", pass_rate=pass_rate, level=level
    )


RATES = (0.9, 0.1, 0.5, 0.3, 0.7, 0.0)
PROBLEMS = [problem(number, rate, level=number) for number, rate in enumerate(RATES)]
ALL = range(len(PROBLEMS))


def order(kind: str, planned: int = 12, seed: int = 1, usable: range | list[int] = ALL, **more: float) -> ProblemOrder:
    params: Any = Rl(curriculum={"type": kind, **more}).curriculum  # type: ignore[arg-type]
    return ProblemOrder(params, PROBLEMS, usable, planned, seed)


def test_without_measured_rates_the_level_decides() -> None:
    levels = [problem(number, level=level) for number, level in enumerate((3, 1, 2))]
    found = ProblemOrder(EasyToHard(), levels, range(3), 3, 0)
    assert found.take(3) == [1, 2, 0]
    for order in ((2, 0, 1), (2, 1, 0)):
        taken = ProblemOrder(EasyToHard(), [problem(n, level=level) for n, level in enumerate(order)], range(3), 3, 0)
        assert [order[number] for number in taken.take(3)] == [0, 1, 2], "a level of 0 is the easiest"
    levels.append(problem(7))
    with pytest.raises(UserError, match="'p0' has no measured pass rate and problem 'p7' no level"):
        ProblemOrder(EasyToHard(), levels, range(4), 3, 0)


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_pass_rate_draws_by_p_times_1_minus_p_without_repetition_in_a_step(floor: float) -> None:
    found = order("pass_rate", floor=floor)
    counts: Counter[int] = Counter()
    for _ in range(4000):
        step = found.take(2)
        assert len(set(step)) == 2
        counts[step[0]] += 1
    weights = [rate * (1 - rate) + floor for rate in RATES]
    for number, weight in enumerate(weights):
        # The first of a step is drawn in proportion to the weights; five standard deviations at most.
        share = weight / sum(weights)
        assert abs(counts[number] / 4000 - share) <= 5 * (share * (1 - share) / 4000) ** 0.5 + 1e-9
    # The one that is never solved comes by the floor alone.
    assert (counts[5] > 0) == (floor > 0)
    # More than there are: each once, then again.
    assert Counter(order("pass_rate").take(12)) == Counter([*ALL, *ALL])
    eight = order("pass_rate").take(8)
    assert len(eight) == 8 and set(eight) == set(ALL)


def test_an_order_hands_out_what_it_handed_out_before() -> None:
    """With every second rollout right; not all problems are usable."""
    expected = {
        "shuffled": "043520452323504024",
        "as_given": "023450234502345023",
        "easy_to_hard": "004423552323504024",
        "pass_rate": "254352345453523054",
    }
    for kind, drawn in expected.items():
        found, taken = order(kind, planned=8, usable=[0, 2, 3, 4, 5]), list[int]()
        for _ in range(6):
            taken += (step := found.take(3))
            assert found.sample_counts(step, 4) == [4, 4, 4] and found.metrics() == {}
            for place, problem in enumerate(step):
                found.observe(problem, correct=place % 2 * 4, samples=4)
        assert "".join(map(str, taken)) == drawn, kind


def test_weights_are_told_apart_that_are_alike_in_float32() -> None:
    found = order("pass_rate", floor=0.0)
    found.pass_rates = [1.0] * 5 + [1 - 1e-9]
    assert [found.take(1) for _ in range(5)] == [[5]] * 5


def test_estimates_follow_the_rollouts_and_are_resumed() -> None:
    found = order("pass_rate", memory=0.25)
    found.take(3)
    found.observe(0, correct=1, samples=10)
    assert found.pass_rates[0] == pytest.approx(0.25 * 0.9 + 0.75 * 0.1)
    resumed = order("pass_rate", memory=0.25)
    assert resumed.take(6) != found.take(6) or resumed.pass_rates != found.pass_rates
    fresh = order("pass_rate", memory=0.25)
    fresh.load(found.state())
    assert [fresh.take(3) for _ in range(5)] == [found.take(3) for _ in range(5)]
    unknown = ProblemOrder(PassRate(), [problem(0)], range(1), 1, 0)
    assert unknown.pass_rates == [0.5]


@pytest.mark.parametrize("kind", ["shuffled", "as_given", "easy_to_hard", "pass_rate"])
def test_resuming_goes_on_where_it_was(kind: str) -> None:
    found, again = order(kind), order(kind)
    found.take(7)
    again.load(found.state())
    assert [again.take(4) for _ in range(3)] == [found.take(4) for _ in range(3)]


def test_further_sources_share_a_column_and_nothing_is_warned_of() -> None:
    """Sources beyond the most frequent ones are told apart from these and by their level alone."""
    few = mixture(20)
    many = [problem.with_(source=f"rare {n}") for n, problem in enumerate(mixture(9))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert features(few).shape == (20, 2 + 2), "of two sources, each with a column of its levels"
        matrix_NF = features([*few, *few, *few, *many, *many[:1] * 2, *mixture(1)])
        rare_NF = features([*few, *few, *(problem.with_(source=f"rare {n}") for n, problem in enumerate(mixture(30)))])
    assert rare_NF[-1].tolist() == rare_NF[-2].tolist() != rare_NF[-3].tolist(), "of equal levels, and another one"
    assert np.isfinite(matrix_NF).all()
    order = pools(5, predict=True)
    assert np.isfinite(order.features_NF).all() and order.features_NF.shape == (5, 0), "nothing varies"


def test_those_that_return_at_once_come_in_an_order_that_no_processor_changes() -> None:
    """Equal numbers are sorted as they stood: by numpy's stable sort, which is the same everywhere."""
    order = pools(60, retire=Retire(solved_after=1, failed_after=None, steps=2, growth=1))
    order.due_N[:], order.pause_N[:] = 9, 1
    order.due_N[:30] = 8
    taken = order.take(60)
    shuffled = np.random.Generator(np.random.PCG64(derive_seed(1, "pools", 1))).permutation(60).tolist()
    assert taken == sorted(shuffled, key=lambda place: order.due_N[place])


def test_those_that_were_away_come_first_and_else_as_shuffled() -> None:
    order = pools(60, weights=PoolWeights(hard=0, medium=1, easy=0), retire=None)
    order.pause_N[20:50] = 1
    shuffled = np.random.Generator(np.random.PCG64(derive_seed(1, "pools", 1))).permutation(60).tolist()
    assert order.take(60) == sorted(shuffled, key=lambda place: not 20 <= place < 50)
    assert order.metrics()["curriculum/brought_back"] == 30


def test_features_say_more_of_harder_and_of_unmeasured_problems() -> None:
    matrix_NF = features([problem(0, 0.5), problem(1, 0.98), problem(2, 1.0), problem(3)])
    rates_N, unmeasured_N = matrix_NF.T
    assert rates_N[1] == rates_N[2] > rates_N[0] == rates_N[3], "no rate is certain, and an unknown one is 1/2"
    assert unmeasured_N.argmax() == 3


def test_one_verdict_alone_predicts_nothing() -> None:
    features_NF, start_N = np.random.default_rng(0).normal(size=(50, 2)), np.full(50, 0.4)
    samples_N = np.full(50, 4.0)
    for correct in (0.0, 4.0):
        assert predict(features_NF, start_N, np.full(50, correct), samples_N, np.zeros(50)) is start_N
    assert predict(features_NF, start_N, np.arange(50) % 5.0, samples_N, np.zeros(50)) is not start_N


def test_a_fit_is_made_of_eight_problems_or_a_single_right_response_and_is_the_minimum_to_a_thousandth() -> None:
    from sklearn.linear_model import LogisticRegression  # a second to import

    rng = np.random.default_rng(5)
    features_NF, samples_N, start_N = rng.normal(size=(12, 2)), np.full(12, 8.0), np.full(12, 0.4)
    correct_N = rng.binomial(8, 1 / (1 + np.exp(-2 * features_NF[:, 0]))).astype(float)
    weights = np.concatenate([correct_N, samples_N - correct_N])
    exact = LogisticRegression(tol=1e-10, max_iter=1000)
    exact.fit(np.concatenate([features_NF, features_NF]), np.repeat([1, 0], 12), sample_weight=weights)
    expected_N = exact.predict_proba(features_NF)[:, 1].round(3)  # 4e-5 or more from where they are rounded otherwise
    assert predict(features_NF, start_N, correct_N, samples_N, np.zeros(12)).tolist() == expected_N.tolist()
    eight_N = samples_N * (np.arange(12) < 8)
    for seen_N, right_N in ((eight_N, correct_N), (samples_N, np.eye(12)[3])):
        assert predict(features_NF, start_N, right_N, seen_N, np.zeros(12)) is not start_N


def test_of_equally_old_problems_the_first_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    features_NF, start_N, samples_N = rng.normal(size=(60, 2)), np.full(60, 0.5), np.full(60, 8.0)
    correct_N, age_N = rng.binomial(8, 0.5, size=60).astype(float), np.where(np.arange(60) % 2, 1.0, 2.0)
    looked_at_N = (age_N == 1) | (np.arange(60) < 20)  # thirty, and ten of the older ones
    expected_N = predict(features_NF, start_N, correct_N, samples_N * looked_at_N, age_N)
    monkeypatch.setattr("mathrl.trainers.pools.MOST_ROWS", 40)
    assert predict(features_NF, start_N, correct_N, samples_N, age_N).tolist() == expected_N.tolist()


def test_without_predictions_an_unseen_problem_has_its_measured_rate_and_a_rate_at_an_edge_is_medium() -> None:
    params = PoolCurriculum(pools=Pools(predict=False, hard_below=0.25, easy_above=0.5, retire=None))
    order = make_order(params, mixture(40), range(40), 0, seed=1)
    assert isinstance(order, PoolOrder)
    for number in range(20):
        order.observe(number, number % 2, 8)
    order.take(1)
    assert set(order.rates()[20:]) == {0.5}
    edges = make_order(params, [problem(n, rate) for n, rate in enumerate((0.125, 0.25, 0.5, 0.75))], ALL[:4], 0, 1)
    edges.take(1)
    assert [edges.metrics()[f"curriculum/{pool}"] for pool in ("hard", "medium", "easy")] == [1, 2, 1]


def test_responses_are_at_most_the_budget_and_all_of_it_where_no_gain_is_too_small() -> None:
    params = AdaptiveSamples(least=4, most=16, min_gain=0.0)
    assert sample_counts([(1.0, 1.0), (1.0, 1.0)], 11, params) == [4, 4], "three are left, and a part is four"
    assert sum(sample_counts([(400.0, 1e-9)] * 2, 16, params)) == 16, "though two more parts promise nothing"


class Recording:
    """A user's sampler that notes what it is told, and has no figures."""

    def __init__(self, problems: Any, seed: int) -> None:
        self.told: list[tuple[int, int, int]] = []

    def take(self, count: int) -> list[int]:
        return list(range(count))

    def observe(self, problem: int, correct: int, samples: int) -> None:
        self.told.append((problem, correct, samples))

    def state(self) -> list[Any]:
        return self.told

    def load(self, state: list[Any]) -> None:
        self.told = state


def user(path: str) -> Any:
    params = UserCurriculum(sampler=DottedOptions(path=path))  # type: ignore[call-arg]
    return make_order(params, PROBLEMS, [1, 3, 4], 0, seed=0)


def test_a_users_class_is_told_of_each_group_by_the_number_that_it_knows() -> None:
    order = user(f"{__name__}.Recording")
    assert order.take(2) == [1, 3]
    order.observe(3, correct=2, samples=8)
    assert order.sampler.told == [(1, 2, 8)] and order.metrics() == {}
