"""Pools, predicted pass rates, adaptive numbers of responses and samplers of users."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.params.advantage import Rloo
from mathrl.params.curriculum import (
    AdaptiveSamples,
    Curriculum,
    DottedOptions,
    PoolCurriculum,
    Pools,
    PoolWeights,
    Retire,
    UserCurriculum,
)
from mathrl.params.train import Asynchronous, Rl
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.batch import response_advantages
from mathrl.trainers.curriculum import make_order
from mathrl.trainers.pools import Calibration, PoolOrder, mixed_chance, sample_counts
from mathrl.trainers.rollouts import RolloutGroup


def problems(count: int, **fields: Any) -> list[Problem]:
    return [
        Problem(id=f"p{n}", question="?" * 5, answers=("1",), source="s", split="rl", **fields) for n in range(count)
    ]


def pools(count: int = 40, adaptive: AdaptiveSamples | None = None, **settings: Any) -> PoolOrder:
    settings = {"predict": False, **settings}
    params = PoolCurriculum(pools=Pools(**settings), adaptive=adaptive)
    order = make_order(params, problems(count), range(count), 0, seed=1)
    assert isinstance(order, PoolOrder)
    return order


def test_the_running_pass_rate_by_hand() -> None:
    """(prior x 1/2 + correct) / (prior + samples), the older group counting half."""
    order = pools(2, prior=4.0)
    order.take(2)
    order.observe(0, correct=6, samples=8)
    order.observe(0, correct=1, samples=8)
    assert order.rates().tolist() == pytest.approx([(2 + 0.5 * 6 + 1) / (4 + 0.5 * 8 + 8), 0.5])


def test_a_round_that_needs_more_takes_the_retired_by_their_return_and_then_all_again() -> None:
    order = pools(4, retire=Retire(solved_after=1, failed_after=None, steps=2, growth=1))
    order.round = 1
    order.due_N[:] = (5, 3, 2, 0)
    order.pause_N[:3] = 1
    taken = order.take(9)  # in round 2: the last two are there, the second returns before the first
    assert sorted(taken[:2]) == [2, 3] and taken[2:4] == [1, 0] and sorted(taken[4:6]) == [2, 3]
    assert taken[6:8] == [1, 0] and taken[8] in (2, 3), "none before all of them were taken"
    assert order.metrics()["curriculum/retired"] == 2


def test_a_mixed_group_ends_retirement_and_failures_retire_on_their_own() -> None:
    order = pools(1, retire=Retire(solved_after=1, failed_after=2, steps=5))
    order.take(1)
    order.observe(0, 4, 4)
    assert (order.due_N[0], order.pause_N[0]) == (6, 5)
    order.take(1)
    assert order.metrics()["curriculum/retired"] == 1, "taken all the same: there is no other"
    for correct in (3, 1):
        order.observe(0, correct, 4)
        assert (order.due_N[0], order.pause_N[0], order.streak_N[0]) == (0, 0, 0)
        order.observe(0, 4, 4)
        assert (order.pause_N[0], order.streak_N[0]) == (5, 1)
    order.observe(0, 2, 4)
    order.observe(0, 0, 4)
    assert order.due_N[0] == 0
    order.observe(0, 0, 4)
    assert (order.due_N[0], order.streak_N[0]) == (2 + 5, -2)
    order.observe(0, 4, 4)
    assert (order.pause_N[0], order.streak_N[0]) == (5, 1), "solved after failures: its pause starts anew"


def mixture(count: int) -> list[Problem]:
    """Two sources with pass rates that fall with the level."""
    return [
        Problem(
            id=f"p{n}", question="x" * 9, answers=("1",), source="ab"[n % 2], split="rl", level=1 + n // 2 % 5,
        )
        for n in range(count)
    ]  # fmt: skip


def played(order: Any, rounds: int, count: int, group_size: int = 8) -> str:
    """A line per round: the problems with their numbers of responses, and the figures."""
    lines = []
    for number in range(rounds):
        taken = order.take(count)
        counts = order.sample_counts(taken, group_size)
        figures = order.metrics()
        for place, (problem, samples) in enumerate(zip(taken, counts, strict=True)):
            # Every fourth problem is always solved, every fourth never, the others now and then.
            right = (samples, 0, (problem + number + place) % (samples + 1), samples // 2)[problem % 4]
            order.observe(problem, right, samples)
        shown = " ".join(f"{value:.4g}" for _, value in sorted(figures.items()))
        asked = " ".join(f"{problem}:{samples}" for problem, samples in zip(taken, counts, strict=True))
        lines.append(f"{asked} | {shown}")
    return "\n".join(lines)


def varied(count: int) -> list[Problem]:
    """Three sources, levels, lengths; every third has a measured pass rate."""
    return [
        Problem(
            id=f"p{n}", question="x" * (1 + n % 6), answers=("1",), source="aabc"[n % 4], split="rl",
            level=None if n % 11 == 5 else 1 + n % 5, pass_rate=(n % 8) / 8 if n % 3 == 0 else None,
        )
        for n in range(count)
    ]  # fmt: skip


PLAYED = """\
11:10 32:8 17:8 6:10 14:8 29:8 19:8 0:2 21:10 | 0 0 0 2 27 0 0 8 29
30:2 26:10 35:8 5:8 2:8 22:8 27:8 6:12 20:8 | 0 0.2465 8 6 15 -0.1568 0 8 20
35:6 22:12 4:8 12:8 11:6 6:8 27:6 19:6 32:12 | 0 0.201 8 8 13 -0.0381 0 8 12
26:8 30:8 14:12 34:10 24:2 22:8 29:12 35:6 19:6 | 0 0.2026 7 3 18 -0.07301 1 8 10
6:6 11:6 5:10 25:8 22:6 17:12 7:8 32:8 10:8 | 1 0.2237 6 2 20 -0.08548 1 8 8
20:10 29:12 26:6 12:10 21:4 25:10 27:6 31:8 34:6 | 1 0.2412 3 2 21 -0.2421 3 8 5
10:8 7:8 11:8 4:12 27:8 2:12 19:6 24:2 31:8 | 0 0.2443 2 3 18 -0.2663 6 8 4
21:8 25:10 20:10 32:10 34:6 30:8 12:8 9:6 15:6 | 5 0.2443 3 3 20 -0.2663 3 8 4
11:6 2:8 34:6 10:8 26:8 1:8 14:8 24:12 31:8 | 1 0.2667 2 3 19 -0.3988 5 8 2
0:8 22:6 19:6 4:12 15:6 14:8 16:8 1:10 30:8 | 1 0.2813 1 3 19 -0.4201 6 8 1
20:12 5:10 34:6 12:10 11:6 29:10 6:6 26:6 22:6 | 4 0.3013 1 5 18 -0.4786 5 8 0
1:12 25:12 0:8 27:6 16:10 24:2 7:8 6:8 30:6 | 4 0.3013 2 2 19 -0.4786 6 8 0
21:10 17:10 14:8 2:8 9:8 26:6 4:10 10:6 19:6 | 3 0.3013 2 1 17 -0.4786 9 8 0
16:12 31:6 26:8 22:6 19:6 32:12 7:6 14:10 6:6 | 2 0.3013 1 1 16 -0.4786 11 8 0"""


def test_an_order_of_pools_hands_out_what_it_handed_out_before() -> None:
    """With all that it has; not all problems are usable, and it goes on from its state as it would have gone on."""
    params = PoolCurriculum(
        pools=Pools(retire=Retire(solved_after=2, failed_after=2, steps=2, growth=1.5), weights=PoolWeights(easy=2)),
        adaptive=AdaptiveSamples(least=2, most=12, min_gain=0.01),
    )
    usable = [n for n in range(36) if n % 5 != 3]

    def fresh() -> Any:
        return make_order(params, varied(36), usable, 0, seed=4)

    assert played(fresh(), 14, 9) == PLAYED
    first, second = fresh(), fresh()
    played(first, 6, 9)
    second.load(json.loads(json.dumps(first.state())))
    assert second.metrics() == first.metrics() and played(second, 5, 9) == played(first, 5, 9)


def test_calibration_by_hand() -> None:
    calibration = Calibration()
    for predicted, correct, samples in ((0.95, 4, 4), (0.15, 0, 4), (0.1, 2, 4), (1.0, 1, 4), (0.85, 3, 4)):
        calibration.add(predicted, correct, samples)
    # Bin 1: predicted .125 of 8 responses, found 2/8; bin 8: .85 of 4, found 3/4; bin 9: .975 of 8, found 5/8.
    rows = [(pytest.approx(0.125), 0.25, 8), (pytest.approx(0.85), 0.75, 4), (pytest.approx(0.975), 0.625, 8)]
    assert calibration.rows() == rows
    assert calibration.error() == pytest.approx((8 * 0.125 + 4 * 0.1 + 8 * 0.35) / 20)
    squares = 0.15**2 + 0.4**2 + 0.75**2 + 0.1**2
    of_mean = 1.0**2 + (0.5 - 0.5) ** 2 + (0.25 - 0.5) ** 2 + (0.75 - 7 / 16) ** 2
    assert calibration.skill() == pytest.approx(1 - squares / of_mean)
    again = Calibration()
    again.load(json.loads(json.dumps(calibration.state())))
    assert again.rows() == calibration.rows() and again.skill() == calibration.skill()


def test_the_chance_of_a_mixed_group_by_simulation() -> None:
    rng = random.Random(3)
    for alpha, beta, samples in ((1.0, 1.0, 4), (0.5, 6.0, 8), (20.0, 3.0, 16)):
        mixed = 0
        for _ in range(4000):
            rate = rng.betavariate(alpha, beta)
            mixed += 0 < sum(rng.random() < rate for _ in range(samples)) < samples
        assert mixed_chance(alpha, beta, samples) == pytest.approx(mixed / 4000, abs=0.04)


def test_responses_go_where_they_most_raise_the_chance() -> None:
    posteriors = [(50.0, 50.0), (2.0, 40.0), (1.0, 1.0), (0.1, 400.0)]
    params = AdaptiveSamples(least=4, most=16, min_gain=0.0)
    counts = sample_counts(posteriors, 40, params)
    assert sum(counts) == 40 and all(4 <= count <= 16 and count % 4 == 0 for count in counts)

    def value(division: list[int]) -> float:
        return sum(mixed_chance(*posterior, count) for posterior, count in zip(posteriors, division, strict=True))

    sizes = (4, 8, 12, 16)
    divisions = [[a, b, c, d] for a in sizes for b in sizes for c in sizes for d in sizes if a + b + c + d <= 40]
    assert value(counts) == pytest.approx(max(value(division) for division in divisions)), "no division is better"
    thrifty = sample_counts(posteriors, 40, AdaptiveSamples(least=4, most=16, min_gain=0.03))
    assert thrifty == [8, 8, 8, 4]
    assert sample_counts(posteriors, 4, params) == [4, 4, 4, 4], "everyone gets the least"
    few = AdaptiveSamples(least=4, most=8, min_gain=0.0)
    assert sample_counts(posteriors, 40, few) == [8, 8, 8, 8], "the others go on where one has the most"
    assert pools(4).sample_counts([0, 2, 1], 6) == [6, 6, 6]


@pytest.mark.parametrize(("rates", "counts"), [((1.0, 0.995), [4, 2]), ((0.0, 0.005), [4, 2]), ((0.995, 0.9), [2, 4])])
def test_no_problem_is_held_for_certain(rates: tuple[float, ...], counts: list[int]) -> None:
    """Rates that are nearer to 0 or 1 than 0.01 are alike, and the first gets the part that is left."""
    chosen = [problem.with_(pass_rate=rate) for problem, rate in zip(problems(2), rates, strict=True)]
    params = PoolCurriculum(pools=Pools(predict=False), adaptive=AdaptiveSamples(least=2, most=4, min_gain=0.0))
    order = make_order(params, chosen, range(2), 0, seed=1)
    assert order.sample_counts([0, 1], 3) == counts
    assert order.metrics()["curriculum/samples_per_prompt"] == 3


SETTINGS: dict[str, Any] = {
    "steps": 4, "prompts_per_step": 4, "group_size": 8, "max_tokens": 8, "optimizer": {"lr": 5e-3},
}  # fmt: skip
ADAPTIVE = PoolCurriculum(
    pools=Pools(retire=Retire(solved_after=1, failed_after=1, steps=2)),
    adaptive=AdaptiveSamples(least=4, most=16, min_gain=0.045),
)


class Alternating:
    """A user's sampler: takes problems in turn, and counts what it has seen."""

    def __init__(self, problems: Any, seed: int, *, step: int = 1) -> None:
        self.size, self.step, self.next, self.seen = len(problems), step, seed, 0

    def take(self, count: int) -> list[int]:
        first, self.next = self.next, self.next + count * self.step
        return [(first + number * self.step) % self.size for number in range(count)]

    def sample_counts(self, problems: list[int], group_size: int) -> list[int]:
        return [group_size if problem % 2 else 2 for problem in problems]

    def observe(self, problem: int, correct: int, samples: int) -> None:
        self.seen += samples

    def metrics(self) -> dict[str, float]:
        return {"seen": self.seen}

    def state(self) -> dict[str, int]:
        return {"next": self.next, "seen": self.seen}

    def load(self, state: dict[str, int]) -> None:
        self.next, self.seen = state["next"], state["seen"]


class Forgetful(Alternating):
    def state(self) -> Any:
        return {"next": (1, 2)}


class Alike(Alternating):
    sample_counts = property()  # it has none


USER = UserCurriculum(sampler=DottedOptions(path=f"{__name__}.Alternating", step=3))  # type: ignore[call-arg]


@pytest.mark.parametrize(("curriculum", "asynchronous"), [(ADAPTIVE, None), (USER, Asynchronous(pace="fixed"))])
def test_a_run_that_is_cut_goes_on_to_the_same_bits(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, curriculum: Curriculum, asynchronous: Any
) -> None:
    policy = small.policy

    def with_a_copy() -> tuple[Any, Any]:
        model, _ = policy()
        engine = CopyEngine(copy.deepcopy(model), small.TOKENIZER, small.Rollout(), 1e-4)
        return model, small.Sampler(engine, small.TOKENIZER, small.Prompt())

    if asynchronous is not None:
        monkeypatch.setattr(small, "policy", with_a_copy)
    more = {"asynchronous": asynchronous}
    params = Rl(**SETTINGS, **more, curriculum=curriculum, checkpoint_every=1, dev={"every": 0})
    _, whole, model = small.run(params, tmp_path / "whole")
    with pytest.raises(small.Killed):
        small.run(params, tmp_path / "cut", last=2)
    _, rows, resumed = small.run(params, tmp_path / "cut")
    assert rows == whole
    for ours, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, other)
    if curriculum is ADAPTIVE:
        assert {row["curriculum/samples_per_prompt"] for row in whole} not in ({4.0}, {8.0})
        assert any(row["curriculum/retired"] for row in whole) and any(row["grad_norm"] for row in whole)
    else:  # 4 problems a step, two of them of even number
        assert [row["curriculum/seen"] for row in whole] == [20 * step for step in range(1, 5)]


def test_groups_of_different_sizes_have_their_own_advantages() -> None:
    groups = [_group([1, 0]), _group([1, 0, 0, 0]), _group([0, 1]), _group([1, 1, 1, 1])]
    lengths_S = torch.ones(12, dtype=torch.long)
    found = response_advantages(groups, lengths_S, None, Rloo())
    assert found.tolist() == pytest.approx([1, -1, 1, -1 / 3, -1 / 3, -1 / 3, -1, 1, 0, 0, 0, 0])


def _group(rewards: list[int]) -> RolloutGroup:
    size = len(rewards)
    return RolloutGroup(
        problem=0, prompt=(1,), responses=((2,),) * size, logprobs=((0.0,),) * size, rewards=tuple(map(float, rewards)),
        correct=tuple(map(bool, rewards)), truncated=(False,) * size, parts=({},) * size,
    )  # fmt: skip


def user(path: str, **options: Any) -> Any:
    params = UserCurriculum(sampler=DottedOptions(path=path, **options))
    return make_order(params, problems(4), range(4), 0, seed=0)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("no.such.Sampler", {}, "cannot be imported"),
        (f"{__name__}.problems", {}, "lacks take, observe, state, load"),
        (f"{__name__}.Alternating", {"stepp": 2}, "cannot be made.*stepp"),
    ],
)
def test_a_users_class_that_does_not_fit_is_refused(path: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        user(path, **options)


def test_what_a_users_class_answers_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="not the same after JSON: use lists"):
        user(f"{__name__}.Forgetful").state()
    assert user(f"{__name__}.Alternating").sample_counts([0, 1, 3], 8) == [2, 8, 8]
    assert user(f"{__name__}.Alike").sample_counts([0, 1, 3], 8) == [8, 8, 8], "the method may be missing"
    order = user(f"{__name__}.Alternating")
    monkeypatch.setattr(order.sampler, "take", lambda count: [0, 4])
    with pytest.raises(UserError, match=r"take\(2\) must return 2 numbers from 0 to 3, found \[0, 4\]"):
        order.take(2)
    for odd in ([0, True], [0, 1.5], [0, "1"]):
        monkeypatch.setattr(order.sampler, "take", lambda count, odd=odd: odd)
        with pytest.raises(UserError, match=r"must return 2 numbers"):
            order.take(2)
    monkeypatch.setattr(order.sampler, "sample_counts", lambda problems, group_size: [1])
    with pytest.raises(UserError, match="a number of responses, at least 2, for each of the 1 problems"):
        order.sample_counts([0], 8)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rl.curriculum=user"], "curriculum.sampler: Field required"),
        (["rl.curriculum={type: user, sampler: {path: a.b.C}}"], "curriculum.sampler.path: no module 'a.b'"),
        (["rl.curriculum={type: user, sampler: {path: mathrl.trainers.pools.PoolOrdr}}"], "did you mean PoolOrder"),
        (["rl.curriculum={type: user, sampler: {path: mathrl.core.types.Problem}}"], None),
        (["rl.curriculum={type: user, sampler: {path: mathrl.trainers.supervised.Stream}}"], "Stream lacks observe"),
        (["rl.curriculum={adaptive: {}}"], "only type pools has it"),
        (["rl.curriculum={type: pools, adaptive: {least: 3}}"], "must be a multiple of adaptive.least"),
        (["rl.curriculum={type: pools, pools: {hard_below: 0.95}}"], "must be below pools.easy_above"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(overrides: list[str], message: str | None) -> None:
    folder = Path(__file__).parents[2] / "params"
    if message is None:  # a decorated class: Python alone knows its methods
        assert load_params(folder, overrides=overrides).rl.curriculum.sampler is not None
        return
    with pytest.raises(UserError, match=message):
        load_params(folder, overrides=overrides)
