"""Orders of problems: seeded, resumable, and what they say they are."""

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.params.curriculum import EasyToHard, PassRate, PoolWeights, Retire
from mathrl.params.train import Rl
from mathrl.trainers.curriculum import ProblemOrder
from mathrl.trainers.pools import features, predict
from mathrl.trainers.supervised import Stream
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


def test_shuffled_takes_all_of_a_pass_and_shuffles_anew() -> None:
    taken = order("shuffled").take(18)
    passes = [taken[:6], taken[6:12], taken[12:]]
    assert all(sorted(each) == list(ALL) for each in passes) and passes[0] != passes[1]
    assert order("shuffled").take(18) == taken != order("shuffled", seed=2).take(18)


def test_as_given_is_the_mixtures_order_over_what_is_usable() -> None:
    assert order("as_given", usable=[4, 1, 3]).take(5) == [4, 1, 3, 4, 1]


def test_easy_to_hard_sorts_what_shuffled_would_take() -> None:
    found = order("easy_to_hard", planned=9)
    taken = [*found.take(4), *found.take(5)]
    assert [RATES[index] for index in taken] == sorted((RATES[index] for index in taken), reverse=True)
    assert Counter(taken) == Counter(order("shuffled").take(9))
    # What comes after the plan is as shuffled.
    assert found.take(3) == order("shuffled").take(12)[9:]


def test_without_measured_rates_the_level_decides() -> None:
    levels = [problem(number, level=level) for number, level in enumerate((3, 1, 2))]
    found = ProblemOrder(EasyToHard(), levels, range(3), 3, 0)
    assert found.take(3) == [1, 2, 0]
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


def test_a_pass_is_shuffled_once() -> None:
    stream = Stream(4, seed=1)
    passes = []
    for _ in range(2):
        taken, orders = [], set()
        for _ in range(4):
            taken.append(stream.take())
            orders.add(id(stream._order))
        assert sorted(taken) == [0, 1, 2, 3] and len(orders) == 1
        passes.append(stream._order)
    assert passes[0] is not passes[1]


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


def test_an_order_of_pools_is_resumed_with_all_that_it_knows() -> None:
    order, again = pools(30, predict=True), pools(30, predict=True)
    for place in order.take(8)[:4]:
        order.observe(place, correct=place % 3, samples=4)
    assert order.state()["first"]
    again.load(order.state())
    assert again.state() == order.state()


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
