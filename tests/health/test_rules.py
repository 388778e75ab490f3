"""The rules on planted metrics: about two measures, what grows or falls, tool calls, and where a step's time goes."""

from typing import Any

import pytest

from mathrl.health.slow_steps import SLOW_RULES
from mathrl.health.watch import ALL_RULES, examine, judging_rules
from mathrl.params.train import Rl
from mathrl.params.training import Health, RuleName
from mathrl.trainers.collect import StepRollouts

HEALTH = Health(window=2, patience=4)
RULES = {"reward_hacking", "reward_alone", "centring", "agreement", "dev_gap", "entropy_rise", "empty"}
HEALTHY = {"reward/overall": 0.5, "reward/overall_std": 0.5, "reward/accuracy": 0.5}
RISE = [0.4, 0.4, 0.5, 0.6, 0.7, 0.8]


def compared(rl: Rl, **series: list[float]) -> dict[str, Any]:
    """The findings of these rules in a run of six steps; names have __ for /."""
    rows = []
    for step in range(6):
        values = {name.replace("__", "/"): numbers[min(step, len(numbers) - 1)] for name, numbers in series.items()}
        rows.append({"step": step + 1, **HEALTHY, **values})
    return {name: finding for name, finding in examine(rows, HEALTH, rl).findings.items() if name in RULES}


def verdicts(passed: float, right: float, agreed: float, graded: float = 30.0) -> dict[str, list[float]]:
    shares = {"accuracy": right, "passed": passed, "agreement": agreed, "graded": graded}
    return {f"verifier__exact_{name}": [value] for name, value in shares.items()}


def test_every_rule_can_be_switched_off_by_its_name() -> None:
    assert {rule.name for rule in ALL_RULES} == set(RuleName.__args__)  # type: ignore[attr-defined]


def test_a_rule_judges_by_what_the_last_step_alone_does_not_have() -> None:
    dev = {"dev/accuracy": 0.1, "dev/problems": 500.0, "advantage/mean": 0.0}
    rows = [{"step": step, **HEALTHY, **(dev if step % 3 == 0 else {})} for step in range(1, 8)]
    judging, _ = judging_rules(rows, HEALTH, Rl())
    assert "dev_gap" in examine(rows, HEALTH, Rl()).findings and {"dev_gap", "centring"} <= set(judging)
    assert "empty" not in judging


@pytest.mark.parametrize(
    ("series", "rules"),
    [
        ({}, set()),
        # Reward and accuracy rise together: learning.
        ({"reward__overall": RISE, "reward__accuracy": RISE}, set()),
        (
            {"reward__overall": [2 * value for value in RISE], "reward__overall_std": [1.0], "reward__accuracy": RISE},
            set(),
        ),
        # The reward rises alone, on whatever scale.
        ({"reward__overall": RISE}, {"reward_alone"}),
        ({"reward__overall": [10 * value for value in RISE], "reward__overall_std": [5.0]}, {"reward_alone"}),
        ({"reward__overall": [0.50, 0.50, 0.52, 0.54, 0.56, 0.58]}, set()),
        # The verifier itself has the hole: the exact grader shows it, on the same responses.
        (
            {"reward__overall": RISE, "reward__accuracy": RISE}
            | {"verifier__exact_passed": RISE, "verifier__exact_accuracy": [0.4, 0.4, 0.4, 0.3]},
            {"reward_hacking"},
        ),
        (
            {"reward__overall": RISE, "reward__accuracy": RISE}
            | {"verifier__exact_passed": RISE, "verifier__exact_accuracy": RISE},
            set(),
        ),
        # A grader that refuses half of what is right, all the time, is no hole.
        (
            {"reward__overall": RISE, "reward__accuracy": RISE}
            | {"verifier__exact_passed": RISE, "verifier__exact_accuracy": [value / 2 for value in RISE]},
            set(),
        ),
        # Half are right and accepted, and the two have nothing to do with each other: kappa 0.1, then 0.4.
        (verdicts(0.5, 0.5, 0.55), {"agreement"}),
        (verdicts(0.5, 0.5, 0.7), set()),
        (verdicts(0.5, 0.5, 0.55, graded=20.0), set()),  # too few
        # A grader that understands few of these answers, and a run in which nearly all are right.
        (verdicts(0.6, 0.2, 0.5), set()),
        (verdicts(0.95, 0.95, 0.9), set()),
        # Nor is the rest of a run that is right nearly always.
        ({"reward__overall": [0.5, 0.5, 1.0], "reward__accuracy": [0.92]}, set()),
        ({"advantage__mean": [1e-6]}, set()),
        ({"advantage__mean": [0.0, 0.0, 0.02]}, {"centring"}),
        ({"entropy": [0.3, 0.3, 0.5, 0.7, 0.8]}, {"entropy_rise"}),
        ({"entropy": [0.3, 0.3, 0.4, 0.5]}, set()),
        ({"entropy": [0.01, 0.01, 0.05], "reward__accuracy": [0.95]}, set()),
        ({"entropy": [0.3, 0.3, 0.5, 0.7, 0.8], "reward__accuracy": RISE, "reward__overall": RISE}, set()),
        ({"rollout__empty_groups": [0.04]}, set()),
        ({"rollout__empty_groups": [0.0, 0.0, 0.5]}, {"empty"}),
    ],
)
def test_what_is_raised(series: dict[str, list[float]], rules: set[str]) -> None:
    assert set(compared(Rl(), **series)) == rules


def test_the_evidence_names_the_grader_and_both_figures() -> None:
    found = compared(Rl(), verifier__second_passed=RISE, verifier__second_accuracy=[0.4])["reward_hacking"]
    # A share of 0.4 has a standard deviation of 0.49: after four steps the rise is 0.15 / 0.49, above 0.3.
    assert (found.colour, found.first, found.last) == ("red", 4, 6)
    assert found.evidence == (
        "the share that the verifier accepts rose from 0.400 to 0.750, "
        "accuracy of the same responses by reward.second_grader went from 0.400 to 0.400"
    )


@pytest.mark.parametrize(("entropy", "rules"), [(0.5, set()), (None, {"entropy_rise"})])
def test_entropy_is_compared_with_that_of_the_first_steps_that_trained_a_group(
    entropy: float | None, rules: set[str]
) -> None:
    health = Health()
    unmeasured: list[dict[str, float]] = [{"reward/accuracy": 0.0}] * (health.window - 1)
    values = [entropy or 0.1 + n / 10 for n in range(3 * health.window)]
    measured = [{"reward/accuracy": 0.01, "entropy": value} for value in values]
    for hidden in (unmeasured, unmeasured * 5):
        rows = [{"step": n, **row} for n, row in enumerate([*hidden, *measured], start=1)]
        assert {name for name in examine(rows, health, Rl()).findings if "entropy" in name} == rules


def test_a_mean_advantage_is_what_some_methods_want() -> None:
    assert "centring" in compared(Rl(advantage="rloo"), advantage__mean=[0.4])
    for advantage in ("reinforce", "rft", "max_rl"):
        assert compared(Rl(advantage=advantage), advantage__mean=[0.4]) == {}


def test_dev_is_compared_beyond_chance_and_on_shuffled_problems_alone() -> None:
    def gap(dev: float, problems: int, order: Any = "shuffled") -> bool:
        rl = Rl(curriculum=order)
        return "dev_gap" in compared(rl, dev__accuracy=[dev], dev__problems=[problems])

    # Rollouts 0.5 over 400 problems: two standard errors are 0.05, above health.dev_gap = 0.2.
    assert gap(0.24, 400) and not gap(0.26, 400)
    assert not gap(0.2, 8), "two standard errors of 8 problems are 0.35"
    assert not gap(0.24, 400, "pass_rate") and not gap(0.9, 400)


GROWING = [10.0, 10.0, 11.0, 12.0, 14.0, 16.0]


def grown(rules: set[str], rl: Rl | None = None, steps: int = 6, **series: list[float]) -> set[str]:
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
    assert (grown({"length"}, response_length=GROWING, **series) == {"length"}) == raised


@pytest.mark.parametrize(("correlation", "raised"), [([0.4], False), ([0.0], True), (None, True)])
def test_a_growing_part_of_the_reward_is_no_alarm_where_right_responses_earn_it(correlation: Any, raised: bool) -> None:
    series = {} if correlation is None else {"rollout__part_format_accuracy_correlation": correlation}
    assert (grown({"reward_parts"}, reward__format=[0.2, 0.2, 0.3, 0.4, 0.5, 0.6], **series) != set()) == raised


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
    assert (grown({"collapse"}, rl, reward__accuracy=falling) == {"collapse"}) == raised


@pytest.mark.parametrize(("problems", "raised"), [([8.0], False), ([100.0], True), (None, True)])
def test_a_fall_on_a_few_dev_problems_is_no_collapse(problems: Any, raised: bool) -> None:
    size = {} if problems is None else {"dev__problems": problems}
    assert (grown({"collapse"}, dev__accuracy=[0.6, 0.35], **size) == {"collapse"}) == raised


TOOL_RULES = {"tool_down", "tool_calls", "told_answers"}


def raised(**series: list[float]) -> set[str]:
    """The rules about tools that find something in these metrics; all else is healthy."""
    steps = max(map(len, series.values()))
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        row = {"step": step + 1, "reward/accuracy": 0.5, "tool/calls": 1.0, "tool/unavailable_rate": 0.0}
        rows.append(row | {f"tool/{name}": values[min(step, len(values) - 1)] for name, values in series.items()})
        if "accuracy" in series:
            rows[-1]["reward/accuracy"] = rows[-1].pop("tool/accuracy")
    return {finding["rule"] for finding in examine(rows, HEALTH, Rl()).report()["findings"]} & TOOL_RULES


@pytest.mark.parametrize(
    ("series", "rules"),
    [
        ({"calls": [1.0] * 6}, set()),
        ({"unavailable_rate": [0.0, 0.0, 0.2, 0.2]}, {"tool_down"}),
        ({"unavailable_rate": [0.0, 0.0, 0.04, 0.04]}, set()),
        ({"calls": [0.8, 0.8, 1.0, 1.4, 2.0, 2.4]}, {"tool_calls"}),
        ({"calls": [0.8, 0.8, 1.0, 1.4, 2.0, 2.4], "accuracy": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}, set()),
        ({"calls": [0.1, 0.1, 0.2, 0.3, 0.4, 0.5]}, set()),  # the model learns to call: not more than one each
        ({"echo_rate": [0.9] * 3}, {"told_answers"}),
        ({"echo_rate": [0.9] * 3, "calls": [0.01]}, set()),
        ({"echo_rate": [0.3] * 3}, set()),
    ],
)
def test_each_rule_finds_its_own(series: dict[str, list[float]], rules: set[str]) -> None:
    assert raised(**series) == rules


SLOW_NAMES = {rule.name for rule in SLOW_RULES}
SLOW = Health(window=4)
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


def slow(rl: Rl | None = None, steps: int = 4, **figures: Any) -> set[str]:
    return SLOW_NAMES & set(examine(rows(steps, **figures), SLOW, rl or Rl()).findings)


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
    assert slow(time__rollout=rollout, time__step=10.0) == raised
    assert slow(steps=3, time__rollout=rollout, time__step=10.0) == set(), "before a window is full"
    assert slow(AHEAD, time__rollout=rollout, time__step=10.0) == set(), "that time is not one of the step's"


def test_a_long_response_counts_where_sampling_takes_the_time() -> None:
    assert slow(rollout__longest_to_median=12.0) == {"long_tail"}
    assert slow(rollout__longest_to_median=7.0) == set()
    assert slow(rollout__longest_to_median=12.0, response_length_max=200.0) == {"long_tail"}
    assert slow(rollout__longest_to_median=12.0, response_length_max=24.0) == set()
    assert slow(rollout__longest_to_median=12.0, time__rollout=7.0, time__step=10.0) == {"long_tail"}
    assert slow(rollout__longest_to_median=12.0, time__rollout=2.0, time__step=10.0) == set()


def test_trainer_and_sampler_that_wait_are_found() -> None:
    """Of 10 seconds, of which 8 are the step's, 1 a wait after it and 1 the weights' way to the sampler."""
    times = {"time__step": 8.0, "time__sync": 1.0, "time__sync_wait": 1.0}
    assert slow(AHEAD, **times, time__rollout_wait=4.5, time__sampler_wait=0.0) == {"idle_trainer"}
    assert slow(AHEAD, **times, time__rollout_wait=3.5, time__sampler_wait=4.5) == set()
    assert slow(AHEAD, **times, time__rollout_wait=0.0, time__sampler_wait=5.5) == {"idle_sampler"}


def test_a_rank_that_is_always_the_slowest_is_found() -> None:
    assert slow(time__slowest_rank=3.0, time__slowest_rank_ratio=1.8) == {"slow_rank"}
    assert slow(time__slowest_rank=3.0, time__slowest_rank_ratio=1.3) == set()
    assert slow(time__slowest_rank=[3.0, 1.0], time__slowest_rank_ratio=1.8) == set(), "lengths differ by chance"


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
    found, applying = judging_rules(rows(**figures), SLOW, Rl())
    assert set(found) & SLOW_NAMES == judging and set(applying) >= SLOW_NAMES


def test_the_slowest_rank_is_compared_with_the_others() -> None:
    def times(*ranks: float) -> dict[str, float]:
        return StepRollouts([], [], 1, [], {"generation": ranks[0], "reward": 0.5, "tools": 0.0}, [*ranks]).times(
            tools=False
        )

    assert times(2.0) == {"time/rollout": 2.0, "time/reward": 0.5}
    found = times(2.0, 6.0, 1.0, 4.0)
    assert (found["time/slowest_rank"], found["time/slowest_rank_ratio"]) == (1.0, 3.0), "6 over the median of 1, 2, 4"
