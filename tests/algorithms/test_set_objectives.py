"""Advantages of sets of responses, against all sets written out and against exact gradients of what they optimise."""

from collections.abc import Callable
from itertools import combinations, product
from math import comb
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mathrl.algorithms.advantages import group_advantages
from mathrl.algorithms.set_objectives import part_advantages, pass_at_k_advantages, set_advantages

REWARDS = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=3, max_size=7)


def by_sets(rewards: list[float], k: int, value: Callable[[int, tuple[int, ...]], float]) -> list[float]:
    """The mean of `value(i, set)` over the sets of k responses that hold response i, by writing all sets out."""
    sets = list(combinations(range(len(rewards)), k))
    means = []
    for i in range(len(rewards)):
        holding = [value(i, one) for one in sets if i in one]
        means.append(sum(holding) / len(holding))
    return means


@settings(max_examples=60, deadline=None)
@given(REWARDS, st.integers(2, 7))
def test_pass_at_k_is_the_mean_over_all_sets(rewards: list[float], k: int) -> None:
    k = min(k, len(rewards))
    maxima = torch.tensor([max(one) for one in combinations(rewards, k)], dtype=torch.float64)
    mean, std = float(maxima.mean()), float(maxima.std(correction=0))
    held = by_sets(rewards, k, lambda _, one: max(rewards[j] for j in one))
    expected = [0.0 if len(set(rewards)) == 1 else (value - mean) / (std + 1e-3) for value in held]
    found = set_advantages(torch.tensor([rewards], dtype=torch.float64), "pass_at_k", k, eps=1e-3)
    torch.testing.assert_close(found[0], torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("right", "size", "k"), [(1, 8, 4), (3, 8, 4), (4, 8, 2), (1, 4, 3)])
def test_pass_at_k_has_the_papers_values_for_right_and_wrong(right: int, size: int, k: int) -> None:
    """arXiv:2508.10751: mean 1 - C(wrong, k) / C(N, k), std from it, and the two values."""
    wrong = size - right
    mean = 1 - comb(wrong, k) / comb(size, k)
    std = (mean * (1 - mean)) ** 0.5
    expected = [(1 - mean) / std] * right + [(1 - mean - comb(wrong - 1, k - 1) / comb(size - 1, k - 1)) / std] * wrong
    rewards = torch.tensor([[1.0] * right + [0.0] * wrong], dtype=torch.float64)
    found = set_advantages(rewards, "pass_at_k", k, eps=1e-12)
    torch.testing.assert_close(found[0], torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(REWARDS, st.integers(2, 7))
def test_max_at_k_is_what_a_response_adds_to_its_sets(rewards: list[float], k: int) -> None:
    k = min(k, len(rewards))

    def gain(i: int, one: tuple[int, ...]) -> float:
        return k * (max(rewards[j] for j in one) - max(rewards[j] for j in one if j != i))

    found = set_advantages(torch.tensor([rewards], dtype=torch.float64), "pkpo", k)
    expected = torch.tensor(by_sets(rewards, k, gain), dtype=torch.float64)
    torch.testing.assert_close(found[0], expected, atol=1e-9, rtol=1e-9)


def expected_gradient(probability: float, size: int, advantages: Callable[[Tensor], Tensor]) -> float:
    """E over all groups of mean(advantage times d log p / dp), for a policy that is right with probability p."""
    total = 0.0
    for group in product((1.0, 0.0), repeat=size):
        right = sum(group)
        weight = probability**right * (1 - probability) ** (size - right)
        scores = torch.tensor([1 / probability if one else -1 / (1 - probability) for one in group])
        total += weight * float((advantages(torch.tensor([group]))[0] * scores).mean())
    return total


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_max_at_k_follows_the_gradient_of_pass_at_k(p: float, k: int) -> None:
    exact = k * (1 - p) ** (k - 1)
    found = expected_gradient(p, 5, lambda rewards: set_advantages(rewards, "pkpo", k))
    assert found == pytest.approx(exact, abs=1e-5)
    assert found != pytest.approx((k + 1) * (1 - p) ** k, abs=1e-3)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_max_rl_follows_the_first_terms_of_the_log_likelihoods_gradient(p: float) -> None:
    size = 5
    terms = [(1 - p) ** (k - 1) for k in range(1, size)]  # 1/k times the gradient of pass@k
    found = expected_gradient(p, size, lambda rewards: set_advantages(rewards, "max_rl", 2))
    assert found == pytest.approx(sum(terms), abs=1e-5)
    assert expected_gradient(p, size, lambda r: group_advantages(r, "rloo")) == pytest.approx(1.0, abs=1e-5)


def test_a_rare_success_weighs_more_in_max_rl_than_a_frequent_one() -> None:
    rare, frequent = torch.tensor([[1.0] + [0.0] * 7]), torch.tensor([[1.0] * 7 + [0.0]])
    rare_A, frequent_A = (set_advantages(rewards, "max_rl", 2).max() for rewards in (rare, frequent))
    assert rare_A == 7 and frequent_A == pytest.approx(1 / 7)


@pytest.mark.parametrize("kind", ["max_rl", "pass_at_k", "pkpo"])
def test_equal_rewards_have_no_advantage_and_order_does_not_matter(kind: Any) -> None:
    assert (set_advantages(torch.full((2, 16), 0.7), kind, 4) == 0).all()
    rewards = torch.rand(3, 8, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    found = set_advantages(rewards, kind, 3)
    torch.testing.assert_close(set_advantages(rewards[:, order], kind, 3), found[:, order])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^max_rl divides .* at least 0$"):
        set_advantages(torch.tensor([[-1.0, 1.0]]), "max_rl", 2)
    with pytest.raises(ValueError, match="between 2 and the group size 2"):
        set_advantages(torch.tensor([[0.0, 1.0]]), "pkpo", 3)
    with pytest.raises(ValueError, match="groups, responses"):
        set_advantages(torch.tensor([0.0, 1.0]), "pkpo", 2)


def test_parts_are_normalised_apart() -> None:
    """Accuracy (0 or 1) and a small length penalty: their sum hides the penalty, their own advantages do not."""
    accuracy, length = torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[0.0, -0.01, 0.0, -0.01]])
    found = part_advantages(torch.stack([accuracy, length]), [1.0, 1.0])
    expected = group_advantages(accuracy, "grpo") + group_advantages(length, "grpo")
    torch.testing.assert_close(found, expected)
    summed = group_advantages(accuracy + length, "grpo")
    assert found[0, 0] - found[0, 1] > 50 * (summed[0, 0] - summed[0, 1])
    torch.testing.assert_close(
        part_advantages(torch.stack([accuracy, length]), [2.0, 0.0]), 2 * group_advantages(accuracy, "grpo")
    )
    assert (part_advantages(torch.ones(2, 1, 4), [1.0, 1.0]) == 0).all()


def test_parts_take_their_ddof_and_keep_their_precision() -> None:
    """Rewards 1 and 0: without ddof the std is 1/2, so ±1; a part of 64-bit floats stays one."""
    found = part_advantages(torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), [0.1], ddof=0, eps=0.0)
    assert found.dtype == torch.float64 and found.tolist() == [[0.1, -0.1]]


def test_pass_at_k_divides_by_little_more_than_the_std() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0]])
    for found in (pass_at_k_advantages(rewards, 2), set_advantages(rewards, "pass_at_k", 2)):
        assert found.tolist()[0] == pytest.approx([0.5**0.5, -(0.125**0.5), -(0.125**0.5)], abs=1e-5)
