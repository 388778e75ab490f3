"""What a step collects where the rounds of dynamic sampling run out, and how held-out problems are sampled."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.core.hashing import derive_seed
from mathrl.learners.distributed import Ranks
from mathrl.trainers.collect import Collector, dev_figures
from mathrl.trainers.curriculum import make_order
from tests.learners.test_shares import together


def collector_of(small: Any, params: Any, reward: Any) -> Collector:
    sampler, ranks = small.policy()[1], Ranks(torch.device("cpu"))
    prompts = [sampler.prompt_tokens(problem) for problem in small.PROBLEMS]
    order = make_order(params.curriculum, small.PROBLEMS, range(8), 4, 0)
    return Collector(sampler, small.PROBLEMS, prompts, order, reward, None, params, ranks)


def test_a_batch_is_filled_with_uniform_groups_each_once_and_each_round_has_a_seed(small: Any) -> None:
    params, seeds = small.short_rl(dynamic_sampling={"rounds": 2}), list[int]()
    collector = collector_of(small, params, small.CountsOnes(right_above=0.2))
    generate = collector.sampler.engine.generate

    def watched(prompts: Any, sampling: Any, seed: int, *more: Any) -> Any:
        seeds.append(seed)
        return generate(prompts, sampling, seed, *more)

    collector.sampler.engine.generate = watched  # type: ignore[method-assign, assignment]
    observed: list[tuple[int, int, int]] = []
    collector.order.observe = lambda *told: observed.append(told)  # type: ignore[method-assign, arg-type]
    rollouts = collector.collect(3)
    assert observed == [(group.problem, sum(group.correct), 4) for group in rollouts.sampled], "of every round"
    differ = [0 < sum(group.correct) < len(group.correct) for group in rollouts.groups]
    assert 0 < sum(differ) < 4 and differ == sorted(differ, reverse=True)
    assert len({group.problem for group in rollouts.groups}) == len(differ) == 4
    assert len(rollouts.sampled) == 8 and rollouts.rounds == 2 and seeds == [3, derive_seed(3, "round", 1)]


def test_one_round_is_enough_where_all_its_groups_hold_right_and_wrong_answers(small: Any) -> None:
    class EverySecond(small.CountsOnes):  # type: ignore[name-defined, misc]
        def score(self, items: Any) -> Any:
            return [replace(each, correct=place % 2 == 0) for place, each in enumerate(super().score(items))]

    rollouts = collector_of(small, small.short_rl(dynamic_sampling={"rounds": 3}), EverySecond()).collect(3)
    assert (rollouts.rounds, len(rollouts.sampled), len(rollouts.groups), len(rollouts.counters)) == (1, 4, 4, 1)
    assert not any(group.graded for group in rollouts.groups), "what the verifier said is kept where rollouts are"


def test_a_problem_whose_prompt_is_too_long_has_no_group(small: Any) -> None:
    collector = collector_of(small, small.short_rl(prompts_per_step=8), small.CountsOnes())
    without = replace(collector, prompts=[None, *collector.prompts[1:]])
    assert sorted(group.problem for group in without.collect(3).groups) == list(range(1, 8))


@pytest.mark.parametrize("world", [1, 2])
def test_what_a_stream_replaced_is_sampled_and_not_trained_on(small: Any, world: int) -> None:
    made = [collector_of(small, small.short_rl(), small.CountsOnes()) for _ in range(world)]

    def work(ranks: Ranks) -> Any:
        collector = replace(made[ranks.rank], ranks=ranks)
        return collector.collect(3, replace(collector.sample(3), replaced=1))

    for rollouts in together(world, work):
        size = 4 // world
        trained = [group for rank in range(world) for group in rollouts.sampled[rank * size : (rank + 1) * size - 1]]
        assert len(rollouts.sampled) == 4 and rollouts.groups == trained
        assert rollouts.counters == [], "the stream has read them"


def test_held_out_problems_have_the_samples_of_dev_or_their_own_number(small: Any) -> None:
    params = small.short_rl(dev={"samples": 2, "temperature": 0.5})
    sampler, asked = small.policy()[1], list[Any]()
    generate = sampler.engine.generate

    def watched(prompts: Any, sampling: Any, *more: Any) -> Any:
        asked.append((sampling.samples, sampling.temperature, sampling.max_tokens))
        return generate(prompts, sampling, *more)

    sampler.engine.generate = watched
    ranks = Ranks(torch.device("cpu"))
    for samples in (None, 3):
        figures = dev_figures(
            sampler, small.PROBLEMS[:4], small.CountsOnes(), params, ranks, seed=0, name="exam", samples=samples
        )
        assert figures["exam/problems"] == 4
    assert asked == [(2, 0.5, 10), (3, 0.5, 10)]
