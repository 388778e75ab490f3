"""The learning rate of a section is the rate of the run: of every tensor that trains."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.compose import load_params
from mathrl.learners.optimizer import FlatParameters, OptimizerSet, schedule
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.optimizer import Muon
from mathrl.params.run import FreshModel
from mathrl.params.train import Rl, Sft

PARAMS = Path(__file__).parents[2] / "params"


def steps(section: Sft | Rl, base: FreshModel) -> dict[str, torch.Tensor]:
    """The change of every trainable tensor in the first update, with equal weights and gradients each time."""
    model: Any = fresh_network(base, character_tokenizer(base), seed=0)
    flat = FlatParameters(model)
    optimizer = OptimizerSet(model, flat, section.optimizer, section.steps)
    before = flat.weights.clone()
    flat.gradients.copy_(torch.randn(len(flat.gradients), generator=torch.Generator().manual_seed(1)))
    optimizer.step(0)
    changes = (flat.weights - before).split([weight.numel() for weight in flat.named.values()])
    return dict(zip(flat.named, changes, strict=True))


@pytest.mark.parametrize("section", ["sft", "rl"])
def test_the_learning_rate_scales_the_step_of_every_trainable_tensor(section: str) -> None:
    params = load_params(PARAMS)
    assert isinstance(params.model.base, FreshModel)
    lr = getattr(params, section).optimizer.lr
    lower = load_params(PARAMS, overrides=[f"{section}.optimizer.lr={lr / 2}"])
    first, second = (steps(getattr(each, section), params.model.base) for each in (params, lower))
    assert len(first) > 30 and first.keys() == second.keys()
    for name, change in first.items():
        assert change.abs().max() > 0, name
        torch.testing.assert_close(second[name], change / 2, rtol=1e-2, atol=1e-7, msg=name)


def test_the_shipped_rates_of_adamw_are_exact() -> None:
    params = load_params(PARAMS)
    assert params.rl.optimizer.adamw_lr == 5e-4
    assert params.sft.optimizer.adamw_lr == 3e-3


def test_another_type_of_optimizer_keeps_adamws_rate_unless_a_rate_is_typed() -> None:
    assert load_params(PARAMS, overrides=["rl.optimizer.type=adamw"]).rl.optimizer.lr == 5e-4
    # A bare name is the type with its section's defaults; its rate follows from the model.
    assert load_params(PARAMS, overrides=["rl.optimizer=adamw"]).rl.optimizer.lr == 5e-4
    pretrained = load_params(PARAMS, overrides=["rl.optimizer=adamw", "model=Qwen/Qwen2.5-0.5B"])
    assert pretrained.rl.optimizer.lr == 1e-6
    for typed in (["rl.optimizer.type=adamw", "rl.optimizer.lr=1e-6"], ["rl.lr=1e-6", "rl.optimizer.type=adamw"]):
        assert load_params(PARAMS, overrides=typed).rl.optimizer.adamw_lr == 1e-6
    muon = load_params(PARAMS, preset="qwen2.5-0.5b-gsm8k", overrides=["rl.optimizer.type=muon"]).rl.optimizer
    assert isinstance(muon, Muon) and (muon.lr, muon.adamw_scale, muon.schedule) == (1e-5, 0.1, "constant")
    dpo = load_params(PARAMS, overrides=["dpo.optimizer=muon"]).dpo.optimizer
    assert isinstance(dpo, Muon) and (dpo.lr, dpo.adamw_scale) == (2e-3, 0.1)


def test_schedules() -> None:
    linear = Muon(lr=0.01, schedule="linear", warmup_steps=2)
    assert [schedule(linear, step, 4) for step in range(4)] == pytest.approx([0.5, 0.75, 0.5, 0.25])
    once = Muon(lr=0.01, schedule="linear", warmup_steps=0)
    assert [schedule(once, step, 1) for step in (0, 1)] == [1, 0] and schedule(once, 0, 0) == 1
    flat = Muon(lr=0.01, schedule="flat_linear", warmup_steps=0)
    assert [schedule(flat, step, 4) for step in range(4)] == pytest.approx([1, 1, 1, 0.5])
    assert schedule(Muon(lr=0.01, schedule="cosine", warmup_steps=0), 2, 4) == pytest.approx(0.5)
    assert schedule(Muon(lr=0.01, schedule="constant", warmup_steps=0), 3, 4) == 1
