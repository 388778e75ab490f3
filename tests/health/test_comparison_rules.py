"""The rules that compare two measures, on planted metrics."""

from typing import Any

import pytest

from mathrl.health.watch import ALL_RULES, examine, judging_rules
from mathrl.params.train import Rl
from mathrl.params.training import Health, RuleName

HEALTH = Health(window=2, patience=4)
RULES = {"reward_hacking", "reward_alone", "centring", "agreement", "dev_gap", "entropy_rise", "empty"}
HEALTHY = {"reward/overall": 0.5, "reward/overall_std": 0.5, "reward/accuracy": 0.5}
RISE = [0.4, 0.4, 0.5, 0.6, 0.7, 0.8]


def findings(rl: Rl, **series: list[float]) -> dict[str, Any]:
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
    assert set(findings(Rl(), **series)) == rules


def test_the_evidence_names_the_grader_and_both_figures() -> None:
    found = findings(Rl(), verifier__second_passed=RISE, verifier__second_accuracy=[0.4])["reward_hacking"]
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
    assert "centring" in findings(Rl(advantage="rloo"), advantage__mean=[0.4])
    for advantage in ("reinforce", "rft", "max_rl"):
        assert findings(Rl(advantage=advantage), advantage__mean=[0.4]) == {}


def test_dev_is_compared_beyond_chance_and_on_shuffled_problems_alone() -> None:
    def gap(dev: float, problems: int, order: Any = "shuffled") -> bool:
        rl = Rl(curriculum=order)
        return "dev_gap" in findings(rl, dev__accuracy=[dev], dev__problems=[problems])

    # Rollouts 0.5 over 400 problems: two standard errors are 0.05, above health.dev_gap = 0.2.
    assert gap(0.24, 400) and not gap(0.26, 400)
    assert not gap(0.2, 8), "two standard errors of 8 problems are 0.35"
    assert not gap(0.24, 400, "pass_rate") and not gap(0.9, 400)
