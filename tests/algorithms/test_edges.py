"""Shapes, types and bounds at their edges, where a wrong sign would else go unseen."""

import pytest
import torch

from mathrl.algorithms.advantages import process_advantages, whiten
from mathrl.algorithms.policy_loss import Clip, clipped_policy_loss
from mathrl.algorithms.returns import clipped_value_loss


def test_nothing_is_clipped_without_a_clip() -> None:
    _, clipped_N = clipped_value_loss(torch.zeros(2), torch.ones(2), torch.ones(2), None)
    assert clipped_N.dtype == torch.bool and not clipped_N.any()


def test_the_dual_clips_bound_itself_is_not_clipped() -> None:
    ratio = torch.tensor([2.0])
    assert torch.equal(ratio.log().exp(), ratio)
    loss, clipped = clipped_policy_loss(ratio.log(), torch.zeros(1), -torch.ones(1), Clip(0.2, 0.28, 2.0))
    assert loss.item() == 2.0 and not clipped.any()


def test_no_steps_and_steps_elsewhere() -> None:
    nothing = torch.zeros(0, dtype=torch.float64)
    none = torch.zeros(0, dtype=torch.long)
    found = process_advantages(nothing, none, none, torch.tensor([2, 1]))
    assert found.dtype == torch.float64 and found.tolist() == [0, 0, 0]
    said = r"^a step ends outside its response; step_ends count its tokens from 0$"
    with pytest.raises(ValueError, match=said):
        process_advantages(torch.ones(1), torch.zeros(1, dtype=torch.long), torch.tensor([2]), torch.tensor([2]))


def test_whitening_is_unbiased() -> None:
    white = whiten(torch.tensor([0.0, 2.0]), torch.tensor([True, True]), eps=0.0)
    assert white.tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
