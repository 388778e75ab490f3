"""Training on pairs: log-probs and the loss against a plain forward, learning, adapters, resuming."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.metrics import without_timings
from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import TokenBudget
from mathrl.models.lora import adapters_off
from mathrl.params.optimizer import Lora
from mathrl.params.run import Prompt
from mathrl.params.train import Dpo
from mathrl.trainers.preference import pair_loss, response_logprob_sums, tokenize_pairs, train_dpo, with_reference
from mathrl.trainers.reward_model import tokenize_steps
from mathrl.trainers.supervised import Item, hold_out
from tests.trainers.small import ON_PAIRS, fast

BUDGET = TokenBudget(Ranks(torch.device("cpu")), Dpo().tokens_per_microbatch, "dpo")
PARAMS = Dpo(steps=12, pairs_per_step=6, **ON_PAIRS)


def rows_of(small: Any) -> list[dict[str, Any]]:
    """The right sum against the right sum and one, of several lengths."""
    return [
        {
            "problem_id": p.id,
            "problem": p.to_row(),
            "chosen": "1" * (1 + n % 3) + p.answers[0],
            "rejected": "2" * (1 + n % 2),
            "chosen_ended": True,
            "rejected_ended": n % 4 != 0,
        }
        for n, p in enumerate(small.PROBLEMS)
    ]


def plain_sums(model: Any, item: Item) -> list[float]:
    """log p(response | prompt), one token after the other, each read at the token before it."""
    sums = []
    for response in item.group.responses:
        ids = [*item.group.prompt, *response]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0].double()
        start = len(item.group.prompt)
        sums.append(sum(float(logits[n - 1].log_softmax(0)[ids[n]]) for n in range(start, len(ids))))
    return sums


def train(
    small: Any, state: Path, params: Dpo = PARAMS, last: int = 99, rows: Sequence[Any] | None = None, model: Any = None
) -> tuple[Any, dict[str, float]]:
    model = model if model is not None else small.policy()[0]
    pairs = tokenize_pairs(rows_of(small) if rows is None else rows, Prompt(), small.TOKENIZER)
    figures = train_dpo(model, pairs, pairs[:2], params, small.training_run(state, last))
    return model, figures


def test_a_pair_is_tokenized_with_its_end_where_it_ended_and_no_prefix_in_the_prompt(small: Any) -> None:
    row = rows_of(small)[0]
    end = small.TOKENIZER.eos_token_id
    prompt = Prompt(response_prefix="1")
    (item,) = tokenize_pairs([row], prompt, small.TOKENIZER)
    assert list(item.group.prompt) == small.TOKENIZER.encode("1+1=")
    assert list(item.group.responses[0]) == [*small.TOKENIZER.encode("12"), end]
    assert list(item.group.responses[1]) == small.TOKENIZER.encode("2")  # it was cut off
    assert tokenize_pairs([row | {"rejected": ""}], prompt, small.TOKENIZER)[0].group.responses[1] == (end,)
    rows = [{name: value for name, value in row.items() if not name.endswith("_ended")}]  # of a file of one's own
    assert [each[-1] for each in tokenize_pairs(rows, prompt, small.TOKENIZER)[0].group.responses] == [end, end]


def test_sums_and_the_loss_are_those_of_plain_forwards(small: Any) -> None:
    model, reference = small.policy(seed=3)[0], small.policy(seed=4)[0]
    items = tokenize_pairs(rows_of(small), Prompt(), small.TOKENIZER)
    expected = [plain_sums(model, item) for item in items]
    assert torch.allclose(
        response_logprob_sums(model, items, mean=False).double(), torch.tensor(expected).double(), atol=1e-4
    )
    lengths = torch.tensor([[len(each) for each in item.group.responses] for item in items])
    means = response_logprob_sums(model, items, mean=True).double()
    assert torch.allclose(means, torch.tensor(expected).double() / lengths, atol=1e-4)

    known = with_reference(reference, items, PARAMS, BUDGET)
    losses, margins = [], []
    for item, own in zip(items, expected, strict=True):
        other = plain_sums(reference, item)
        margin = 0.1 * ((own[0] - other[0]) - (own[1] - other[1]))
        margins.append(margin)
        losses.append(-0.8 * math.log(1 / (1 + math.exp(-margin))) - 0.2 * math.log(1 / (1 + math.exp(margin))))
    loss, figures = pair_loss(model, PARAMS.model_copy(update={"label_smoothing": 0.2}), known)
    assert loss.item() == pytest.approx(sum(losses), abs=1e-4)
    assert figures["margin"] == pytest.approx(sum(margins), abs=1e-4)
    assert figures["judged_right"] == sum(margin > 0 for margin in margins)
    assert figures["logprobs/chosen"] == pytest.approx(sum(own[0] for own in expected), abs=1e-3)
    # The reference's sums the other way round are another loss.
    swapped = [Item(item.group, item.values[::-1]) for item in known]
    assert abs(pair_loss(model, PARAMS, swapped)[0].item() - pair_loss(model, PARAMS, known)[0].item()) > 0.01


def test_it_starts_at_no_margin_and_learns_one(small: Any, tmp_path: Path) -> None:
    _, figures = train(small, tmp_path)
    rows = without_timings(tmp_path / "metrics.jsonl")
    assert rows[0]["margin"] == pytest.approx(0, abs=1e-5)
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert rows[-1]["margin"] > 1 and rows[-1]["judged_right"] == 1.0 and rows[-1]["loss"] < 0.3
    assert figures["dev/judged_right"] == 1.0 and [row["step"] for row in rows if "dev/loss" in row] == [5, 10, 12]


def test_it_starts_at_no_margin_where_the_model_has_dropout(small: Any, tmp_path: Path) -> None:
    train(small, tmp_path, PARAMS.model_copy(update={"steps": 1}), model=small.gpt2())
    (row,) = without_timings(tmp_path / "metrics.jsonl")
    assert row["margin"] == pytest.approx(0, abs=1e-5)


def test_a_killed_run_resumes_to_the_same_bits(small: Any, tmp_path: Path) -> None:
    few = PARAMS.model_copy(update={"steps": 4})
    whole, _ = train(small, tmp_path / "whole", few)
    with pytest.raises(small.Killed):
        train(small, tmp_path / "cut", few, last=2)
    resumed, _ = train(small, tmp_path / "cut", few)
    rows = [without_timings(tmp_path / name / "metrics.jsonl") for name in ("whole", "cut")]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    for weight, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(weight, other)


def test_adapters_alone_are_trained_and_switched_off_they_are_the_reference(small: Any, tmp_path: Path) -> None:
    params = PARAMS.model_copy(update={"lora": Lora(r=4, alpha=16, dropout=0.2), "optimizer": fast(3e-2)})
    model, start = (small.policy()[0] for _ in range(2))
    for each in (model, start):  # large enough that its frozen copy in the head can tell tokens apart
        each.get_input_embeddings().weight.data.mul_(10)
    _, figures = train(small, tmp_path, params, model=model)
    own = dict(start.named_parameters())
    for name, weight in model.named_parameters():
        assert (".lora_" in name) == weight.requires_grad
        if ".lora_" not in name:
            assert torch.equal(weight, own[name.replace(".base_layer.", ".")])
    assert figures["dev/margin"] > 0.3 and figures["dev/judged_right"] == 1.0
    items = tokenize_pairs(rows_of(small), Prompt(), small.TOKENIZER)
    with adapters_off(model):
        off = response_logprob_sums(model, items, mean=False)
    known = torch.tensor([item.values for item in with_reference(start, items, params, BUDGET)])
    assert torch.allclose(off, known, atol=1e-5)
    assert not torch.allclose(response_logprob_sums(model, items, mean=False), known, atol=0.1)


def test_without_a_pair_it_says_what_to_do(small: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dpo: there are no pairs.*sample.samples"):
        train(small, tmp_path, rows=[])


def test_a_row_without_a_problem_is_named(small: Any) -> None:
    row = rows_of(small)[0]
    cut = {name: value for name, value in row["problem"].items() if name != "question"}
    with pytest.raises(UserError, match=r"^pair of p1: not a curated problem \(missing: question"):
        tokenize_pairs([row | {"problem": cut}], Prompt(), small.TOKENIZER)
    with pytest.raises(UserError, match=r"^steps of p1: not a curated problem \(missing: question"):
        tokenize_steps([row | {"problem": cut}], Prompt(), small.TOKENIZER, "semicolon", "soft")


def test_problems_are_held_out_whole_and_the_same_ones_in_later_samples() -> None:
    rows = [{"problem_id": f"p{n // 2}", "n": n} for n in range(200)]
    kept, held = hold_out(rows, 0.1, seed=0)
    names = {row["problem_id"] for row in held}
    assert len(names) == 10 and len(held) == 20 and len(kept) == 180
    assert names.isdisjoint(row["problem_id"] for row in kept)
    later = [row for row in rows if row["n"] % 3]  # other samples of the same problems
    assert {row["problem_id"] for row in hold_out(later, 0.1, seed=0)[1]} == names
    fewer = [row for row in rows if int(row["problem_id"][1:]) % 4]
    again = {row["problem_id"] for row in hold_out(fewer, 0.1, seed=0)[1]}
    left = {row["problem_id"] for row in fewer}
    assert names & left <= again
    assert {row["problem_id"] for row in hold_out(rows, 0.1, seed=1)[1]} != names
    assert hold_out(rows, 0.0, seed=0) == (rows, []) and hold_out(rows[:2], 0.9, seed=0) == (rows[:2], [])
    assert len(hold_out(rows[:4], 0.01, seed=0)[1]) == 2
    twenty = [{"problem_id": f"p{n}"} for n in range(20)]
    held_out = [row["problem_id"] for row in hold_out(twenty, 0.25, seed=3)[1]]
    assert held_out == ["p3", "p6", "p10", "p14", "p18"], "the same with every version"
    for share, count in ((0.99, 19), (1.0, 19), (0.5, 10), (0.02, 1)):
        assert len(hold_out(twenty, share, seed=3)[1]) == count
