"""Micro-batches: shares of the ranks, figures over them, and half the tokens after out-of-memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.core.errors import OutOfMemory
from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import (
    TokenBudget,
    add_gradient,
    attempts,
    own_micro_batches,
    reduce_figures,
    smallest,
)
from mathrl.learners.scoring import score_tokens
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.packing import Group
from mathrl.models.prepared import compute_as
from mathrl.params.optimizer import Muon
from mathrl.params.train import Rl
from mathrl.params.training import Training
from mathrl.trainers.policy_update import update_gradient


def ranks_of(action: str = "stop") -> Ranks:
    return Ranks(torch.device("cpu"), Training.model_validate({"on_out_of_memory": action}))


def needs(budget: TokenBudget, most: int, tried: list[int] | None = None) -> int:
    """The tokens per micro-batch at last, where there is memory for `most`; `tried` receives those of each attempt."""
    for attempt in attempts(budget):
        with attempt as now:
            if tried is not None:
                tried.append(now.tokens)
            if now.tokens > most:
                raise MemoryError("you tried to allocate more than there is")
    return now.tokens


def test_out_of_memory_is_answered_with_half_the_tokens_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    budget = TokenBudget(ranks_of("halve"), 1000, "rl")
    assert needs(budget, 300) == 250 and budget.ranks.halvings == 2
    assert needs(budget, 1000) == 250
    printed = capsys.readouterr().err
    assert "rl: out of memory, continuing with micro-batches of 250 tokens" in printed and printed.count("\n") == 2
    with pytest.raises(OutOfMemory, match=r"activations of a micro-batch .* lower rl.tokens_per_microbatch \(now 31\)"):
        needs(budget, 1)


def test_a_budget_of_one_token_stays_one() -> None:
    assert needs(TokenBudget(ranks_of(), 1, "rl"), 300) == 1


def test_no_smaller_micro_batch_is_tried_than_of_sixteen_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    for tokens, tried in ((33, [33, 16]), (100, [100, 50, 25]), (31, [31]), (20, [20])):
        seen: list[int] = []
        with pytest.raises(OutOfMemory, match=rf"\(now {tried[-1]}\)"):
            needs(TokenBudget(ranks_of("halve"), tokens, "rl"), 0, seen)
        assert seen == tried
        said = [f"micro-batches of {count} tokens;" for count in tried[1:]]
        printed = capsys.readouterr().err
        assert printed.count("\n") == len(said) and all(each in printed for each in said)


def test_out_of_memory_ends_the_run_where_that_is_the_setting() -> None:
    budget = TokenBudget(ranks_of(), 1000, "sft")
    with pytest.raises(OutOfMemory, match=r"lower sft\.tokens_per_microbatch"):
        needs(budget, 300)
    assert budget.ranks.halvings == 0


def test_another_ranks_out_of_memory_halves_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ranks_of("halve")
    answers = iter([[False, True], [False, False]])
    monkeypatch.setattr(ranks, "gather", lambda value: next(answers))
    assert needs(TokenBudget(ranks, 1000, "rl"), 1000) == 500


def test_figures_are_summed_in_their_own_dtype_and_of_a_max_the_largest_is_taken() -> None:
    ranks: Any = ranks_of()
    ranks.gather = lambda value: [value, {"loss": torch.tensor(4.0), "ratio_max": torch.tensor(1.5)}, {}]
    own = [
        {"loss": torch.tensor(1.0), "ratio_max": torch.tensor(3.0), "gaps": torch.tensor([1.0, 0.0])},
        {"loss": torch.tensor(2.0), "ratio_max": torch.tensor(2.0), "gaps": torch.tensor([1.0, 1.0])},
    ]
    figures = {name: value.tolist() for name, value in reduce_figures(own, ranks).items()}
    assert figures == {"loss": 7.0, "ratio_max": 3.0, "gaps": [2.0, 1.0]}
    tiny = {"loss": torch.tensor(1e-12, dtype=torch.float64)}
    ranks.gather = lambda value: [value]
    assert reduce_figures([{"loss": torch.ones((), dtype=torch.float64)}, tiny], ranks)["loss"] == 1 + 1e-12
    assert reduce_figures([], ranks) == {}


def test_what_only_keeps_the_ranks_in_step_adds_no_gradient_and_no_figures() -> None:
    weight, figures = torch.ones(2, requires_grad=True), {"loss": torch.tensor(2.0)}
    for counts, gradient, told in ((0.0, [0.0, 0.0], []), (1.0, [1.0, 1.0], [figures]), (0.5, [1.5, 1.5], [figures])):
        assert add_gradient(torch.Tensor.backward, (weight.sum(), figures), counts) == told
        assert weight.grad is not None and weight.grad.tolist() == gradient


def test_what_is_passed_beside_the_others_is_the_smallest_item(small: Any) -> None:
    assert smallest([5, 3, 2, 4]) == [2]
    ranks: Any = ranks_of()
    ranks.gather = lambda value: [value, 2] if isinstance(value, int) else [value]  # another rank makes two passes
    passed: list[list[Group]] = []

    def forward(groups: list[Group]) -> torch.Tensor:
        passed.append(groups)
        return torch.arange(float(sum(sum(group.counts) for group in groups))) + 10 * len(passed)

    groups = [Group((5, 6), ((7, 8, 9),)), Group((5,), ((7,), (8,)))]
    scores = score_tokens(TokenBudget(ranks, 16, "rl"), "scores", forward, small.policy()[0], groups)
    assert passed == [groups, groups[1:]] and scores.tolist() == [10, 11, 12, 13, 14], "the second pass counts nowhere"


def test_ranks_share_the_chosen_items_and_no_other() -> None:
    shares = []
    for rank in range(2):
        ranks = ranks_of()
        ranks.rank, ranks.world = rank, 2
        shares.append(own_micro_batches([5, 9, 4, 2], 6, ranks, [0, 2, 3]))
    assert shares == [[[0]], [[2, 3]]]


@pytest.mark.parametrize(
    ("kernel", "passes", "count", "tokens"), [("varlen", 1, 1, 45), ("cpu", 2, 1, 45), ("varlen", 1, 2, 90)]
)
def test_a_micro_batch_holds_as_many_tokens_as_the_kernel_computes(
    small: Any, kernel: str, passes: int, count: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the update and in a pass of scores."""
    (model, groups), ranks = small.responses_to_a_long_prompt(monkeypatch, count), ranks_of()
    compute_as(model, replace(prepare_language_model(model), kernel=kernel))
    policy: Any = TorchLearner(model, Muon(lr=1e-3), 10)
    backward, updated, scored = policy.backward, list[torch.Tensor](), list[int]()

    def watched(loss: torch.Tensor) -> None:
        updated.append(loss)
        backward(loss)

    policy.backward = watched
    params = Rl(group_size=2, tokens_per_microbatch=tokens)
    update_gradient(policy, params, small.scored_batch(groups, params, ranks, model)[0], 0.0)

    def forward(micro: list[Group]) -> torch.Tensor:
        scored.append(len(micro))
        return response_logprobs(model, micro)[0]

    score_tokens(TokenBudget(ranks, tokens, "rl"), "scores", forward, model, [group.group for group in groups])
    assert len(updated) == len(scored) == passes
