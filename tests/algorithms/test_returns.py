"""Returns and generalised advantage estimates against hand-computed numbers and loops."""

import random

import pytest
import torch

from mathrl.algorithms.returns import discounted_returns, gae, length_lambdas, pad, response_sums, token_rewards


def gae_by_definition(
    rewards: list[float], values: list[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """A_t as the sum over l of (gamma lam)^l delta_(t+l), arXiv:1506.02438, equation 16."""
    after = [*values[1:], 0.0]
    delta = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after, strict=True)]
    count = len(rewards)
    advantages = [sum((gamma * lam) ** (later - t) * delta[later] for later in range(t, count)) for t in range(count)]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


@pytest.mark.parametrize("gamma,lam", [(1.0, 1.0), (0.9, 0.95), (1.0, 0.0), (0.0, 0.7)])
def test_gae_against_its_definition(gamma: float, lam: float) -> None:
    rng = random.Random(1)
    for _ in range(10):
        lengths = [rng.randint(1, 7) for _ in range(rng.randint(1, 5))]
        rows = [([rng.gauss(0, 1) for _ in range(n)], [rng.gauss(0, 1) for _ in range(n)]) for n in lengths]
        expected = [gae_by_definition(rewards, values, gamma, lam) for rewards, values in rows]
        found, targets = gae(
            torch.tensor([r for rewards, _ in rows for r in rewards], dtype=torch.float64),
            torch.tensor([v for _, values in rows for v in values], dtype=torch.float64),
            torch.tensor(lengths),
            gamma,
            lam,
        )
        assert found.tolist() == pytest.approx([a for each, _ in expected for a in each])
        assert targets.tolist() == pytest.approx([t for _, each in expected for t in each])


def test_a_lambda_by_length_by_hand() -> None:
    # alpha 0.5: 4 tokens have 1 - 1/2, 3 tokens 1/3, and 2 tokens 0; gamma 1. Every value is 0, so delta is the reward.
    rewards, lengths = torch.tensor([0.0, 0, 0, 1, 0, 0, 9, 0, 1]), torch.tensor([4, 3, 2])
    lam = length_lambdas(lengths, 0.5)
    assert lam.tolist() == pytest.approx([1 / 2, 1 / 3, 0])
    found, _ = gae(rewards, torch.zeros(9), lengths, 1.0, lam)
    assert found.tolist() == pytest.approx([1 / 8, 1 / 4, 1 / 2, 1, 1, 3, 9, 0, 1])
    assert length_lambdas(torch.tensor([1, 2]), 0.05).tolist() == [0, 0], "alpha l below 1 is no negative lambda"
    # The weights of the errors to come sum to alpha l (VAPO): here to 200.
    lam = float(length_lambdas(torch.tensor([4000]), 0.05))
    assert sum(lam**step for step in range(4000)) == pytest.approx(200, rel=1e-3)


def test_returns_by_hand_and_against_loops() -> None:
    rewards, lengths = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), torch.tensor([2, 3])
    assert discounted_returns(rewards, lengths, 0.5).tolist() == [2.0, 2.0, 12.0, 16.0, 16.0]
    assert discounted_returns(rewards, lengths, 1.0).tolist() == [3.0, 2.0, 28.0, 24.0, 16.0]
    assert discounted_returns(rewards, lengths, 0.0).tolist() == rewards.tolist()


def test_the_reward_stands_at_the_last_token_and_the_penalty_at_each() -> None:
    rewards, lengths = torch.tensor([1.0, -2.0]), torch.tensor([3, 2])
    assert token_rewards(rewards, lengths).tolist() == [0, 0, 1, 0, -2]
    penalty = torch.tensor([0.5, 0.25, 0.125, 1.0, 2.0])
    assert token_rewards(rewards, lengths, penalty).tolist() == [-0.5, -0.25, 0.875, -1, -4]


def test_sums_and_padding() -> None:
    values, lengths = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 1])
    assert response_sums(values, lengths).tolist() == [3.0, 0.0, 4.0]
    table, real = pad(values, lengths)
    assert table.tolist() == [[1, 2], [0, 0], [4, 0]]
    assert real.tolist() == [[True, True], [False, False], [True, False]]
    assert pad(torch.zeros(0), torch.tensor([0]))[0].tolist() == [[0.0]]
    assert pad(torch.zeros(0), torch.zeros(0, dtype=torch.long))[0].shape == (0, 1)
