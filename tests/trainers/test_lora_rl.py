"""RL with adapters: learns, measures the KL against itself without them, and resumes bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.metrics import without_timings
from mathrl.params.optimizer import Lora, Muon
from mathrl.params.train import Rl
from mathrl.trainers.rl import train_rl
from tests.trainers.small import SIZES

PARAMS = Rl(
    **SIZES,
    steps=5,
    kl={"coef": 0.001},
    checkpoint_every=1,
    optimizer=Muon(lr=2e-2, adamw_scale=1.0, warmup_steps=0, schedule="constant"),
    ema=0.5,
    lora=Lora(r=8, alpha=16),
)


def start(small: Any) -> tuple[Any, Any]:
    """A policy with an embedding large enough that its frozen copy in the head can tell tokens apart."""
    model, sampler = small.policy()
    model.get_input_embeddings().weight.data.mul_(10)
    return model, sampler


def train(small: Any, state: Path, last: int = 99) -> Any:
    model, sampler = start(small)
    train_rl(model, sampler, small.PROBLEMS, [], small.CountsOnes(), PARAMS, small.training_run(state, last))
    return model


def test_adapters_learn_against_themselves_and_resume_bit_for_bit(small: Any, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    model = train(small, whole)
    rows = without_timings(whole / "metrics.jsonl")
    # The reference is the model without its adapters: no distance before the first update, some after.
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6) and rows[-1]["kl"] > 0.01
    before = dict(start(small)[0].named_parameters())
    for name, weight in model.named_parameters():
        if ".lora_" not in name:
            assert torch.equal(weight, before[name.replace(".base_layer.", ".")])

    with pytest.raises(small.Killed):
        train(small, cut, last=3)
    resumed = train(small, cut)
    assert without_timings(cut / "metrics.jsonl") == rows
    for (name, weight), other in zip(model.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(weight, other), name
