"""The update of the RL loop: invariant to micro-batches and to what may be skipped, and it learns."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.algorithms.advantages import group_advantages
from mathrl.core.errors import UserError
from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.core.nouns import Problem
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.run import FreshModel, Prompt, Rollout
from mathrl.params.train import Optimizer, Rl
from mathrl.rewards.compose import Reward, RewardFunction, RewardInput
from mathrl.rewards.verdict import Verdict
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.backend import Backend
from mathrl.trainers.optimizer import FlatParameters, OptimizerSet, schedule
from mathrl.trainers.rl import train_rl
from mathrl.trainers.rollouts import RolloutGroup
from mathrl.trainers.update import update_gradient

# Tiny products gain nothing from threads, and lose much where cores are busy.
torch.set_num_threads(1)
BASE = FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1, alphabet="arithmetic")
TOKENIZER = character_tokenizer(BASE)
PROBLEMS = [
    Problem(id=f"p{n}", question=f"{n}+{n}=", answers=(str(2 * n),), source="chain", split="rl")
    for n in range(1, 9)
]  # fmt: skip


class CountsOnes(RewardFunction):
    """A reward that a random model can climb: the share of the character 1 in the response."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__({})
        self.broken = broken

    def score(self, items: Sequence[RewardInput]) -> list[Reward]:
        shares = [item.response.count("1") / max(1, item.length) for item in items]
        if self.broken:
            shares = [math.nan for _ in shares]
        verdict = Verdict(False, None, "none", "", 0.0)
        return [Reward(share, share > 0.5, {"ones": share}, verdict) for share in shares]


def policy() -> tuple[Any, Sampler]:
    model = fresh_network(BASE, TOKENIZER, seed=3).eval()
    return model, Sampler(TorchEngine(model, TOKENIZER, Rollout()), TOKENIZER, Prompt())


def rollouts(model: Any, sampler: Sampler) -> tuple[list[RolloutGroup], torch.Tensor]:
    groups = []
    for number, group in enumerate(
        sampler.engine.generate(
            [sampler.prompt_tokens(p) or [] for p in PROBLEMS[:4]], Sampling(4, 1.0, 10), 0
        )
    ):
        rewards = (1.0, 0.0, 0.5, 0.0) if number % 2 else (1.0,) * 4
        groups.append(
            RolloutGroup(
                problem=number, prompt=tuple(sampler.prompt_tokens(PROBLEMS[number]) or ()),
                responses=tuple(each.tokens for each in group), rewards=rewards, correct=(True,) * 4,
                logprobs=tuple(each.logprobs for each in group), parts=({},) * 4,
                truncated=tuple(each.finish_reason == "length" for each in group),
            )
        )  # fmt: skip
    return groups, group_advantages(torch.tensor([group.rewards for group in groups]), "group_std")


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum"])
def test_gradient_does_not_depend_on_micro_batches_or_skipping(aggregation: str) -> None:
    model, sampler = policy()
    flat, backend = FlatParameters(model), Backend(torch.device("cpu"))
    groups, advantages = rollouts(model, sampler)
    gradients, losses, trained = [], [], []
    for changes in ({}, {"tokens_per_microbatch": 16}, {"skip_zero_variance": False}):
        params = Rl(aggregation=aggregation, max_tokens=10, **changes)  # type: ignore[arg-type]
        figures = update_gradient(model, None, flat, params, backend, groups, advantages)
        gradients.append(flat.gradients.clone())
        losses.append(figures.loss)
        trained.append(figures.trained)
    assert gradients[0].norm() > 1e-3
    assert trained[2] > trained[0] == trained[1]
    for gradient in gradients[1:]:
        assert torch.allclose(gradient, gradients[0], atol=1e-6)
    # At ratio 1 the loss is minus the weighted mean of the advantages.
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    wrong = Rl(aggregation="sequence_sum", max_tokens=20)
    update_gradient(model, None, flat, wrong, backend, groups, advantages)
    assert not torch.allclose(flat.gradients, gradients[0], atol=1e-6)


def test_masked_truncated_responses_have_no_gradient() -> None:
    model, sampler = policy()
    flat, backend = FlatParameters(model), Backend(torch.device("cpu"))
    groups, advantages = rollouts(model, sampler)
    cut = [RolloutGroup(**{**vars_of(group), "truncated": (True,) * 4}) for group in groups]
    update_gradient(model, None, flat, Rl(truncated="mask"), backend, cut, advantages)
    assert flat.gradients.norm() == 0


def vars_of(group: RolloutGroup) -> dict[str, Any]:
    return {name: getattr(group, name) for name in RolloutGroup.__dataclass_fields__}


def test_kl_is_zero_at_the_reference_and_pulls_back_from_afar() -> None:
    model, sampler = policy()
    reference = fresh_network(BASE, TOKENIZER, seed=3).eval()
    flat, backend = FlatParameters(model), Backend(torch.device("cpu"))
    groups, advantages = rollouts(model, sampler)
    params = Rl(kl_coef=0.5)
    figures = update_gradient(model, reference, flat, params, backend, groups, advantages * 0)
    assert figures.kl == pytest.approx(0.0, abs=1e-6) and flat.gradients.norm() < 1e-4
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02)
    figures = update_gradient(model, reference, flat, params, backend, groups, advantages * 0)
    assert figures.kl > 0 and flat.gradients.norm() > 1e-4


@pytest.mark.parametrize("advantage,minibatches", [("group_std", 1), ("leave_one_out", 2)])
def test_a_tiny_model_learns(tmp_path: Path, advantage: str, minibatches: int) -> None:
    model, sampler = policy()
    params = Rl(
        steps=20, prompts_per_step=8, group_size=8, lr=5e-3, max_tokens=10, advantage=advantage,
        optimizer=Optimizer(type="adamw", warmup_steps=0, schedule="constant"), minibatches=minibatches,
        eval_every=0, ema=None,
    )  # type: ignore[arg-type]  # fmt: skip
    result = train_rl(
        model, sampler, PROBLEMS, PROBLEMS[:2], CountsOnes(), params, 0, Backend(torch.device("cpu")),
        tmp_path, lambda resume_after: JsonlSink(tmp_path / "metrics.jsonl", resume_after=resume_after),
    )  # fmt: skip
    rows = without_timings(tmp_path / "metrics.jsonl")
    assert result.steps == len(rows) == 20
    assert rows[-1]["reward/overall"] > rows[0]["reward/overall"] + 0.2
    assert "dev/accuracy" in rows[-1] and "dev/accuracy" not in rows[0]
    for row in rows:
        assert 1 <= row["rollout/logprob_alignment"] < (1.001 if minibatches == 1 else 1.5)


def test_updates_that_are_not_numbers_are_skipped_counted_and_end_the_run(tmp_path: Path) -> None:
    model, sampler = policy()
    before = [weight.clone() for weight in model.parameters()]
    params = Rl(steps=30, prompts_per_step=2, group_size=2, max_tokens=4, eval_every=0, ema=None)
    with pytest.raises(UserError, match="not a number"):
        train_rl(
            model, sampler, PROBLEMS, [], CountsOnes(broken=True), params, 0, Backend(torch.device("cpu")),
            tmp_path, lambda resume_after: JsonlSink(tmp_path / "metrics.jsonl", resume_after=resume_after),
        )  # fmt: skip
    assert without_timings(tmp_path / "metrics.jsonl")[-1]["skipped_updates"] == 10
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_schedules() -> None:
    linear = Optimizer(schedule="linear", warmup_steps=2)
    assert [schedule(linear, step, 4) for step in range(4)] == pytest.approx([0.5, 0.75, 0.5, 0.25])
    flat = Optimizer(schedule="flat_linear", warmup_steps=0)
    assert [schedule(flat, step, 4) for step in range(4)] == pytest.approx([1, 1, 1, 0.5])
    assert schedule(Optimizer(schedule="cosine", warmup_steps=0), 2, 4) == pytest.approx(0.5)
    assert schedule(Optimizer(schedule="constant", warmup_steps=0), 3, 4) == 1


def test_muon_takes_the_hidden_matrices_only() -> None:
    model, _ = policy()
    flat = FlatParameters(model)
    optimizer = OptimizerSet(model, flat, Optimizer(type="muon"), 1e-3, 10)
    adamw, muon = (part.param_groups[0]["params"] for part, _ in optimizer.parts)
    # 7 matrices in each of 2 layers; the embedding (tied to the head), norms and biases are AdamW's.
    assert len(muon) == 14 and len(adamw) + len(muon) == len(flat.named)
    assert any(weight is model.get_input_embeddings().weight for weight in adamw)
