"""How far sampler and trainer are apart: by hand, at the edges too."""

import pytest
import torch

from mathrl.algorithms.alignment import GAPS, gap_counts, gap_shares


def test_gaps_are_counted_above_each_bound_whichever_side_they_lie_on() -> None:
    trainer = torch.zeros(6)
    sampler = torch.tensor([0.0, 5e-4, -5e-4, 0.05, -0.5, 1.0])  # 1.0 is not above 1
    assert GAPS == (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    assert gap_counts(trainer, sampler).tolist() == [5, 3, 3, 2, 0]
    assert gap_counts(sampler, trainer).tolist() == [5, 3, 3, 2, 0]
    assert gap_counts(trainer, sampler * 2).tolist() == [5, 3, 3, 2, 1]


def test_counts_are_shares_of_all_tokens_under_the_bounds_names() -> None:
    shares = gap_shares([5, 3, 3, 2, 0], 6.0)
    assert shares == {
        "rollout/gap_above/0.0001": 5 / 6,
        "rollout/gap_above/0.001": 0.5,
        "rollout/gap_above/0.01": 0.5,
        "rollout/gap_above/0.1": 1 / 3,
        "rollout/gap_above/1": 0.0,
    }
    assert set(gap_shares([0.0] * 5, 0.0).values()) == {0.0}
    assert gap_shares([1, 0, 0, 0, 0], 0.5)["rollout/gap_above/0.0001"] == 1.0  # of one token at least


def test_every_bound_has_a_count_where_the_log_probs_are() -> None:
    with pytest.raises(ValueError, match="zip"):
        gap_shares([1.0, 2.0], 3.0)
    elsewhere = torch.zeros(3, device="meta")
    assert gap_counts(elsewhere, elsewhere).device.type == "meta"
