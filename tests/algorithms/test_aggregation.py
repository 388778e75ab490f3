"""Token weights and the sampler's alignment."""

import math

import pytest
import torch

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.alignment import logprob_alignment

KINDS = ("token_mean", "sequence_mean", "sequence_sum")


def test_token_weights_by_hand() -> None:
    lengths = torch.tensor([2, 6, 0])
    assert token_weights(lengths, "token_mean", 8).tolist() == [0.125, 0.125, 0]
    assert token_weights(lengths, "sequence_mean", 8).tolist() == pytest.approx([1 / 4, 1 / 12, 0])
    # The constant is max_tokens, not the longest of the batch.
    assert token_weights(lengths, "sequence_sum", 8).tolist() == [1 / 16, 1 / 16, 0]
    assert spread(torch.tensor([5.0, 7.0]), torch.tensor([1, 2])).tolist() == [5.0, 7.0, 7.0]


def test_a_single_token_counts_whole() -> None:
    one = torch.tensor([1])
    assert [token_weights(one, kind, 1).item() for kind in KINDS] == [1, 1, 1]  # type: ignore[arg-type]
    none = torch.tensor([0, 0])
    assert all(token_weights(none, kind, 4).tolist() == [0, 0] for kind in KINDS)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_against_loops(kind: str) -> None:
    lengths, longest = [3, 1, 0, 4], 6
    losses = [[0.5, -1.0, 2.0], [3.0], [], [1.0, 1.5, -2.0, 0.25]]
    there = [row for row in losses if row]
    expected = {
        "token_mean": sum(sum(row) for row in there) / sum(lengths),
        "sequence_mean": sum(sum(row) / len(row) for row in there) / len(there),
        "sequence_sum": sum(sum(row) for row in there) / (len(there) * longest),
    }[kind]
    sizes = torch.tensor(lengths)
    weights = spread(token_weights(sizes, kind, longest), sizes)  # type: ignore[arg-type]
    total = (weights * torch.tensor([loss for row in losses for loss in row])).sum()
    assert total.item() == pytest.approx(expected)


def test_alignment_is_a_mean_over_the_tokens_of_each_response() -> None:
    # One token of two is off by ln 2: (2 + 1) / 2; in either direction.
    trainer, lengths = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([2, 1])
    for sign in (1, -1):
        sampler = trainer + sign * torch.tensor([math.log(2), 0.0, 0.0])
        assert logprob_alignment(trainer, sampler, lengths).tolist() == pytest.approx([1.5, 1.0])
    assert logprob_alignment(torch.zeros(0), torch.zeros(0), torch.tensor([0])).tolist() == [0.0]
