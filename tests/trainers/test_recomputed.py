"""Activations are recomputed in the backward pass where the parameters say so, and there alone."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.params.advantage import Critic
from mathrl.trainers.rl import train_rl
from tests.trainers.small import PROBLEMS, CountsOnes, fast, policy, short_rl, training_run
from tests.trainers.supervised_traces import sft


def trained(kind: str, folder: Path, recomputed: bool) -> Any:
    """The model after its training."""
    model, sampler = policy()
    if kind == "sft":
        sft(folder, lambda: model, gradient_checkpointing=recomputed)
        return model
    advantage = {"type": "gae", "critic": Critic(optimizer=fast(1e-2))} if kind == "ppo" else {"type": "grpo"}
    params = short_rl(steps=2, advantage=advantage, gradient_checkpointing=recomputed, dev={"every": 0})
    train_rl(model, sampler, PROBLEMS, (), CountsOnes(), params, training_run(folder))
    return model


@pytest.mark.parametrize(("kind", "models"), [("sft", 1), ("grpo", 1), ("ppo", 2)])
def test_every_trained_model_runs_twice_and_learns_the_same(
    kind: str, models: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[int] = Counter()  # of the layers of the trained models, in training
    attention = type(policy()[0].model.layers[0].self_attn)
    forward = attention.forward

    def counted(layer: Any, *given: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and layer.training:
            calls[id(layer)] += 1
        return forward(layer, *given, **named)

    monkeypatch.setattr(attention, "forward", counted)
    one = trained(kind, tmp_path / "kept", recomputed=False)
    once = sorted(calls.values())
    calls.clear()
    other = trained(kind, tmp_path / "recomputed", recomputed=True)
    assert len(once) == models * len(one.model.layers) and sorted(calls.values()) == [2 * count for count in once]
    for kept, again in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(kept, again, atol=1e-6)
