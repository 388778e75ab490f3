"""Reward models: where scores are read, the losses, learning on pairs and on steps, adapters, resuming."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.metrics import without_timings
from mathrl.learners.distributed import Ranks
from mathrl.models.export import export_model
from mathrl.models.packing import Group
from mathrl.models.prepared import Prepared, compute_as
from mathrl.models.scores import load_scorer, make_scorer
from mathrl.params.optimizer import Lora
from mathrl.params.run import Model, Prompt
from mathrl.params.train import RewardModel
from mathrl.trainers.preference import tokenize_pairs
from mathrl.trainers.reward_model import items_loss, scores_after, tokenize_steps, train_reward_model, with_replay
from mathrl.trainers.supervised import Item
from tests.trainers.small import ON_PAIRS

CPU = Ranks(torch.device("cpu"))
PARAMS = RewardModel(steps=15, batch=8, **ON_PAIRS)
GROUPS = [Group((7, 10, 5), ((5, 9, 11, 2), (3, 2))), Group((8, 4, 6, 9), ((12, 13, 14),))]
PLACES = [(1, 3), (1,), (0, 1, 2)]


def plainly(scorer: Any, groups: list[Group], places: list[tuple[int, ...]], shift: int = 0) -> torch.Tensor:
    """The output of a plain forward at each place of each response, which has read that token too."""
    responses = [(group.prompt, response) for group in groups for response in group.responses]
    out = []
    for (prompt, response), wanted in zip(responses, places, strict=True):
        scores = scorer(input_ids=torch.tensor([[*prompt, *response]])).logits[0, :, 0]
        out += [scores[len(prompt) + place + shift] for place in wanted]
    return torch.stack(out).detach()


@pytest.mark.parametrize("end_token", [0, 2, 9])
def test_scores_are_those_after_the_places_whatever_is_appended(scorer: Any, end_token: int) -> None:
    found = scores_after(scorer, GROUPS, PLACES, end_token).detach()
    assert torch.allclose(found, plainly(scorer, GROUPS, PLACES), atol=2e-4)
    before = plainly(scorer, GROUPS, PLACES, shift=-1)
    assert ((found - before).abs() > 0.05).all(), "a score one token earlier is another one"
    compute_as(scorer, Prepared(packed=False))
    assert torch.allclose(scores_after(scorer, GROUPS, PLACES, end_token).detach(), found, atol=2e-4)


def test_the_loss_of_pairs_is_that_of_plain_scores_at_the_last_tokens(scorer: Any) -> None:
    items = [Item(Group((7, 10), ((5, 9, 2), (3, 2)))), Item(Group((8,), ((12, 2), (11, 4, 4, 4))))]
    ends = [(len(response) - 1,) for item in items for response in item.group.responses]
    a, b, c, d = plainly(scorer, [item.group for item in items], ends).tolist()
    loss, figures = items_loss(scorer, 2, items)
    expected = math.log(1 + math.exp(b - a)) + math.log(1 + math.exp(d - c))
    assert loss.item() == pytest.approx(expected, abs=1e-3)
    assert figures["judged_right"] == (a > b) + (c > d)


def test_the_loss_of_steps_is_the_cross_entropy_at_their_ends(scorer: Any) -> None:
    items = [Item(Group((7, 10), ((5, 9, 2),)), (0.25, 1.0), (0, 2)), Item(Group((8,), ((12, 2),)), (0.0,), (1,))]
    scores = plainly(scorer, [item.group for item in items], [(0, 2), (1,)]).tolist()
    labels = [0.25, 1.0, 0.0]
    expected = sum(
        -y * math.log(1 / (1 + math.exp(-s))) - (1 - y) * math.log(1 / (1 + math.exp(s)))
        for s, y in zip(scores, labels, strict=True)
    )
    loss, figures = items_loss(scorer, 2, items)
    assert loss.item() == pytest.approx(expected, abs=1e-3)
    assert figures["judged_right"] == sum((s > 0) == (y > 0.5) for s, y in zip(scores, labels, strict=True))
    assert [item.weight for item in items] == [2, 1]


def pairs_of(small: Any) -> list[Item]:
    """Chosen: the sum; rejected: another number of as many digits, so that length says nothing."""
    rows = [
        {
            "problem_id": f"{p.id}{wrong}",
            "problem": p.to_row(),
            "chosen": "3" * n + p.answers[0],
            "rejected": "3" * n + str(int(p.answers[0]) + wrong),
        }
        for p in small.PROBLEMS
        for wrong in (-1, 1)
        for n in (0, 2)
    ]
    return tokenize_pairs(rows, Prompt(), small.TOKENIZER)


def steps_of(small: Any) -> list[Item]:
    """Steps are right until a 9 is written, wrong from then on."""
    texts = {"1+1=2;2+2=4;6": (1, 1, 1), "1+1=9;2+2=4;6": (0, 0, 0), "1+1=2;2+2=9;6": (1, 0, 0)}
    rows = [
        {
            "problem_id": p.id,
            "problem": p.to_row(),
            "response": text,
            "ended": True,
            "soft": list(labels),
            "hard": list(labels),
        }
        for p in small.PROBLEMS
        for text, labels in texts.items()
    ]
    return tokenize_steps(rows, Prompt(), small.TOKENIZER, "semicolon", "soft")


def split(items: list[Item]) -> tuple[list[Item], list[Item]]:
    return [item for n, item in enumerate(items) if n % 6], items[::6]


def train(
    small: Any, items: list[Item], state: Path, params: RewardModel = PARAMS, last: int = 99
) -> tuple[Any, dict[str, float]]:
    policy, _ = small.policy()
    policy.get_input_embeddings().weight.data.mul_(10)
    scorer = make_scorer(policy)
    figures = train_reward_model(
        scorer, *split(items), params, small.TOKENIZER.eos_token_id, small.training_run(state, last)
    )
    return scorer, figures


@pytest.mark.parametrize(("kind", "lora"), [(pairs_of, None), (steps_of, Lora(r=8, alpha=32))])
def test_it_learns_and_leaves_the_mean_and_deviation_of_its_scores(
    small: Any, tmp_path: Path, kind: Callable[[Any], list[Item]], lora: Lora | None
) -> None:
    items = kind(small)
    params = PARAMS.model_copy(update={"steps": 4 if lora else 24, "lora": lora})  # adapters learn more slowly
    scorer, figures = train(small, items, tmp_path, params)
    rows = without_timings(tmp_path / "metrics.jsonl")
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-5), "a new head scores 0"
    if lora is None:
        assert figures["judged_right"] > 0.9 and figures["dev/judged_right"] > 0.8 and rows[-1]["loss"] < 0.3
    groups = [item.group for item in split(items)[0]]
    places = [item.places or (len(r) - 1,) for item in split(items)[0] for r in item.group.responses]
    scores = scores_after(scorer, groups, places, 2).tolist()
    assert scorer.config.reward_mean == pytest.approx(statistics.mean(scores), abs=1e-3)
    assert scorer.config.reward_std == pytest.approx(statistics.stdev(scores), rel=1e-3)
    if lora is None:
        return
    start, _ = small.policy()
    start.get_input_embeddings().weight.data.mul_(10)
    own = dict(start.base_model.named_parameters())
    for name, weight in scorer.base_model.named_parameters():
        assert weight.requires_grad == (".lora_" in name)
        if ".lora_" not in name:
            assert torch.equal(weight, own[name.replace(".base_layer.", ".")])
    # Its folder is plain: merged weights, the head, the mean and deviation.
    export_model(scorer, small.TOKENIZER, tmp_path / "model", "# A reward model")
    again = load_scorer(tmp_path / "model", Model(precision="float32"), "cpu")
    assert torch.allclose(scores_after(again, groups, places, 2), torch.tensor(scores), atol=1e-3)
    assert again.config.reward_std == scorer.config.reward_std


@pytest.mark.parametrize(("kind", "count"), [(pairs_of, 2), (steps_of, 1)])
def test_two_scores_have_a_deviation_and_one_has_none(small: Any, tmp_path: Path, kind: Any, count: int) -> None:
    item = kind(small)[0]
    if count == 1:
        item = replace(item, values=item.values[-1:], places=item.places[-1:])
    scorer = make_scorer(small.policy()[0])
    run = small.training_run(tmp_path)
    train_reward_model(scorer, [item], [], PARAMS.model_copy(update={"steps": 1}), small.TOKENIZER.eos_token_id, run)
    places = item.places or [len(response) - 1 for response in item.group.responses]
    ends = [item.places] if item.places else [(place,) for place in places]
    scores = scores_after(scorer, [item.group], ends, 2).tolist()
    assert len(scores) == count and scorer.config.reward_mean == pytest.approx(statistics.mean(scores), abs=1e-6)
    assert scorer.config.reward_std == (pytest.approx(statistics.stdev(scores), rel=1e-3) if count > 1 else 1.0)


def test_a_killed_run_resumes_to_the_same_bits(small: Any, tmp_path: Path) -> None:
    items = pairs_of(small)
    few = PARAMS.model_copy(update={"steps": 4})
    whole, figures = train(small, items, tmp_path / "whole", few)
    with pytest.raises(small.Killed):
        train(small, items, tmp_path / "cut", few, last=2)
    resumed, others = train(small, items, tmp_path / "cut", few)
    rows = [without_timings(tmp_path / name / "metrics.jsonl") for name in ("whole", "cut")]
    assert rows[0] == rows[1] and len(rows[0]) == 4 and figures == others
    for weight, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(weight, other)
    assert whole.config.reward_mean == resumed.config.reward_mean != 0


def test_a_mean_of_steps_counts_each_step_once(small: Any, tmp_path: Path) -> None:
    """A response of three steps weighs three times as much as one of one step, in figures and gradient."""
    head = Group((7,), ((3, 4, 5),))
    items = [Item(head, (1.0, 1.0, 1.0), (0, 1, 2)), Item(Group((7,), ((9,),)), (0.0,), (0,))]
    params = PARAMS.model_copy(update={"steps": 1, "batch": 2, "eval_every": 0})
    state = tmp_path
    train_reward_model(make_scorer(small.policy()[0]), items, [], params, 2, small.training_run(state))
    (row,) = without_timings(state / "metrics.jsonl")
    assert row["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert row["judged_right"] == 0.25  # a score of 0 says wrong: right of the one step alone
    plain = make_scorer(small.policy()[0])
    scores = [plain(input_ids=torch.tensor([ids])).logits[0, 1:, 0] for ids in ([7, 3, 4, 5], [7, 9])]
    labels = torch.tensor([1.0, 1.0, 1.0, 0.0])
    torch.nn.functional.binary_cross_entropy_with_logits(torch.cat(scores), labels).backward()
    norm = torch.cat([weight.grad.flatten() for weight in plain.parameters() if weight.grad is not None]).norm()
    assert row["grad_norm"] == pytest.approx(float(norm), rel=1e-4) and norm > 0.1


def test_what_cannot_be_learned_from_is_refused(small: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reward_model: there is no training data.*sample.samples"):
        train(small, [], tmp_path)
    row = {"problem_id": "p1", "problem": small.PROBLEMS[0].to_row(), "response": "1;2", "ended": True, "soft": [1]}
    with pytest.raises(UserError, match=r"steps of p1: 2 steps by reward.steps=semicolon, 1 labels"):
        tokenize_steps([row], Prompt(), small.TOKENIZER, "semicolon", "soft")


def test_steps_of_a_labelled_response(small: Any) -> None:
    row = {
        "problem_id": "p1",
        "problem": small.PROBLEMS[0].to_row(),
        "response": "1+1=2;2",
        "ended": True,
        "soft": [0.25, 1],
        "hard": [1, 1],
    }
    end = small.TOKENIZER.eos_token_id
    (soft,) = tokenize_steps([row], Prompt(), small.TOKENIZER, "semicolon", "soft")
    assert soft.values == (0.25, 1.0) and soft.places == (5, 7) and soft.group.responses[0][7] == end
    (hard,) = tokenize_steps([row | {"ended": False}], Prompt(), small.TOKENIZER, "semicolon", "hard")
    assert hard.values == (1.0, 1.0) and hard.places == (5, 6) and end not in hard.group.responses[0]


def test_replay_is_a_seeded_share_of_the_old_rows_in_their_order() -> None:
    old = list(range(100))
    made = with_replay(["new"], old, 0.1, seed=0)
    assert made[0] == "new" and len(made) == 11 and made[1:] == sorted(made[1:])
    assert made == with_replay(["new"], old, 0.1, seed=0) != with_replay(["new"], old, 0.1, seed=1)
    assert made[1:] == [6, 7, 11, 18, 19, 27, 31, 71, 79, 90], "the same with every version"
    assert with_replay(["new"], old, 0.0, seed=0) == ["new"]
    assert with_replay(["new"], old, 1.0, seed=0) == ["new", *old]
