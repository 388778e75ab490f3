"""The rules about what grows or falls, on planted metrics: no alarm where the right responses explain it, or chance."""

from typing import Any

import pytest

from mathrl.health.watch import examine
from mathrl.params.train import Rl
from mathrl.params.training import Health

HEALTH = Health(window=2, patience=4)
GROWING = [10.0, 10.0, 11.0, 12.0, 14.0, 16.0]


def findings(rules: set[str], rl: Rl | None = None, steps: int = 6, **series: list[float]) -> set[str]:
    """Those of these rules that find something; names have __ for /, the last value is repeated."""
    rows = []
    for step in range(steps):
        values = {name.replace("__", "/"): numbers[min(step, len(numbers) - 1)] for name, numbers in series.items()}
        rows.append({"step": step + 1, "reward/overall": 0.5, "reward/accuracy": 0.5, **values})
    return rules & set(examine(rows, HEALTH, rl or Rl()).findings)


@pytest.mark.parametrize(
    ("series", "raised"),
    [
        ({}, True),  # a record without the correlation
        ({"rollout__length_accuracy_correlation": [0.4]}, False),  # the right responses are the longer ones
        ({"rollout__length_accuracy_correlation": [0.05]}, True),
        ({"rollout__length_accuracy_correlation": [-0.4]}, True),  # long wrong responses
        # A reward that pays length, and right responses that are no longer than wrong ones.
        ({"rollout__length_reward_correlation": [0.9], "rollout__length_accuracy_correlation": [0.0]}, True),
        # Once, but no longer: the last window counts.
        ({"rollout__length_accuracy_correlation": [0.5, 0.5, 0.5, 0.5, 0.0, 0.0]}, True),
        ({"reward__accuracy": [0.5, 0.5, 0.55, 0.6, 0.65, 0.7]}, False),
    ],
)
def test_growing_responses_are_no_alarm_where_the_right_ones_are_longer(series: Any, raised: bool) -> None:
    assert (findings({"length"}, response_length=GROWING, **series) == {"length"}) == raised


@pytest.mark.parametrize(("correlation", "raised"), [([0.4], False), ([0.0], True), (None, True)])
def test_a_growing_part_of_the_reward_is_no_alarm_where_right_responses_earn_it(correlation: Any, raised: bool) -> None:
    series = {} if correlation is None else {"rollout__part_format_accuracy_correlation": correlation}
    assert (findings({"reward_parts"}, reward__format=[0.2, 0.2, 0.3, 0.4, 0.5, 0.6], **series) != set()) == raised


@pytest.mark.parametrize(
    ("prompts", "raised"),
    [
        # From 0.6 to 0.3: two standard errors over 2 steps of n prompts are 2 sqrt(2 x 0.45 x 0.55 / 2n).
        (8, False),  # 0.352
        (16, True),  # 0.249
    ],
)
def test_a_fall_within_chance_is_no_collapse(prompts: int, raised: bool) -> None:
    rl = Rl(prompts_per_step=prompts)
    falling = [0.6, 0.6, 0.6, 0.6, 0.3, 0.3]
    assert (findings({"collapse"}, rl, reward__accuracy=falling) == {"collapse"}) == raised


@pytest.mark.parametrize(("problems", "raised"), [([8.0], False), ([100.0], True), (None, True)])
def test_a_fall_on_a_few_dev_problems_is_no_collapse(problems: Any, raised: bool) -> None:
    size = {} if problems is None else {"dev__problems": problems}
    assert (findings({"collapse"}, dev__accuracy=[0.6, 0.35], **size) == {"collapse"}) == raised
