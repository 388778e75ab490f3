"""Losses on pairs and steps: by hand, and DPO's gradient as its coefficients."""

import math

import pytest
import torch

from mathrl.algorithms.coefficients import Sampled, dpo
from mathrl.algorithms.preference import bradley_terry_loss, dpo_loss, step_loss
from mathrl.algorithms.returns import response_sums


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


def test_without_smoothing_is_the_default_and_the_gradient_is_the_coefficients() -> None:
    draw = torch.Generator().manual_seed(0)
    lengths_S = torch.tensor([3, 2, 1, 4])
    logprobs_N = torch.randn(10, generator=draw).requires_grad_()
    reference_N = torch.randn(10, generator=draw)
    sums, references = (response_sums(each, lengths_S) for each in (logprobs_N, reference_N))
    loss, margins = dpo_loss(sums[::2], sums[1::2], references[::2], references[1::2], 0.3)
    given = dpo_loss(sums[::2], sums[1::2], references[::2], references[1::2], 0.3, 0.0)[0]
    assert torch.equal(loss, given) and margins.shape == (2,)
    loss.sum().backward()
    zero_N = torch.zeros(10)
    sampled = Sampled(lengths_S, logprobs_N.detach(), zero_N, reference_N, zero_N, torch.ones(4), beta=0.3)
    assert torch.allclose(logprobs_N.grad, -dpo(sampled), atol=1e-6)  # type: ignore[arg-type]


def test_bradley_terry_and_steps_by_hand() -> None:
    found = bradley_terry_loss(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 1.0]))
    assert found.tolist() == pytest.approx([-math.log(sigmoid(1.5)), -math.log(sigmoid(-2.0))])
    found = step_loss(torch.tensor([2.0, -1.0]), torch.tensor([0.25, 1.0]))
    soft = -0.25 * math.log(sigmoid(2.0)) - 0.75 * math.log(sigmoid(-2.0))
    assert found.tolist() == pytest.approx([soft, -math.log(sigmoid(-1.0))])
