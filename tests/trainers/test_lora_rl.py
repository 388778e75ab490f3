"""RL with adapters: learns, measures the KL against itself without them, and resumes bit for bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.core.types import Problem
from mathrl.grading.verdict import Verdict
from mathrl.learners.distributed import Ranks
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.lora import Lora
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Prompt
from mathrl.params.train import Optimizer, Rl
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.rl import train_rl
from mathrl.trainers.training_run import TrainingRun

torch.set_num_threads(1)
BASE = FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1, alphabet="arithmetic")
TOKENIZER = character_tokenizer(BASE)
PROBLEMS = [
    Problem(id=f"p{n}", question=f"{n}+{n}=", answers=(str(2 * n),), source="chain", split="rl") for n in range(1, 9)
]
PARAMS = Rl(
    steps=12,
    prompts_per_step=8,
    group_size=8,
    lr=2e-2,
    max_tokens=10,
    kl_coef=0.001,
    checkpoint_every=1,
    optimizer=Optimizer(type="muon", adamw_scale=1.0, warmup_steps=0, schedule="constant"),
    eval_every=0,
    ema=0.5,
    lora=Lora(r=8, alpha=16),
)


class CountsOnes(RewardFunction):
    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        shares = [item.response.count("1") / max(1, item.length) for item in items]
        verdict = Verdict(False, None, "none", "", 0.0)
        return [RewardResult(share, share > 0.5, {"ones": share}, verdict) for share in shares]


class Killed(Exception):
    pass


class EndsAfter(JsonlSink):
    """A process that dies when it wants to log a step."""

    def __init__(self, file: Path, last: int, resume_after: int | None) -> None:
        super().__init__(file, resume_after=resume_after)
        self.last = last

    def log(self, step: int, row: Any) -> None:
        if step > self.last:
            raise Killed
        super().log(step, row)


def start_model() -> Any:
    """Random, with an embedding large enough that its frozen copy in the head can tell tokens apart."""
    model = fresh_network(BASE, TOKENIZER, seed=3).eval()
    model.get_input_embeddings().weight.data.mul_(10)
    return model


def train(state: Path, last: int = 99) -> Any:
    model = start_model()
    sampler = Sampler(TorchEngine(model, TOKENIZER, Rollout()), TOKENIZER, Prompt())
    train_rl(
        model,
        sampler,
        PROBLEMS,
        [],
        CountsOnes({}),
        PARAMS,
        TrainingRun(
            Ranks(torch.device("cpu")),
            state,
            0,
            lambda resume_after: EndsAfter(state / "metrics.jsonl", last, resume_after),
        ),
    )
    return model


def test_adapters_learn_against_themselves_and_resume_bit_for_bit(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    model = train(whole)
    rows = without_timings(whole / "metrics.jsonl")
    assert rows[-1]["reward/overall"] > rows[0]["reward/overall"] + 0.2
    # The reference is the model without its adapters: no distance before the first update, some after.
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6) and rows[-1]["kl"] > 0.01
    start = dict(start_model().named_parameters())
    for name, weight in model.named_parameters():
        if ".lora_" not in name:
            assert torch.equal(weight, start[name.replace(".base_layer.", ".")])

    with pytest.raises(Killed):
        train(cut, last=5)
    resumed = train(cut)
    assert without_timings(cut / "metrics.jsonl") == rows
    for (name, weight), other in zip(model.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(weight, other), name
