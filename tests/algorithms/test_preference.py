"""Losses on pairs and steps by hand; DPO's gradient is in test_coefficients.py."""

import math

import pytest
import torch

from mathrl.algorithms.preference import bradley_terry_loss, dpo_loss, step_loss


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dpo_by_hand(smoothing: float) -> None:
    chosen, rejected, reference = torch.tensor([-1.0]), torch.tensor([-4.0]), torch.tensor([-2.0])
    loss, margin = dpo_loss(chosen, rejected, reference, reference - 0.5, 0.5, smoothing)
    # 0.5 ((-1 + 2) - (-4 + 2.5)) = 1.25
    assert margin.item() == pytest.approx(1.25)
    expected = -(1 - smoothing) * math.log(sigmoid(1.25)) - smoothing * math.log(sigmoid(-1.25))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_bradley_terry_and_steps_by_hand() -> None:
    found = bradley_terry_loss(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 1.0]))
    assert found.tolist() == pytest.approx([-math.log(sigmoid(1.5)), -math.log(sigmoid(-2.0))])
    found = step_loss(torch.tensor([2.0, -1.0]), torch.tensor([0.25, 1.0]))
    soft = -0.25 * math.log(sigmoid(2.0)) - 0.75 * math.log(sigmoid(-2.0))
    assert found.tolist() == pytest.approx([soft, -math.log(sigmoid(-1.0))])
