"""Hand-computed two- and three-token cases, and properties that hold for any input."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mathrl.algorithms.advantages import group_advantages, uniform_groups
from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.alignment import logprob_alignment
from mathrl.algorithms.entropy import entropy
from mathrl.algorithms.kl import kl_estimate
from mathrl.algorithms.policy_loss import clipped_policy_loss

KINDS = ("group_std", "group_mean", "leave_one_out")
numbers = st.floats(-3, 3, allow_nan=False, width=32)


def test_group_std_by_hand() -> None:
    # Rewards 1, 0, 0, 0: mean 1/4, unbiased variance (9/16 + 3/16) / 3 = 1/4, so std 1/2.
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([[1.5, -0.5, -0.5, -0.5]])
    assert torch.allclose(group_advantages(rewards, "group_std", eps=0.0), expected)
    # Biased: variance 3/16.
    biased = expected / 2 / math.sqrt(3 / 16)
    assert torch.allclose(group_advantages(rewards, "group_std", ddof=0, eps=0.0), biased)
    assert not torch.allclose(biased, expected)
    # eps is added to the standard deviation.
    assert torch.allclose(group_advantages(rewards, "group_std", eps=0.5), expected / 2)


def test_leave_one_out_is_reward_minus_mean_of_others() -> None:
    rewards = torch.tensor([[0.9, 0.1, 0.5], [1.0, 0.0, 0.0]])
    by_hand = torch.tensor([[0.9 - 0.3, 0.1 - 0.7, 0.5 - 0.5], [1.0, -0.5, -0.5]])
    assert torch.allclose(group_advantages(rewards, "leave_one_out"), by_hand)


@pytest.mark.parametrize("kind", KINDS)
def test_uniform_groups_get_exactly_zero(kind: str) -> None:
    rewards = torch.full((2, 16), 0.1)
    rewards[1, 3] = 0.7
    advantages = group_advantages(rewards, kind)  # type: ignore[arg-type]
    assert (advantages[0] == 0).all() and (advantages[1] != 0).all()
    assert uniform_groups(rewards).tolist() == [True, False]


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages(torch.zeros(3, 1), "group_std")


@given(rewards=st.lists(numbers, min_size=3, max_size=9), data=st.data())
@settings(max_examples=60, deadline=None)
def test_advantages_sum_to_zero_and_follow_a_permutation(rewards: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rewards))))
    values = torch.tensor([rewards], dtype=torch.float64)
    for kind in KINDS:
        advantages = group_advantages(values, kind)  # type: ignore[arg-type]
        assert abs(float(advantages.sum())) < 1e-8
        permuted = group_advantages(values[:, order], kind)  # type: ignore[arg-type]
        assert torch.allclose(permuted, advantages[:, order], atol=1e-9)


def test_clipping_by_hand() -> None:
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1])
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0, 2.0])
    logprobs = ratio.log().requires_grad_()
    loss, clipped = clipped_policy_loss(logprobs, torch.zeros(5), advantage, 0.2, 0.28)
    # The pessimistic side: gains are bounded, losses are not.
    assert torch.allclose(loss, torch.tensor([-1.28, -0.5, 1.5, 0.8, -2.2]))
    assert clipped.tolist() == [True, False, False, True, False]
    loss.sum().backward()
    # d(-r A)/d logprob = -r A where free, 0 where clipped.
    assert torch.allclose(logprobs.grad, torch.tensor([0.0, -0.5, 1.5, 0.0, -2.2]))  # type: ignore[arg-type]


@given(values=st.lists(numbers, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_at_ratio_one_the_gradient_is_the_policy_gradient(values: list[float]) -> None:
    advantages = torch.tensor(values)
    logprobs = torch.linspace(-2, -0.1, len(values)).requires_grad_()
    loss, clipped = clipped_policy_loss(logprobs, logprobs.detach().clone(), advantages, 0.2, 0.28)
    loss.sum().backward()
    assert torch.allclose(logprobs.grad, -advantages) and not clipped.any()  # type: ignore[arg-type]


def test_kl_estimators_by_hand() -> None:
    logprobs, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert kl_estimate(logprobs, reference, "k1").item() == pytest.approx(math.log(2))
    assert kl_estimate(logprobs, reference, "k2").item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl_estimate(logprobs, reference, "k3").item() == pytest.approx(0.5 + math.log(2) - 1)


def test_k1_and_k3_are_unbiased_under_the_policy() -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    exact = (policy * (policy / reference).log()).sum()
    for kind in ("k1", "k3"):
        mean = (policy * kl_estimate(policy.log(), reference.log(), kind)).sum()  # type: ignore[arg-type]
        assert mean.item() == pytest.approx(exact.item(), rel=1e-5)


@given(gap=st.floats(-15, 15), size=st.floats(1e-6, 1))
@settings(max_examples=60, deadline=None)
def test_k3_is_never_negative(gap: float, size: float) -> None:
    assert kl_estimate(torch.tensor([gap * size]), torch.zeros(1), "k3").item() >= 0


def test_token_weights_by_hand() -> None:
    lengths = torch.tensor([2, 6, 0])
    assert token_weights(lengths, "token_mean", 8).tolist() == [0.125, 0.125, 0]
    assert token_weights(lengths, "sequence_mean", 8).tolist() == pytest.approx([1 / 4, 1 / 12, 0])
    # The constant is max_tokens, not the longest of the batch.
    assert token_weights(lengths, "sequence_sum", 8).tolist() == [1 / 16, 1 / 16, 0]
    assert spread(torch.tensor([5.0, 7.0]), torch.tensor([1, 2])).tolist() == [5.0, 7.0, 7.0]


@given(lengths=st.lists(st.integers(1, 9), min_size=2, max_size=8), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_loss_does_not_depend_on_the_split(lengths: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(lengths) - 1))
    sizes = torch.tensor(lengths)
    losses = torch.arange(int(sizes.sum()), dtype=torch.float64) - 3
    for kind in ("token_mean", "sequence_mean", "sequence_sum"):
        weights = spread(token_weights(sizes, kind, 9), sizes).double()  # type: ignore[arg-type]
        whole = (weights * losses).sum()
        first = int(sizes[:cut].sum())
        parts = (weights[:first] * losses[:first]).sum() + (weights[first:] * losses[first:]).sum()
        assert parts.item() == pytest.approx(whole.item(), rel=1e-9, abs=1e-12)
    # Weighting each part by its own tokens, the well-known mistake, is caught.
    uneven = sum(losses[a:b].mean() for a, b in ((0, first), (first, len(losses)))) / 2
    if first * 2 != len(losses):
        assert uneven.item() != pytest.approx(losses.mean().item(), rel=1e-9)


def test_entropy_and_alignment() -> None:
    assert entropy(torch.tensor([[0.0, 0.0], [30.0, -math.inf]])).tolist() == pytest.approx(
        [math.log(2), 0.0]
    )
    assert entropy(torch.tensor([[1000.0, 1000.0]])).item() == pytest.approx(math.log(2))
    # One token of two is off by ln 2: (2 + 1) / 2.
    assert logprob_alignment(
        torch.tensor([-1.0, -2.0]), torch.tensor([-1.0 - math.log(2), -2.0])
    ) == pytest.approx(1.5)
