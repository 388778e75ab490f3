"""The figures of a step's rollouts, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mathrl.core.types import Completion, Graded, ToolCall
from mathrl.trainers.rollouts import RolloutGroup, rollout_groups, rollout_metrics, tool_metrics


def group(lengths: list[int], correct: list[bool], form: list[float]) -> RolloutGroup:
    """Responses of these lengths; the reward is 1 for a right one, and 0.5 times its form."""
    right = [float(each) for each in correct]
    return RolloutGroup(
        problem=0,
        prompt=(1,),
        responses=tuple((5,) * length for length in lengths),
        logprobs=tuple((0.0,) * length for length in lengths),
        rewards=tuple(one + 0.5 * other for one, other in zip(right, form, strict=True)),
        correct=tuple(correct),
        truncated=(False,) * len(lengths),
        parts=tuple({"accuracy": one, "format": other} for one, other in zip(right, form, strict=True)),
    )


def test_tokens_and_log_probs_are_arrays_of_one_type_however_they_are_given() -> None:
    made = group([3, 1], [True, False], [0.0, 0.0])
    assert [each.dtype for each in made.responses] == [np.int32] * 2
    assert [each.dtype for each in made.logprobs] == [np.float32] * 2
    assert [each.tolist() for each in made.responses] == [[5, 5, 5], [5]]
    part = made.some(1, 2)
    assert (part.problem, part.prompt, part.lengths, part.correct) == (0, (1,), [1], (False,))
    assert part.sampled_tokens == 1 and replace(made, baseline_tokens=2).sampled_tokens == 6


def test_correlations_with_reward_and_with_correctness_are_two_figures() -> None:
    # Lengths 1, 2, 3, 4; the right responses are the two of middling length, form is paid for the long ones.
    metrics = rollout_metrics(
        groups := [group([1, 2], [False, True], [0.0, 0.0]), group([3, 4], [True, False], [1.0, 1.0])], groups
    )
    assert metrics["rollout/length_accuracy_correlation"] == pytest.approx(0)
    # Rewards 0, 1, 1.5, 0.5: the deviations' products sum to 1, over the root of 5 x 1.25.
    assert metrics["rollout/length_reward_correlation"] == pytest.approx(1 / 2.5)
    assert metrics["rollout/part_format_accuracy_correlation"] == pytest.approx(0)
    assert "rollout/part_accuracy_accuracy_correlation" not in metrics


def test_a_part_that_the_right_responses_earn_correlates_with_correctness() -> None:
    groups = [group([2, 4, 6, 8], [False, False, True, True], [0.0, 0.0, 1.0, 1.0])]
    metrics = rollout_metrics(groups, groups)
    assert metrics["rollout/part_format_accuracy_correlation"] == pytest.approx(1)
    # Deviations of length -3, -1, 1, 3 and of correctness -1/2, -1/2, 1/2, 1/2: 4 over the root of 20 x 1.
    assert metrics["rollout/length_accuracy_correlation"] == pytest.approx(4 / 20**0.5)


def test_repetition_is_of_16_tokens_of_each_response() -> None:
    responses = [[range(40), [7] * 18], [[8] * 20, range(5), range(30)]]
    graded = [
        [Graded("p", Completion(list(tokens), [], "", "stop"), False, 0.0, {}, None, "") for tokens in group]
        for group in responses
    ]
    groups = rollout_groups([0, 1, 2], [(1,), None, (2,)], [graded[0], None, graded[1]])
    assert [group.problem for group in groups] == [0, 2]
    assert all(group.graded == () for group in groups), "rollouts that are not kept need no memory"
    kept = rollout_groups([0], [(1,)], graded[:1], kept=True)
    assert kept[0].graded == tuple(graded[0])
    # Of 3 runs of 16 tokens two stand earlier, of 5 four.
    assert [list(group.repeated) for group in groups] == [[0, pytest.approx(2 / 3)], [pytest.approx(4 / 5), 0, 0]]
    assert rollout_metrics(groups, groups)["rollout/repetition"] == pytest.approx((2 / 3 + 4 / 5) / 5)


def test_lengths_by_hand() -> None:
    """A group is empty if each of its responses is the end token alone."""
    groups = [group([1, 1], [False, False], [0.0] * 2), group([1, 9], [False, True], [0.0] * 2)]
    groups.append(group([4, 2], [True, True], [0.0] * 2))
    metrics = rollout_metrics(groups, groups)
    assert metrics["rollout/empty_groups"] == 1 / 3 and metrics["rollout/zero_variance_share"] == 2 / 3
    assert (metrics["response_length"], metrics["response_length_max"]) == (3, 9)
    assert metrics["rollout/longest_to_median"] == 9 / 1.5
    parts = [replace(groups[1], parts=({"accuracy": 0.0}, {"accuracy": 1.0, "code": 0.5})), groups[0]]
    assert rollout_metrics(parts, parts)["reward/code"] == 0.5, "a mean over the responses that have the part"


def test_two_short_responses_have_a_spread_and_are_not_empty() -> None:
    two = [group([2, 1], [True, False], [0.0, 0.0])]
    metrics = rollout_metrics(two, two)
    assert metrics["reward/overall_std"] == pytest.approx(0.5**0.5) and metrics["rollout/empty_groups"] == 0


def test_a_response_alone_has_finite_figures() -> None:
    alone = [group([3], [True], [1.0])]
    metrics = rollout_metrics(alone, alone)
    assert metrics["reward/overall_std"] == 0 and all(math.isfinite(value) for value in metrics.values())


def test_shares_of_the_calls_and_figures_per_response_by_hand() -> None:
    echoes = ToolCall(0, 2, "print(391)", "391", "ok", 0.5)
    fails = ToolCall(2, 5, "print(7)", "7", "error", 2.0)  # no echo: the call gave no result
    breaks = ToolCall(1, 3, "print(1 / 3)", "", "unavailable", 1.0)
    works = ToolCall(3, 4, "print(17 * 23)", "391", "ok", 0.25)
    called = replace(group([9, 9, 9], [True, False, True], [0.0] * 3), calls=((echoes, fails), (breaks, works), ()))
    plain = group([2, 2], [True, False], [0.0] * 2)
    assert tool_metrics([called, plain]) == {
        "tool/calls": 4 / 5,
        "tool/call_share": 2 / 5,
        "tool/seconds": 3.75 / 5,
        "tool/tokens": 8 / 5,
        "tool/right_with_call": 1 / 3,
        "tool/error_rate": 2 / 4,
        "tool/unavailable_rate": 1 / 4,
        "tool/echo_rate": 1 / 4,
    }
    one = tool_metrics([replace(group([9], [False], [0.0]), calls=((fails,),))])
    assert (one["tool/error_rate"], one["tool/right_with_call"], one["tool/echo_rate"]) == (1, 0, 0)
    right = tool_metrics([replace(group([9, 9], [True, False], [0.0] * 2), calls=((works,), ()))])
    assert (right["tool/right_with_call"], right["tool/call_share"]) == (1, 0.5), "of the only right one"
    assert set(tool_metrics([plain]).values()) == {0.0}, "without a call"
