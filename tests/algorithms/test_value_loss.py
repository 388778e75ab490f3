"""The critic's loss and explained variance against hand-computed numbers."""

import math
import statistics

import pytest
import torch

from mathrl.algorithms.returns import clipped_value_loss, explained_variance


def test_value_loss_by_hand() -> None:
    values = torch.tensor([1.0, 0.1, -1.0, 0.5], requires_grad=True)
    old, returns = torch.zeros(4), torch.tensor([1.0, 1.0, -0.9, -1.0])
    loss, clipped = clipped_value_loss(values, old, returns, 0.2)
    # Kept values 0.2, 0.1, -0.2, 0.2; squares max(0, 0.64), 0.81, max(0.01, 0.49), max(2.25, 1.44).
    assert loss.tolist() == pytest.approx([0.32, 0.405, 0.245, 1.125])
    assert clipped.tolist() == [True, False, True, False]
    loss.sum().backward()
    # V - R where free, 0 where clipped.
    assert values.grad.tolist() == pytest.approx([0.0, -0.9, 0.0, 1.5])  # type: ignore[union-attr]


def test_value_loss_without_clipping_is_half_the_square() -> None:
    loss, clipped = clipped_value_loss(torch.tensor([3.0]), torch.zeros(1), torch.tensor([1.0]), None)
    assert loss.tolist() == [2.0] and clipped.tolist() == [False] and clipped.dtype == torch.bool


def test_explained_variance() -> None:
    returns = [0.0, 2.0, 4.0]
    assert explained_variance(torch.tensor(returns), torch.tensor(returns)) == 1.0
    # A constant offset explains as much.
    assert explained_variance(torch.tensor(returns) + 5, torch.tensor(returns)) == pytest.approx(1.0)
    assert explained_variance(torch.tensor([2.0, 2.0, 2.0]), torch.tensor(returns)) == 0.0
    assert explained_variance(-torch.tensor(returns), torch.tensor(returns)) == pytest.approx(-3.0)
    values = [1.0, 2.0, 4.0]
    rest = statistics.pvariance([r - v for r, v in zip(returns, values, strict=True)])
    expected = 1 - rest / statistics.pvariance(returns)
    assert math.isclose(explained_variance(torch.tensor(values), torch.tensor(returns)), expected, rel_tol=1e-6)
    assert explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])) == 0.0
    assert explained_variance(torch.zeros(0), torch.zeros(0)) == 0.0
