"""The exact grader on a sample of the responses."""

import pytest

from mathrl.rewards.cascade import ExactAudit, exact_verdict, merged_counters
from mathrl.rewards.compose import RewardInput, build_reward


@pytest.mark.parametrize(
    ("response", "truths", "verdict"),
    [
        ("<think>7+5=12</think><answer>12</answer>", ["12"], True),
        ("<answer>0.5</answer>", ["1/2"], True),
        ("first \\boxed{3}, no: \\boxed{1,000}", ["7", "1000"], True),
        ("half of 8\n#### $4$\n", ["4.0"], True),
        ("<answer>-4</answer>", ["4"], False),
        ("<answer></answer>", ["4"], False),  # what a search for the answer in the truth would accept
        ("<answer>1</answer>", ["12"], False),
        ("<answer>4 or 5</answer>", ["4"], False),
        ("The answer is 4.", ["4"], True),
        ("<think>4</think>", ["4"], False),
        ("so \\boxed{\\frac{1}{2}\\text{ m}}", ["0.5"], True),
        ("<answer>12-4</answer>", ["-4"], False),
        ("<think><answer>4</answer>", ["4"], False),  # never left its thinking
        (f"<think>{'then again ' * 500}\\boxed{{4}}", ["4"], False),  # nor here, where it began long before
        ("<answer>1/0</answer>", ["4"], False),
        (f"<answer>{'9' * 5000}</answer>", ["4"], False),
        ("<answer>x</answer>", ["\\sqrt{2}"], None),
        ("<answer>x</answer>", ['{"numbers": [4, 6], "target": 24}'], None),
        ("<answer>4</answer>", ["\\text{four}", "4"], True),
    ],
)
def test_the_marked_answer_must_be_the_number(response: str, truths: list[str], verdict: bool | None) -> None:
    assert exact_verdict(response, truths) is verdict


def test_both_shares_are_of_the_same_sample() -> None:
    audit = ExactAudit(0.25)
    for number in range(4000):  # the verifier also accepts every second wrong answer
        right = number % 4 == 0
        audit.see("2+2=", f"{number} <answer>{4 if right else 5}</answer>", ["4"], right or number % 4 == 1)
    counters = audit.counters()
    accepted_wrongly = counters["verifier/exact_passed"] - counters["verifier/exact_accuracy"]
    assert counters["verifier/exact_agreement"] == pytest.approx(1 - accepted_wrongly)
    # 4000 draws of 0.25 have a standard deviation of 27, the shares of a thousand of at most 0.016.
    assert abs(counters["verifier/exact_graded"] - 1000) < 5 * 27
    assert counters["verifier/exact_accuracy"] == pytest.approx(0.25, abs=0.08)
    assert counters["verifier/exact_passed"] == pytest.approx(0.5, abs=0.08)
    assert audit.counters() == {}, "they are reset"


def test_the_reward_reports_it_and_zero_switches_it_off() -> None:
    items = [RewardInput(f"{n} <answer>{n % 2} or 5</answer>", ("1", "0 or 5"), prompt="3-2=") for n in range(400)]
    reward = build_reward({"exact_share": 1.0})
    reward.audit(items, reward.score(items))
    counters = reward.counters()
    assert counters["verifier/exact_graded"] == 400 and counters["verifier/exact_passed"] == 0.5
    assert counters["verifier/exact_accuracy"] == 0.0, "5 is the last number"
    off = build_reward({"exact_share": 0.0})
    off.audit(items, off.score(items))
    assert not any("exact" in name for name in off.counters())


def test_over_ranks_it_is_weighted_by_what_was_graded() -> None:
    first = {"verifier/exact_graded": 3.0, "verifier/exact_accuracy": 1.0, "verifier/exact_passed": 1.0}
    second = {"verifier/exact_graded": 1.0, "verifier/exact_accuracy": 0.0, "verifier/exact_passed": 1.0}
    merged = merged_counters([first, second, {}])
    assert merged == {"verifier/exact_graded": 4.0, "verifier/exact_accuracy": 0.75, "verifier/exact_passed": 1.0}


def test_the_second_grader_reports_its_accuracy_and_the_first_ones() -> None:
    class Fixed:
        def judge(self, prompt: str, response: str, truths: object) -> bool:
            return response.startswith("1")

    reward = build_reward({"second_grader": {"share": 1.0}})
    assert reward.second is not None
    reward.second._judge = Fixed()
    reward.score([RewardInput(f"{n} <answer>4</answer>", ("4",)) for n in (1, 2, 3, 10)])
    counters = reward.counters()
    assert counters["verifier/second_accuracy"] == 0.5 == counters["verifier/disagreement"]
    assert counters["verifier/second_passed"] == 1.0
