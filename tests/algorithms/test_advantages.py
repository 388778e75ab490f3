"""Advantages against hand-computed numbers and loops."""

import math
import random
import statistics

import pytest
import torch

from mathrl.algorithms.advantages import (
    distillation_advantages,
    group_advantages,
    process_advantages,
    uniform_groups,
    whiten,
)

KINDS = ("grpo", "dr_grpo", "rloo")


def test_group_std_by_hand() -> None:
    # Rewards 1, 0, 0, 0: mean 1/4, unbiased variance (9/16 + 3/16) / 3 = 1/4, so std 1/2.
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([[1.5, -0.5, -0.5, -0.5]])
    assert torch.allclose(group_advantages(rewards, "grpo", eps=0.0), expected)
    # Biased: variance 3/16.
    biased = expected / 2 / math.sqrt(3 / 16)
    assert torch.allclose(group_advantages(rewards, "grpo", ddof=0, eps=0.0), biased)
    assert not torch.allclose(biased, expected)
    # eps is added to the standard deviation.
    assert torch.allclose(group_advantages(rewards, "grpo", eps=0.5), expected / 2)


def test_the_defaults_are_ddof_1_and_eps_1e_6() -> None:
    rewards = torch.tensor([[0.0, 3e-6]], dtype=torch.float64)
    std = 3e-6 / math.sqrt(2)
    assert group_advantages(rewards, "grpo")[0, 1].item() == pytest.approx(1.5e-6 / (std + 1e-6), rel=1e-9)


def test_group_mean_and_leave_one_out_by_hand() -> None:
    rewards = torch.tensor([[0.9, 0.1, 0.5], [1.0, 0.0, 0.0]])
    others = torch.tensor([[0.9 - 0.3, 0.1 - 0.7, 0.5 - 0.5], [1.0, -0.5, -0.5]])
    assert torch.allclose(group_advantages(rewards, "rloo"), others)
    mean = torch.tensor([[0.4, -0.4, 0.0], [2 / 3, -1 / 3, -1 / 3]])
    assert torch.allclose(group_advantages(rewards, "dr_grpo"), mean)


@pytest.mark.parametrize("kind", KINDS)
def test_uniform_groups_and_groups_of_one_get_exactly_zero(kind: str) -> None:
    rewards = torch.full((2, 16), 0.1)
    rewards[1, 3] = 0.7
    advantages = group_advantages(rewards, kind)  # type: ignore[arg-type]
    assert (advantages[0] == 0).all() and (advantages[1] != 0).all()
    assert uniform_groups(rewards).tolist() == [True, False]
    alone = group_advantages(torch.tensor([[0.3], [5.0]]), kind)  # type: ignore[arg-type]
    assert alone.tolist() == [[0.0], [0.0]]
    # Groups of two are the smallest that differ.
    assert (group_advantages(torch.tensor([[0.0, 1.0]]), kind) != 0).all()  # type: ignore[arg-type]


def test_rewards_of_another_shape_are_refused() -> None:
    for rewards in (torch.zeros(3), torch.zeros(3, 0), torch.zeros(1, 2, 2)):
        with pytest.raises(ValueError, match="groups, responses"):
            group_advantages(rewards, "dr_grpo")


def process_by_loops(
    rewards: list[list[float]], ends: list[list[int]], lengths: list[int], ddof: int, eps: float, average: bool
) -> list[float]:
    """DeepSeekMath, section 4.1.3, word by word: R has the rewards of all steps of all the outputs; or their mean."""
    everything = [reward for each in rewards for reward in each]
    mean = sum(everything) / len(everything)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in everything) / (len(everything) - ddof))
    out = []
    for row, places, length in zip(rewards, ends, lengths, strict=True):
        for token in range(length):
            later = [(r - mean) / (std + eps) for r, end in zip(row, places, strict=True) if end >= token]
            out.append(sum(later) / (len(later) or 1) if average else sum(later))
    return out


def flat(
    rewards: list[list[float]], ends: list[list[int]], lengths: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    owners = [number for number, row in enumerate(rewards) for _ in row]
    return (
        torch.tensor([r for row in rewards for r in row], dtype=torch.float64),
        torch.tensor(owners, dtype=torch.long),
        torch.tensor([end for row in ends for end in row], dtype=torch.long),
        torch.tensor(lengths),
    )


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("ddof,eps", [(1, 1e-6), (0, 0.0), (1, 0.3)])
def test_process_supervision_against_loops(ddof: int, eps: float, average: bool) -> None:
    rng = random.Random(ddof)
    for _ in range(30):
        lengths = [rng.randint(1, 9) for _ in range(rng.randint(1, 4))]
        ends = [sorted(rng.sample(range(n), rng.randint(0, min(n, 3)))) for n in lengths]
        ends[0] = ends[0] or [lengths[0] - 1]
        ends[-1] = sorted({*ends[-1], 0, lengths[-1] - 1})
        rewards = [[rng.random() for _ in row] for row in ends]
        if sum(len(row) for row in rewards) < 2:
            continue
        found = process_advantages(*flat(rewards, ends, lengths), mean=average, ddof=ddof, eps=eps)
        expected = process_by_loops(rewards, ends, lengths, ddof, eps, average)
        assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_process_supervision_gives_zero_where_nothing_differs() -> None:
    for rewards, ends, lengths in (
        ([[0.1, 0.1], [0.1]], [[0, 2], [1]], [3, 2]),
        ([[0.7], []], [[2], []], [3, 2]),
        ([[], []], [[], []], [3, 2]),
    ):
        found = process_advantages(*flat(rewards, ends, lengths))  # type: ignore[arg-type]
        assert found.tolist() == [0.0] * 5


@pytest.mark.parametrize("end", [-1, 3])
def test_a_step_outside_its_response_is_refused(end: int) -> None:
    with pytest.raises(ValueError, match="outside its response"):
        process_advantages(*flat([[1.0, 0.0], [0.5]], [[0, end], [0]], [3, 9]))
    process_advantages(*flat([[1.0, 0.0], [0.5]], [[0, 2], [8]], [3, 9]))


def test_whitening_by_hand_and_by_statistics() -> None:
    values, kept = torch.tensor([1.0, 2.0, 4.0, 50.0]), torch.tensor([True, True, True, False])
    # Mean 7/3, unbiased variance 7/3.
    expected = [(v - 7 / 3) / math.sqrt(7 / 3 + 0.5) for v in (1.0, 2.0, 4.0)]
    assert whiten(values, kept, eps=0.5).tolist() == pytest.approx([*expected, 0.0])
    sample = [0.3, -1.0, 2.5, 2.5, 0.1]
    white = whiten(torch.tensor(sample, dtype=torch.float64), torch.ones(5, dtype=torch.bool))
    mean, variance = statistics.mean(sample), statistics.variance(sample)
    assert white.tolist() == pytest.approx([(v - mean) / math.sqrt(variance + 1e-8) for v in sample], rel=1e-12)


def test_the_whitening_eps_is_verls() -> None:
    tiny = whiten(torch.tensor([0.0, 2e-4], dtype=torch.float64), torch.tensor([True, True]))
    # Variance 2e-8, plus 1e-8: +- 1e-4 / sqrt(3e-8).
    assert tiny.tolist() == pytest.approx([-1 / math.sqrt(3), 1 / math.sqrt(3)], rel=1e-6)


def test_whitening_gives_exactly_zero_where_nothing_differs() -> None:
    assert whiten(torch.full((7,), 0.1), torch.ones(7, dtype=torch.bool)).tolist() == [0.0] * 7
    assert whiten(torch.tensor([3.0, 1.0]), torch.tensor([True, False])).tolist() == [0.0, 0.0]
    assert whiten(torch.tensor([3.0]), torch.tensor([False])).tolist() == [0.0]
    assert whiten(torch.tensor([3.0, 1.0]), torch.tensor([True, True])).abs().min() > 0.5


def test_distillation_raises_what_the_teacher_finds_likelier() -> None:
    assert distillation_advantages(torch.tensor([-1.0, -3.0]), torch.tensor([-2.0, -0.5])).tolist() == [1, -2.5]
    # Its expectation under the policy is minus the reverse KL.
    policy, teacher = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    expected = -(policy * (policy / teacher).log()).sum()
    mean = (policy * distillation_advantages(teacher.log(), policy.log())).sum()
    assert mean.item() == pytest.approx(expected.item()) and expected < 0
