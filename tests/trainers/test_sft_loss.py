"""The loss of packed demonstrations is that of each demonstration alone, and wrong boundaries are seen."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.learners.distributed import Ranks
from mathrl.models import packing
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.packing import Group
from mathrl.params.run import FreshModel
from mathrl.params.train import Sft
from mathrl.trainers.sft import train_sft
from mathrl.trainers.training_run import TrainingRun

# Tiny products gain nothing from threads, and lose much where cores are busy.
torch.set_num_threads(1)
CPU = Ranks(torch.device("cpu"))
# Float32 sums in another order; the loss a token is about 10.
TOLERANCE = 2e-4
BASE = FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1, alphabet="arithmetic")
TOKENIZER = character_tokenizer(BASE)


def network() -> Any:
    """Random weights, sharpened so that what a token sees moves its loss by more than a tolerance."""
    model = fresh_network(BASE, TOKENIZER, seed=3)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(6)
    return model


def demonstrations() -> list[Group]:
    """Lengths from one token up, so that rows have blocks of several sizes and padding."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, len(TOKENIZER)) for _ in range(count)]

    return [Group(tokens(rng.randint(1, 9)), [tokens(rng.choice([1, 2, 5, 14, 30]))]) for _ in range(24)]


def alone(model: Any, groups: Sequence[Group]) -> torch.Tensor:
    """Summed negative log-likelihood: a forward pass a demonstration, PyTorch's own cross-entropy."""
    total = torch.zeros(())
    for group in groups:
        (response,) = group.responses
        ids = torch.tensor([[*group.prompt, *response]])
        labels = ids.clone()
        labels[0, : len(group.prompt)] = -100
        logits = model(input_ids=ids).logits[0, :-1].float()
        total = total + torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="sum")
    return total


def first_step(groups: list[Group], folder: Path, tokens_per_microbatch: int) -> dict[str, float]:
    """What train_sft logs of its first step, taken over all of the groups."""
    every = sum(group.packed_tokens for group in groups)
    params = Sft.model_validate(
        {
            "steps": 1,
            "tokens_per_step": every,
            "optimizer": {"type": "adamw", "lr": 0.0},
            "tokens_per_microbatch": tokens_per_microbatch,
        }
    )
    train_sft(
        network(),
        groups,
        groups,
        params,
        TrainingRun(CPU, folder, 0, lambda after: JsonlSink(folder / "metrics.jsonl", resume_after=after)),
    )
    (row,) = without_timings(folder / "metrics.jsonl")
    return row


@pytest.mark.parametrize(
    ("long", "tokens_per_microbatch"), [(1024, 64), (12, 10_000)], ids=["blocks in many rows", "pieces in one row"]
)
def test_loss_and_gradient_of_packed_demonstrations_are_those_of_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: int, tokens_per_microbatch: int
) -> None:
    monkeypatch.setattr(packing, "LONG", long)
    groups = demonstrations()
    row = first_step(groups, tmp_path, tokens_per_microbatch)
    model = network()
    loss = alone(model, groups) / sum(len(group.responses[0]) for group in groups)
    loss.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert row["loss"] == pytest.approx(loss.item(), abs=TOLERANCE)
    assert row["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-3)
    assert row["dev/loss"] == pytest.approx(loss.item(), abs=TOLERANCE)
    model.zero_grad()
    logprobs, _ = response_logprobs(model, groups)
    (-logprobs.mean()).backward()
    packed = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert torch.allclose(packed, gradient, atol=1e-5, rtol=1e-3)


def merged(sequences: list[Any]) -> list[Any]:
    """The first two neighbours as one: the second sees the first."""
    one, other, *rest = sorted(sequences, key=lambda each: each.start)
    return [packing._Sequence(one.start, one.length + other.length), *rest]


def moved(sequences: list[Any]) -> list[Any]:
    """The boundary between two neighbours a token too late."""
    one, other, *rest = sorted(sequences, key=lambda each: each.start)
    return [packing._Sequence(one.start, one.length + 1), packing._Sequence(other.start + 1, other.length - 1), *rest]


@pytest.mark.parametrize("wrong", [merged, moved])
def test_wrong_boundaries_change_the_loss(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    groups = demonstrations()
    model = network()
    expected = alone(model, groups).item()
    assert prepare_language_model(model).packed  # asked now: with wrong boundaries it would say no, and rows be padded
    right = packing.make_layout
    monkeypatch.setattr(packing, "make_layout", lambda sequences, *rest: right(wrong(sequences), *rest))
    logprobs, _ = response_logprobs(model, groups)
    assert abs(-logprobs.sum().item() - expected) > 10 * TOLERANCE * len(logprobs)
