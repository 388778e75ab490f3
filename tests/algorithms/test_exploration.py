"""Tokens chosen by entropy and covariance, and the adaptive entropy bonus: by hand and against loops."""

import math
import random

import pytest
import torch

from mathrl.algorithms.exploration import (
    adapted_entropy_coef,
    covariances,
    covariances_within,
    highest_covariances,
    highest_entropies,
)

ALL = torch.ones(5, dtype=torch.bool)


def test_the_highest_entropies_by_hand() -> None:
    entropies = torch.tensor([0.1, 2.0, 0.3, 4.0, 1.0])
    assert highest_entropies(entropies, ALL, 0.2).tolist() == [False, False, False, True, False]
    # The 0.6 quantile of five is 0.6 * 4 = 2.4 places up: 1 + 0.4 * (2 - 1).
    assert highest_entropies(entropies, ALL, 0.4).tolist() == [False, True, False, True, False]
    assert highest_entropies(entropies, ALL, 0.5).tolist() == [False, True, False, True, True], "its bound is in"
    kept = torch.tensor([True, True, True, False, True])
    assert highest_entropies(entropies, kept, 0.2).tolist() == [False, True, False, False, False]
    assert not highest_entropies(entropies, ~ALL, 0.2).any()


@pytest.mark.parametrize("share", [0.01, 0.2, 0.77])
def test_the_bound_is_torchs_quantile(share: float) -> None:
    entropies = torch.rand(103, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chosen = highest_entropies(entropies, torch.ones(103, dtype=torch.bool), share)
    assert torch.equal(chosen, entropies >= torch.quantile(entropies, 1 - share))
    assert 0 < chosen.sum() < 103 and not torch.equal(chosen, entropies >= torch.quantile(entropies, share + 0.1))


def test_covariances_against_a_loop() -> None:
    rng = random.Random(3)
    logprobs, advantages = ([rng.gauss(-1, 1) for _ in range(9)] for _ in range(2))
    kept = [number % 4 != 1 for number in range(9)]
    counted = [number for number in range(9) if kept[number]]
    means = [sum(values[number] for number in counted) / len(counted) for values in (logprobs, advantages)]
    expected = [(logprobs[n] - means[0]) * (advantages[n] - means[1]) if kept[n] else -math.inf for n in range(9)]
    found = covariances(torch.tensor(logprobs), torch.tensor(advantages), torch.tensor(kept))
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
    whole = covariances(torch.tensor(logprobs), torch.tensor(advantages), torch.ones(9, dtype=torch.bool))
    assert not torch.allclose(whole[counted], found[counted], atol=0.01), "means over the kept tokens alone"


def test_clip_covs_tokens_are_a_random_few_between_the_bounds() -> None:
    """Of 99 tokens that count twenty lie strictly between, and a share of 0.05 is four."""
    values = torch.cat([torch.linspace(1.01, 4.99, 20), torch.full((40,), 5.0), torch.full((39,), 1.0)])
    values = torch.cat([values, torch.tensor([-math.inf])])

    def chosen(share: float, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return covariances_within(values, share, 1.0, 5.0, generator).nonzero()[:, 0].tolist()

    assert len(chosen(0.05)) == int(0.05 * 99) == 4 and set(chosen(0.05)) < set(range(20))
    assert chosen(0.05) == chosen(0.05) != chosen(0.05, seed=1)
    assert len(chosen(1e-6)) == 1 and chosen(1.0) == list(range(20))
    counts = torch.zeros(20)
    for seed in range(2000):
        counts[chosen(1e-6, seed)] += 1
    assert counts.min() > 60 and counts.max() < 150, "each of the twenty about a hundred times"
    assert not covariances_within(torch.zeros(3), 0.5, 1.0, 5.0, torch.Generator()).any()


def test_kl_covs_tokens_are_those_of_the_largest_covariances() -> None:
    values = torch.tensor([0.5, 3.0, -math.inf, 1.0, -4.0])
    assert highest_covariances(values, 0.5).tolist() == [False, True, False, True, False]
    assert highest_covariances(values, 0.01).tolist() == [False, True, False, False, False]
    assert highest_covariances(values, 1.0).tolist() == [True, True, False, True, True]
    assert not highest_covariances(torch.full((2,), -math.inf), 0.5).any()


def test_the_entropy_controller_by_hand() -> None:
    bounds = (0.0, 0.02)
    assert adapted_entropy_coef(0.01, 0.2, 0.2, 0.005, bounds) == pytest.approx(0.015)
    assert adapted_entropy_coef(0.01, 0.21, 0.2, 0.005, bounds) == pytest.approx(0.005)
    assert adapted_entropy_coef(0.018, 0.1, 0.2, 0.005, bounds) == 0.02
    assert adapted_entropy_coef(0.003, 0.3, 0.2, 0.005, bounds) == 0.0
