"""Reward functions from parameters: shapes, routes, names, counters, user functions, the second grader."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.grading import NotAnExpression, countdown_correct, evaluate_expression, grade, read_truth
from mathrl.params.reward_parts import RewardPart
from mathrl.params.run import Reward
from mathrl.rewards import RewardInput, build_reward
from mathrl.rewards.cascade import Disagreement
from mathrl.rewards.compose import PARTS
from mathrl.rewards.format import format_lines, language_share, r1_tags, repetition_penalty, soft_overlong

RIGHT = RewardInput("<think>8/2</think><answer>4</answer>", ("4",))
WRONG = RewardInput("<think>8/2</think><answer>5</answer>", ("4",))


def overall(params: Any, *items: RewardInput) -> list[float]:
    return [reward.overall for reward in build_reward(params).score(items)]


def test_one_and_zero_and_plus_minus_five() -> None:
    assert overall(None, RIGHT, WRONG) == [1.0, 0.0]
    assert overall({"correct": 5, "incorrect": -5}, RIGHT, WRONG) == [5.0, -5.0]


def test_weighted_accuracy_and_format() -> None:
    params = {
        "parts": [{"type": "accuracy", "weight": 0.75}, {"type": "format_lines", "weight": 0.25, "name": "format"}]
    }
    both = RewardInput("Half of 8.\nThe answer is 4", ("4",))
    lines = RewardInput("Half of 8.\n5", ("4",))
    rewards = build_reward(params).score([both, lines])
    assert [reward.overall for reward in rewards] == pytest.approx([0.75 + 0.25 * 0.5, 0.25 * 0.3])
    assert rewards[0].parts == {"accuracy": 1.0, "format": 0.5}


def test_format_parts() -> None:
    assert [format_lines(t) for t in ("a\nb", "\\boxed{1}", "a\n\n#### 1", "a\n\n")] == [0.3, 0.2, 0.5, 0.0]
    good = "<think>a</think>\n<answer>b</answer>"
    bad = [
        "<answer>b</answer>",
        "<think>a</think>",
        "x" + good,
        good + "x",
        "<think>a</think> so <answer>b</answer>",
        "<answer>b</answer><think>a</think>",
        "<think><think>a</think><answer>b</answer>",
        good + "<answer>c</answer>",
    ]
    assert r1_tags(good) == 1.0
    assert [r1_tags(text) for text in bad] == [0.0] * len(bad)
    assert r1_tags("a</think><answer>b</answer>") == 0.0
    assert r1_tags("a</think><answer>b</answer>", think_open=True) == 1.0


def test_countdown() -> None:
    params = {"parts": [{"type": "countdown"}]}
    row = {"nums": [99, 26, 26], "target": 100}
    tagged = RewardInput("<think>t</think><answer>99 + 26 / 26</answer>", (), row=row)
    untagged = RewardInput("<answer>(99 + 26/26)</answer>", (), row=row)
    reused = RewardInput("<think>t</think><answer>99 + 26 / 26 + 26 - 26</answer>", (), row=row)
    rewards = build_reward(params).score([tagged, untagged, reused])
    assert [reward.overall for reward in rewards] == pytest.approx([1.1, 1.0, 0.1])
    assert [reward.correct for reward in rewards] == [True, True, False]
    assert rewards[0].parts == {"countdown": pytest.approx(1.1), "countdown/format": 1.0}
    with pytest.raises(UserError, match="numbers and target"):
        build_reward(params).score([RewardInput("<answer>4</answer>", ("4",))])


@pytest.mark.parametrize(
    ("expression", "numbers", "target", "right"),
    [
        ("44+19-35", [44, 19, 35], 28, True),
        ("44 × 19 − 35", [44, 19, 35], 801, True),
        ("(1/3)*3", [1, 3, 3], 1, True),
        ("44+19-35 = 28", [44, 19, 35], 28, True),
        ("44+19-35 = 29", [44, 19, 35], 28, False),
        ("28", [44, 19, 35], 28, False),
        ("44+19", [44, 19, 35], 63, False),
        ("4/(2-2)", [4, 2, 2], 1, False),
        ("__import__('os')", [1], 1, False),
        ("4**2", [4, 2], 16, False),
        ("(" * 100 + "4" + ")" * 100, [4], 4, False),
        ("", [4], 4, False),
        ("2 3", [2, 3], 23, False),
    ],
)
def test_countdown_expressions(expression: str, numbers: list[int], target: int, right: bool) -> None:
    assert countdown_correct(expression, numbers, target)[0] == right


def test_countdown_is_exact_and_has_its_own_parser() -> None:
    assert evaluate_expression("1/3+1/3+1/3")[0] == 1
    with pytest.raises(NotAnExpression):
        evaluate_expression("1 + x")
    assert read_truth('{"numbers": [1, 2], "target": 3}') == ([1, 2], 3)
    assert read_truth("\\{1,2\\}") is None
    assert grade("<answer>1 + 2</answer>", '{"numbers": [1, 2], "target": 3}').correct


def test_language_length_and_repetition() -> None:
    assert language_share("we add three and four") == 1.0
    assert language_share("we add 三 加 四 then") == 0.5
    assert language_share("我们计算 $x + \\frac{1}{2}$", "zh") == 1.0
    with pytest.raises(UserError, match="unknown language"):
        language_share("a", "xx")
    assert [soft_overlong(n, 20, 4) for n in (0, 16, 17, 20, 30)] == [0.0, 0.0, -0.25, -1.0, -1.0]
    assert soft_overlong(20, 20, 4, factor=0.5) == -0.5
    with pytest.raises(UserError, match="buffer"):
        soft_overlong(1, 10, 11)
    assert repetition_penalty("a b c d e", n=2) == 0.0
    assert repetition_penalty("a a a a a", n=2) == -0.75
    assert repetition_penalty("a a a a a", n=2, maximum=2.0) == -1.5


def test_every_part_under_its_own_name() -> None:
    kinds = ["accuracy", "format_lines", "r1_tags", "language", "overlong", "repetition"]
    item = RewardInput("<think>one two</think><answer>4</answer>", ("4",), length=9, max_length=10)
    reward = build_reward({"parts": [{"type": kind} for kind in kinds]}).score([item])[0]
    assert set(reward.parts) == set(kinds)
    assert reward.overall == pytest.approx(sum(reward.parts.values()))
    assert reward.parts["overlong"] == pytest.approx(-0.5)


def test_routes_by_task_and_source() -> None:
    params = {"routes": {"countdown": [{"type": "countdown"}], "gsm8k": [{"type": "accuracy", "weight": 3.0}]}}
    game = RewardInput("<answer>1+2</answer>", (), row={"nums": [1, 2], "target": 3}, routes=("countdown",))
    school = RewardInput("#### 4", ("4",), routes=("gsm8k",))
    assert overall(params, game, school, RIGHT) == [1.0, 3.0, 1.0]


def test_a_section_works_like_a_mapping_and_extracts_strictly_by_default() -> None:
    params = Reward.model_validate({"parts": [{"type": "accuracy", "weight": 2.0}]})
    assert overall(params, RIGHT, RewardInput("it is 4", ("4",))) == [2.0, 0.0]


def test_every_type_of_part_has_a_function_with_the_same_defaults() -> None:
    parts = {part.model_fields["type"].annotation.__args__[0]: part for part in get_args(get_args(RewardPart)[0])}
    assert parts.keys() == PARTS.keys()
    for name, function in {
        "format_lines": format_lines,
        "r1_tags": r1_tags,
        "language": language_share,
        "repetition": repetition_penalty,
    }.items():
        (_, *options) = inspect.signature(function).parameters.values()
        assert parts[name](type=name).options.values() == {each.name: each.default for each in options}
    options = parts["overlong"](type="overlong").options
    assert options.factor == inspect.signature(soft_overlong).parameters["factor"].default
    languages = get_args(parts["language"](type="language").options.__class__.model_fields["language"].annotation)
    for language in languages:
        language_share("a", language)


def simple(response: str, ground_truth: Any, **row: Any) -> dict[str, float]:
    return {"overall": 2.0 * (ground_truth in response), "length": float(len(response)), "level": row["level"]}


def with_input(reward_input: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
    return {"overall": np.float32(reward_input["response_length"] * kwargs["factor"])}


def verl_style(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(data_source == "mine" and ground_truth in solution_str)


def test_user_functions() -> None:
    item = RewardInput("x4", ("4",), length=3, row={"level": 5, "data_source": "mine"})
    here = __name__ if "." in __name__ else "tests.rewards.test_compose"
    import sys

    sys.modules.setdefault(here, sys.modules[__name__])
    for name, options, value in (("simple", {}, 2.0), ("with_input", {"factor": 2.0}, 6.0), ("verl_style", {}, 1.0)):
        params = {"parts": [{"type": "function", "name": "mine", "options": {"path": f"{__name__}.{name}", **options}}]}
        reward = build_reward(params).score([item])[0]
        assert reward.overall == value
        assert reward.parts["mine"] == value
    reward = build_reward({"parts": [{"type": "function", "options": {"path": f"{__name__}.simple"}}]}).score([item])[0]
    assert reward.parts["function/length"] == 2.0
    assert reward.parts["function/level"] == 5.0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"extraction": "loose"}, "'strict' or 'lenient'"),
        ({"parts": [{"type": "accurracy"}]}, r"reward.parts.0.type: no type 'accurracy' \(did you mean accuracy\?\)"),
        ({"parts": [{"type": "function"}]}, "parts.0.options: Field required"),
        ({"parts": [{}]}, "parts.0.type: missing; write one of accuracy, noisy_accuracy, majority, format_lines"),
        ({"parts": [{"type": "function", "options": {"path": "no.such.thing"}}]}, "cannot be imported"),
        ({"second_grader": {"type": "oracle"}}, "'math_verify' or 'llm'"),
        ({"second_grader": {"type": "llm", "endpoint": "localhost"}}, "is not a URL"),
    ],
)
def test_mistakes_are_named(params: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_reward(params)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(UserError, match=r"reward.parts.0.options.langage: unknown .*did you mean language\?"):
        build_reward({"parts": [{"type": "language", "options": {"langage": "en"}}]})
    with pytest.raises(UserError, match=r"verl_style.*'factor'; check its options"):
        options = {"path": f"{__name__}.verl_style", "factor": 2}
        build_reward({"parts": [{"type": "function", "options": options}]}).score([RIGHT])


def test_counters_report_and_reset() -> None:
    reward = build_reward({"second_grader": {"type": "math_verify", "share": 1.0}})
    boxed = [RewardInput(f"so \\boxed{{{answer}}}", ("4",)) for answer in ("4", "5")]
    reward.score([*boxed, RewardInput("no idea", ("4",))])
    counters = reward.counters()
    assert counters["verifier/graded"] == 3.0
    assert counters["verifier/timeouts"] == 0.0
    assert counters["verifier/rule/boxed"] == pytest.approx(2 / 3)
    assert counters["verifier/mean_seconds"] > 0
    assert counters["verifier/disagreement"] == 0.0
    assert counters["verifier/second_graded"] == 3.0
    assert reward.counters()["verifier/graded"] == 0.0


class _Yes:
    def judge(self, prompt: str, response: str, truths: Sequence[str]) -> bool | None:
        return None if "abstain" in response else True


def test_disagreement_counts_on_a_sample() -> None:
    beside = Disagreement(_Yes(), 1.0)
    for response, correct in (("a", True), ("b", False), ("abstain", False)):
        beside.see("", response, ["1"], correct)
    assert (beside.judged, beside.differed, beside.abstained, beside.rate) == (2, 1, 1, 0.5)
    without_truth = Disagreement(_Yes(), 1.0)
    for truths in ([], ['{"numbers": [4, 6], "target": 24}']):
        assert without_truth.see("", "a", truths, False) is None
    assert (without_truth.judged, without_truth.abstained) == (0, 2)
    sampled = Disagreement(_Yes(), 0.1)
    for i in range(2000):
        sampled.see("", str(i), ["1"], True)
    assert 120 < sampled.judged < 280


def test_a_noisy_verifier_is_wrong_at_its_rates_and_tells_the_truth_beside() -> None:
    options = {"false_positives": 0.1, "false_negatives": 0.3, "seed": 5}
    reward = build_reward({"correct": 5, "parts": [{"type": "noisy_accuracy", "options": options}]})
    right = [RewardInput(f"{n} <answer>4</answer>", ("4",), prompt="2+2=") for n in range(1000)]
    wrong = [RewardInput(f"{n} <answer>7</answer>", ("4",), prompt="2+2=") for n in range(1000)]
    for items, share in ((right, 0.7), (wrong, 0.1)):
        results = reward.score(items)
        rewarded = [result.overall == 5 for result in results]
        assert abs(sum(rewarded) / 1000 - share) < 4 * (share * (1 - share) / 1000) ** 0.5  # 4 standard errors
        assert {result.correct for result in results} == {items is right}, "accuracy on dev stays that of the rules"
        assert all(
            (result.parts["noisy_accuracy/wrong"] == 1.0) == (result.correct != given)
            for result, given in zip(results, rewarded, strict=True)
        )
        assert rewarded == [result.overall == 5 for result in reward.score(items)], "seeded per response"
    other = build_reward({"correct": 5, "parts": [{"type": "noisy_accuracy", "options": {**options, "seed": 6}}]})
    assert [row.overall for row in other.score(wrong)] != [row.overall for row in reward.score(wrong)]


def test_a_verifier_that_is_wrong_by_rule() -> None:
    part = {"type": "noisy_accuracy", "options": {"last_digit": True}}
    items = [RewardInput(f"<answer>{answer}</answer>", ("36",)) for answer in ("36", "-6", "16", "63", "1.6", "x6")]
    assert overall({"parts": [part]}, *items) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_majority_rewards_the_most_common_answer_of_a_prompt_whatever_the_truth() -> None:
    reward = build_reward({"parts": [{"type": "majority"}], "correct": 2, "incorrect": -1})
    given = [("a", "7"), ("b", "1/2"), ("a", "5"), ("a", "7.0"), ("b", "3"), ("b", "0.5"), ("a", "5"), ("a", "x y")]
    items = [RewardInput(f"<answer>{answer}</answer>", ("5",), prompt=prompt) for prompt, answer in given]
    results = reward.score([*items, RewardInput("no answer", ("5",), prompt="a")])
    # Prompt a: 7 and 7.0 vote together against two 5s, tied, and 7 came first. Prompt b: 1/2 and 0.5 against 3.
    assert [result.overall for result in results] == [2, 2, -1, 2, -1, 2, -1, -1, -1]
    assert [result.correct for result in results] == [False, False, True, False, False, False, True, False, False]
    assert [result.parts["majority/wrong"] for result in results] == [1, 1, 1, 1, 0, 1, 1, 0, 0]


def test_without_a_truth_the_majority_is_what_is_right() -> None:
    reward = build_reward({"parts": [{"type": "majority"}]})
    answers = ("7", "7.0", "5", None)
    items = [RewardInput(f"<answer>{answer}</answer>" if answer else "hm", (), prompt="a") for answer in answers]
    results = reward.score([*items, RewardInput("<answer>5</answer>", ("5",), prompt="a")])
    # The fifth has a truth, 5: two votes against two, 7 came first, and the verdict is the truth's.
    assert [result.overall for result in results] == [1, 1, 0, 0, 0]
    assert [result.correct for result in results] == [True, True, False, False, True]
    assert [result.parts.get("majority/wrong") for result in results] == [None, None, None, None, 1]


def test_a_part_that_grades_needs_a_truth() -> None:
    unlabelled = Problem(id="p", question="1+1=", answers=(), source="mine", split="rl")
    game = unlabelled.with_(extra={"nums": [4, 6], "target": 24})
    by_vote: Any = {"parts": [{"type": "majority"}, {"type": "r1_tags"}]}
    build_reward(by_vote).check_truth(unlabelled)
    build_reward({"routes": {"mine": by_vote["parts"]}}).check_truth(unlabelled)
    build_reward().check_truth(game)
    for params in (None, {"parts": [{"type": "majority"}, {"type": "noisy_accuracy", "name": "noisy"}]}):
        with pytest.raises(UserError, match=r"problem p has no answer, which part (accuracy|noisy) .* majority"):
            build_reward(params).check_truth(unlabelled)


def test_majority_of_a_route_votes_and_without_an_answer_nobody_agrees() -> None:
    reward = build_reward({"routes": {"unlabelled": [{"type": "majority"}]}})
    voted = RewardInput("<answer>4</answer>", ("5",), prompt="q", routes=("unlabelled",))
    assert [result.overall for result in reward.score([voted, RewardInput("<answer>5</answer>", ("5",))])] == [1.0, 1.0]
    silent = RewardInput("", ("5",), prompt="q", routes=("unlabelled",))
    assert [result.overall for result in reward.score([silent, silent])] == [0.0, 0.0]
