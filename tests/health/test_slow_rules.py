"""The rules about where a step's time goes, on planted times; a rule without its metrics does not judge."""

from typing import Any

import pytest

from mathrl.health.slow_steps import SLOW_RULES
from mathrl.health.watch import examine, judging_rules
from mathrl.params.train import Rl
from mathrl.params.training import Health
from mathrl.trainers.collect import StepRollouts

NAMES = {rule.name for rule in SLOW_RULES}
HEALTH = Health(window=4)
AHEAD = Rl(asynchronous={})


def rows(steps: int = 4, **figures: float | list[float]) -> list[dict[str, float]]:
    """Names have __ for /; of a list each step has its own figure."""
    return [
        {"step": step + 1}
        | {
            name.replace("__", "/"): figure[step % len(figure)] if isinstance(figure, list) else figure
            for name, figure in figures.items()
        }
        for step in range(steps)
    ]


def findings(rl: Rl | None = None, steps: int = 4, **figures: Any) -> set[str]:
    return NAMES & set(examine(rows(steps, **figures), HEALTH, rl or Rl()).findings)


@pytest.mark.parametrize(
    ("rollout", "raised"),
    [
        (9.5, {"sampling_share"}),
        (8.5, set()),
        ([9.9, 1.0, 9.9, 1.0], set()),
        ([9.9, 9.9, 9.9, 1.0], {"sampling_share"}),
    ],
)
def test_sampling_that_takes_most_of_the_time_is_found(rollout: Any, raised: set[str]) -> None:
    assert findings(time__rollout=rollout, time__step=10.0) == raised
    assert findings(steps=3, time__rollout=rollout, time__step=10.0) == set(), "before a window is full"
    assert findings(AHEAD, time__rollout=rollout, time__step=10.0) == set(), "that time is not one of the step's"


def test_a_long_response_counts_where_sampling_takes_the_time() -> None:
    assert findings(rollout__longest_to_median=12.0) == {"long_tail"}
    assert findings(rollout__longest_to_median=7.0) == set()
    assert findings(rollout__longest_to_median=12.0, response_length_max=200.0) == {"long_tail"}
    assert findings(rollout__longest_to_median=12.0, response_length_max=24.0) == set()
    assert findings(rollout__longest_to_median=12.0, time__rollout=7.0, time__step=10.0) == {"long_tail"}
    assert findings(rollout__longest_to_median=12.0, time__rollout=2.0, time__step=10.0) == set()


def test_trainer_and_sampler_that_wait_are_found() -> None:
    """Of 10 seconds, of which 8 are the step's, 1 a wait after it and 1 the weights' way to the sampler."""
    times = {"time__step": 8.0, "time__sync": 1.0, "time__sync_wait": 1.0}
    assert findings(AHEAD, **times, time__rollout_wait=4.5, time__sampler_wait=0.0) == {"idle_trainer"}
    assert findings(AHEAD, **times, time__rollout_wait=3.5, time__sampler_wait=4.5) == set()
    assert findings(AHEAD, **times, time__rollout_wait=0.0, time__sampler_wait=5.5) == {"idle_sampler"}


def test_a_rank_that_is_always_the_slowest_is_found() -> None:
    assert findings(time__slowest_rank=3.0, time__slowest_rank_ratio=1.8) == {"slow_rank"}
    assert findings(time__slowest_rank=3.0, time__slowest_rank_ratio=1.3) == set()
    assert findings(time__slowest_rank=[3.0, 1.0], time__slowest_rank_ratio=1.8) == set(), "lengths differ by chance"


@pytest.mark.parametrize(
    ("figures", "judging"),
    [
        ({"time__step": 1.0}, set()),
        ({"time__rollout": 0.5}, set()),
        ({"time__rollout": 0.5, "time__step": 1.0}, {"sampling_share"}),
        ({"rollout__longest_to_median": 2.0}, {"long_tail"}),
        ({"time__rollout_wait": 0.1, "time__step": 1.0}, set()),
        ({"time__sampler_wait": 0.1, "time__step": 1.0}, {"idle_sampler"}),
        ({"time__slowest_rank_ratio": 1.1, "time__slowest_rank": 0.0}, {"slow_rank"}),
    ],
)
def test_a_rule_without_its_metrics_is_not_judged(figures: dict[str, float], judging: set[str]) -> None:
    found, applying = judging_rules(rows(**figures), HEALTH, Rl())
    assert set(found) & NAMES == judging and set(applying) >= NAMES


def test_the_slowest_rank_is_compared_with_the_others() -> None:
    def times(*ranks: float) -> dict[str, float]:
        return StepRollouts([], [], 1, [], {"generation": ranks[0], "reward": 0.5, "tools": 0.0}, [*ranks]).times(
            tools=False
        )

    assert times(2.0) == {"time/rollout": 2.0, "time/reward": 0.5}
    found = times(2.0, 6.0, 1.0, 4.0)
    assert (found["time/slowest_rank"], found["time/slowest_rank_ratio"]) == (1.0, 3.0), "6 over the median of 1, 2, 4"
