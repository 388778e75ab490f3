"""What ranks compute together, each its share, is what one computes alone: ranks as threads that exchange values."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from mathrl.core.hashing import derive_seed
from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import TokenBudget, own_micro_batches, reduce_figures
from mathrl.learners.scoring import own_passes, score_items, score_tokens
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.scores import make_scorer
from mathrl.params.optimizer import AdamW
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardInput, RewardResult
from mathrl.trainers.collect import Collector, StepRollouts, dev_figures
from mathrl.trainers.critic import critic_gradient
from mathrl.trainers.curriculum import make_order
from mathrl.trainers.policy_update import update_gradient
from mathrl.trainers.preference import response_logprob_sums
from mathrl.trainers.scores import group_logprobs
from mathrl.trainers.sft import negative_log_likelihood
from mathrl.trainers.supervised import Item, _gradient
from tests.trainers.small import CountsOnes, scored_batch

SIZES = [3, 9, 1, 4, 4, 7, 2, 6, 5, 8]


class Threads(Ranks):
    """One of several ranks that are threads of this process."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(torch.device("cpu"))
        self.rank, self.world, self.board, self.barrier = rank, len(board), board, barrier

    def gather(self, value: Any) -> list[Any]:
        self.board[self.rank] = value
        self.barrier.wait(300)
        values = list(self.board)
        self.barrier.wait(300)
        return values


def together(world: int, work: Callable[[Ranks], Any], kind: type[Threads] = Threads) -> list[Any]:
    """The results of the ranks, each of which does the work."""
    board, barrier = [None] * world, threading.Barrier(world)

    def of(rank: int) -> Any:
        try:
            return work(kind(rank, board, barrier))
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


class Grading(CountsOnes):
    """Counts what it has graded since it was last asked; a response of even length is right."""

    graded = 0

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        self.graded += len(items)
        return [
            replace(each, correct=item.length % 2 == 0) for each, item in zip(super().score(items), items, strict=True)
        ]

    def counters(self) -> dict[str, float]:
        told, self.graded = {"graded": float(self.graded)}, 0
        return told


@pytest.mark.parametrize("rounds", [1, 3])
def test_ranks_collect_the_groups_of_a_step_together(small: Any, rounds: int) -> None:
    params = Rl(
        prompts_per_step=4, group_size=4, max_tokens=6,
        dynamic_sampling={"rounds": rounds, "prompts_per_round": 5} if rounds > 1 else None,
    )  # fmt: skip
    taken: dict[int, list[list[int]]] = {}
    samplers = [small.policy()[1] for _ in range(2)]  # a network's start is drawn from random numbers of the process

    def work(ranks: Ranks) -> StepRollouts:
        sampler = samplers[ranks.rank]
        order = make_order(params.curriculum, small.PROBLEMS, range(8), 8, 0)
        take = order.take

        def watched(count: int) -> list[int]:
            taken.setdefault(ranks.rank, []).append(take(count))
            return taken[ranks.rank][-1]

        order.take = watched  # type: ignore[method-assign]
        prompts = [sampler.prompt_tokens(problem) for problem in small.PROBLEMS]
        collector = Collector(sampler, small.PROBLEMS, prompts, order, Grading(), None, params, ranks)
        return collector.collect(5 + ranks.rank)

    one, other = together(2, work)
    count = 5 if rounds > 1 else 4
    assert taken[0] == taken[1] and [len(each) for each in taken[0]] == [count] * one.rounds
    for groups, others in ((one.groups, other.groups), (one.sampled, other.sampled)):
        told = [[(g.problem, [r.tolist() for r in g.responses], g.rewards) for g in part] for part in (groups, others)]
        assert told[0] == told[1]
    assert [group.problem for group in one.sampled] == [n for each in taken[0] for n in (*each[::2], *each[1::2])]
    assert len(one.groups) == 4 and one.rounds == other.rounds
    share = [4.0 * len(each[rank::2]) for each in taken[0] for rank in (0, 1)]
    assert [row["graded"] for row in one.counters] == [row["graded"] for row in other.counters] == share
    if rounds > 1:
        differ = [0 < sum(group.correct) < 4 for group in one.sampled]
        numbers = sorted(range(len(differ)), key=lambda number: not differ[number])[:4]
        assert [id(group) for group in one.groups] == [id(one.sampled[number]) for number in numbers]
    assert one.tokens == other.tokens == sum(sum(group.lengths) for group in one.sampled)


def test_ranks_evaluate_each_dev_problem_once_and_have_the_same_figures(small: Any) -> None:
    params = Rl(max_tokens=6, dev={"samples": 2, "temperature": 1.0})
    samplers = [small.policy()[1] for _ in range(2)]

    def work(ranks: Ranks) -> tuple[dict[str, float], Any]:
        sampler, asked, graded = samplers[ranks.rank], [], []
        sample = sampler.sample

        def noted(problems: Any, sampling: Any, reward: Any, seed: int) -> Any:
            asked.append((problems, seed))
            graded.extend(row for rows in sample(problems, sampling, reward, seed) for row in rows)
            return [graded[start : start + 2] for start in range(0, len(graded), 2)]

        sampler.sample = noted
        return dev_figures(sampler, small.PROBLEMS[:5], small.CountsOnes(), params, ranks, 7), (asked, graded)

    (figures, (asked, graded)), (others, (others_asked, others_graded)) = together(2, work)
    assert asked == [(small.PROBLEMS[:5:2], derive_seed(7, "dev", 0))]
    assert others_asked == [(small.PROBLEMS[1:5:2], derive_seed(7, "dev", 1))]
    both = [*graded, *others_graded]
    assert figures == others == {
        "dev/problems": 5,
        "dev/accuracy": sum(row.correct for row in both) / 10,
        "dev/response_length": sum(len(row.completion.tokens) for row in both) / 10,
    }  # fmt: skip
    assert 0 < figures["dev/accuracy"] < 1


class WithASpare(TorchLearner):
    """After its own micro-batches makes a pass that other ranks need."""

    spare = False

    def micro_batches(self, *given: Any) -> Iterator[tuple[list[int], float]]:
        yield from super().micro_batches(*given)
        if self.spare:
            yield [0], 0.0


def test_a_pass_that_other_ranks_need_adds_nothing(small: Any) -> None:
    ranks, found = Ranks(torch.device("cpu")), []
    adamw = AdamW(lr=1e-3)
    for spare in (False, True):
        model, sampler = small.policy()
        groups = small.rollouts(model, sampler)
        policy, critic = WithASpare(model, adamw, 4), WithASpare(make_scorer(model), adamw, 4)
        policy.spare = critic.spare = spare
        params = Rl(group_size=4, advantage="gae", tokens_per_microbatch=48, loss={"entropy_coef": 0.1})
        batch, _ = scored_batch(groups, params, ranks, model, critic=critic.model)
        update, value = update_gradient(policy, params, batch, 0.0), critic_gradient(critic, params, batch)
        gradients = [policy.flat.gradients.clone(), critic.flat.gradients.clone()]
        items = [Item(group.group, terms=4) for group in groups]
        loss_of = partial(negative_log_likelihood, model)
        figures = reduce_figures(_gradient(TokenBudget(ranks, 48, "sft"), policy, items, loss_of), ranks)
        found.append((update, value, figures, [*gradients, policy.flat.gradients.clone()]))
    (update, value, figures, alone), (others, other_value, other_figures, beside) = found
    assert update == others and value == other_value and figures == other_figures and update.tokens > 0
    for one, other in zip(alone, beside, strict=True):
        assert torch.equal(one, other) and one.norm() > 0


def test_entropies_are_computed_where_somebody_reads_them_alone(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sampler = small.policy()
    groups, wanted = small.rollouts(model, sampler), list[bool]()

    def watched(*given: Any, entropy: bool = True) -> Any:
        wanted.append(entropy)
        return response_logprobs(*given, entropy=entropy)

    for module in ("scores", "sft", "preference", "policy_update"):
        monkeypatch.setattr(f"mathrl.trainers.{module}.response_logprobs", watched)
    ranks, params = Ranks(torch.device("cpu")), Rl(group_size=4)
    group_logprobs(model, "policy", groups, params, ranks)
    negative_log_likelihood(model, [Item(groups[0].group)])
    response_logprob_sums(model, [Item(groups[0].group)], mean=False)
    batch, _ = scored_batch(groups, params, ranks, model)
    update_gradient(TorchLearner(model, AdamW(lr=1e-3), 4), params, batch, 0.0)
    assert wanted == [False, False, False, True]
