"""What ranks compute together, each its share, is what one computes alone: ranks as threads that exchange values."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import TokenBudget, own_micro_batches, reduce_figures
from mathrl.learners.scoring import own_passes, score_items, score_tokens
from mathrl.models.packing import Group

SIZES = [3, 9, 1, 4, 4, 7, 2, 6, 5, 8]


class Threads(Ranks):
    """One of several ranks that are threads of this process."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(torch.device("cpu"))
        self.rank, self.world, self.board, self.barrier = rank, len(board), board, barrier

    def gather(self, value: Any) -> list[Any]:
        self.board[self.rank] = value
        self.barrier.wait(20)
        values = list(self.board)
        self.barrier.wait(20)
        return values


def together(world: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """The results of the ranks, each of which does the work."""
    board, barrier = [None] * world, threading.Barrier(world)

    def of(rank: int) -> Any:
        try:
            return work(Threads(rank, board, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(of, range(world)))


@pytest.fixture
def forwards() -> Iterator[list[tuple[int, ...]]]:
    """The micro-batches that were computed, by all ranks."""
    yield []


def squares(forwards: list[Any]) -> Callable[[list[int]], list[int]]:
    def forward(micro: list[int]) -> list[int]:
        forwards.append(tuple(micro))
        return [item * item for item in micro]

    return forward


@pytest.mark.parametrize("world", [1, 2, 3])
def test_items_are_computed_once_in_as_many_passes_at_every_rank(world: int, forwards: list[tuple[int, ...]]) -> None:
    items = list(range(10))

    def work(ranks: Ranks) -> Any:
        budget = TokenBudget(ranks, 12, "rl")
        own = own_passes(budget, "outputs", list, items, SIZES)
        return own, score_items(budget, "outputs", squares(forwards), items, SIZES)

    found = together(world, work)
    for rank, (own, scores) in enumerate(found):
        assert [item for micro in own for item in micro] == items[rank::world]
        assert all(len(micro) == 1 or sum(SIZES[item] for item in micro) <= 12 for micro in own)
        assert scores == [item * item for item in items]
    passes = max(len(own) for own, _ in found)
    spare = world * passes - sum(len(own) for own, _ in found)
    assert len(forwards) == world * passes, "those of a rank that has none left are of the first item"
    assert sorted(item for micro in forwards for item in micro) == sorted(items + [0] * spare)
    assert own_passes(TokenBudget(Ranks(torch.device("cpu")), 12, "rl"), "outputs", list, [], []) == []


@pytest.mark.parametrize("world", [1, 2, 3])
def test_tokens_come_back_in_their_order_from_shares_of_about_equal_size(small: Any, world: int) -> None:
    groups = [
        Group((1, 2), tuple(np.arange(10 * size + r, 10 * size + 2 * r + 2) for r in range(n % 3 + 1)))
        for n, size in enumerate(SIZES)
    ]
    tokens = [token for group in groups for response in group.responses for token in response]
    networks = [small.policy()[0].train() for _ in range(world)]
    forwards: list[list[int]] = []

    def work(ranks: Ranks) -> Any:
        network = networks[ranks.rank]

        def forward(micro: list[Group]) -> torch.Tensor:
            assert not network.training
            values = [token for group in micro for response in group.responses for token in response]
            forwards.append(values)
            return torch.tensor(values, dtype=torch.float64)

        return score_tokens(TokenBudget(ranks, 12, "rl"), "scores", forward, network, groups)

    for scores in together(world, work):
        assert scores.tolist() == tokens and scores.dtype == torch.float32
    assert all(network.training for network in networks), "as before"
    assert {token for values in forwards for token in values} == set(tokens) and len(forwards) % world == 0

    shares = together(world, lambda ranks: own_micro_batches(SIZES, 12, ranks))
    items = [[item for micro in share for item in micro] for share in shares]
    assert sorted(item for share in items for item in share) == list(range(10))
    sums = [sum(SIZES[item] for item in share) for share in items]
    assert max(sums) - min(sums) <= 3
    assert all(len(micro) == 1 or sum(SIZES[item] for item in micro) <= 12 for share in shares for micro in share)
    some = together(world, lambda ranks: own_micro_batches(SIZES, 12, ranks, [1, 4, 7]))
    assert sorted(item for share in some for micro in share for item in micro) == [1, 4, 7]


def test_figures_are_added_over_micro_batches_and_ranks_and_of_max_the_largest_is_taken() -> None:
    def work(ranks: Ranks) -> Any:
        rows = [{"loss": torch.tensor(2.0**n), "ratio_max": torch.tensor(float(n))} for n in range(3 * ranks.rank, 3)]
        return reduce_figures(rows, ranks)

    for figures in together(2, work):  # the second has no micro-batch
        assert {name: float(value) for name, value in figures.items()} == {"loss": 7.0, "ratio_max": 2.0}
    rows = {0: [{"n": torch.tensor([1, 2])}], 1: [{"n": torch.tensor([5, 7])}, {"n": torch.tensor([1, 1])}]}
    for figures in together(2, lambda ranks: reduce_figures(rows[ranks.rank], ranks)):
        assert figures["n"].tolist() == [7, 10]
    assert together(2, lambda ranks: reduce_figures([], ranks)) == [{}, {}]
