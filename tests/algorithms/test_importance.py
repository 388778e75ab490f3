"""Truncated and masked importance weights against hand-computed numbers and loops."""

import math
import random

import pytest
import torch

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.alignment import importance_weights, normalise_weights, within_bounds, without_veto
from mathrl.algorithms.returns import response_sums

RATIO, LENGTHS = torch.tensor([1.5, 4.0, 0.25, 0.5]), torch.tensor([2, 2])


def test_the_bounds_belong_to_the_interval() -> None:
    ratio = torch.tensor([0.5, 2.0])
    _, kept = importance_weights(ratio.log(), torch.zeros(2), torch.tensor([2]), "masked", "token", 0.5, 2.0)
    assert kept.all()
    one, inside = torch.zeros(1), torch.tensor([1])
    assert importance_weights(one, one, inside, "masked", "token", 1.0, 2.0)[1].all()
    assert importance_weights(one, one, inside, "masked", "token", 0.5, 1.0)[1].all()


@pytest.mark.parametrize("kind", ["truncated", "masked"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_against_loops(kind: str, level: str) -> None:
    rng = random.Random(3)
    lengths = [3, 1, 5, 2]
    old, sampler = ([rng.gauss(-1, 0.5) for _ in range(sum(lengths))] for _ in range(2))
    expected: list[tuple[float, bool]] = []
    start = 0
    for length in lengths:
        ratios = [math.exp(old[i] - sampler[i]) for i in range(start, start + length)]
        if level == "sequence":
            ratios = [math.prod(ratios)] * length
        for ratio in ratios:
            inside = 0.6 <= ratio <= 1.7
            expected.append((min(ratio, 1.7), True) if kind == "truncated" else (ratio * inside, inside))
        start += length
    weights, kept = importance_weights(
        torch.tensor(old, dtype=torch.float64),
        torch.tensor(sampler, dtype=torch.float64),
        torch.tensor(lengths),
        kind,
        level,
        0.6,
        1.7,  # type: ignore[arg-type]
    )
    assert weights.tolist() == pytest.approx([weight for weight, _ in expected])
    assert kept.tolist() == [inside for _, inside in expected]
    assert kept.all() == (kind == "truncated")


def test_weights_carry_no_gradient() -> None:
    old = torch.zeros(2, requires_grad=True)
    weights, _ = importance_weights(old, torch.zeros(2), torch.tensor([2]), "truncated", "token", 0.5, 2.0)
    assert not weights.requires_grad


def test_masked_tokens_are_out_of_the_denominator() -> None:
    """Two of four tokens are left out: the mean of the others' losses is over two."""
    losses = torch.tensor([1.0, 100.0, 100.0, 3.0])
    _, kept = importance_weights(RATIO.log(), torch.zeros(4), LENGTHS, "masked", "token", 0.4, 2.0)
    counted = response_sums(kept.float(), LENGTHS).long()
    weights = spread(token_weights(counted, "token_mean", 8), LENGTHS)
    assert (weights * losses)[kept].sum().item() == pytest.approx(2.0)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_what_is_out_of_bounds_against_loops(level: str) -> None:
    rng = random.Random(5)
    lengths = [3, 1, 5, 2, 4]
    gaps = [rng.gauss(0, 0.4) for _ in range(sum(lengths))]
    expected, start = list[bool](), 0
    for length in lengths:
        part = gaps[start : start + length]
        whole = {"sequence": sum(part), "geometric": sum(part) / length}.get(level)
        expected += [0.8 <= math.exp(gap if whole is None else whole) <= 1.5 for gap in part]
        start += length
    sampler = torch.linspace(-3, -1, sum(lengths), dtype=torch.float64)
    old = sampler + torch.tensor(gaps, dtype=torch.float64)
    kept = within_bounds(old, sampler, torch.tensor(lengths), level, 0.8, 1.5)  # type: ignore[arg-type]
    assert kept.tolist() == expected and 0 < sum(expected) < len(expected)


def test_the_geometric_mean_does_not_grow_with_the_length() -> None:
    """1 % per token is 64 % over fifty tokens, and 1 % of their geometric mean."""
    old, lengths = torch.full((50,), math.log(1.01)), torch.tensor([50])
    assert within_bounds(old, torch.zeros(50), lengths, "geometric", 0.98, 1.02).all()
    assert not within_bounds(old, torch.zeros(50), lengths, "sequence", 0.5, 1.6).any()


def test_one_impossible_token_spoils_its_response_alone() -> None:
    gaps, lengths = torch.tensor([0.0, -10.0, 0.0, 0.0, 20.0]), torch.tensor([3, 2])
    assert without_veto(gaps, torch.zeros(5), lengths, 1e-4).tolist() == [False] * 3 + [True] * 2
    assert without_veto(gaps, torch.zeros(5), lengths, 4e-5).all(), "exp(-10) is 4.54e-5"


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_normalised_weights_have_a_mean_of_one_and_their_ratios(level: str) -> None:
    lengths = torch.tensor([3, 1, 2])
    weights, _ = importance_weights(
        torch.tensor([0.3, -0.2, 0.1, 0.5, -0.9, 0.2]),
        torch.zeros(6),
        lengths,
        "truncated",
        level,
        0.0,
        1.4,  # type: ignore[arg-type]
    )
    found = normalise_weights(weights, lengths, level)  # type: ignore[arg-type]
    mean = found.mean() if level == "token" else (response_sums(found, lengths) / lengths).mean()
    assert float(mean) == pytest.approx(1.0) and torch.allclose(found / found[0], weights / weights[0])
    nothing = torch.zeros(6)
    assert normalise_weights(nothing, lengths, level) is nothing  # type: ignore[arg-type]
