"""Every preset resolves; those of published runs train three steps on a tiny model of their architecture."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.core.nouns import Problem
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.load import load_params, preset_names
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel
from mathrl.params.schema import Params
from mathrl.rewards.compose import Reward, RewardFunction, RewardInput, build_reward
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.backend import Backend
from mathrl.trainers.rl import train_rl

ROOT = Path(__file__).parents[2]
PRESETS = preset_names(ROOT / "params")
PAGES = ROOT / "docs" / "presets"
PUBLISHED = {
    "deepseekmath-rl": "llama",
    "gsm8k-ppo-24gb": "qwen2",
    "gsm8k-grpo-8gpu": "qwen2",
    "rlinf-1.5b": "qwen2",
    "countdown-grpo-zero-48gb": "qwen2",
    "countdown-grpo-zero-24gb": "qwen2",
    "dapo-32b": "qwen2",
}
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"


class WithOnes(RewardFunction):
    """The preset's reward, plus something that random weights earn: the share of the character 1."""

    def __init__(self, preset: RewardFunction) -> None:
        super().__init__({})
        self.preset = preset

    def score(self, items: Sequence[RewardInput]) -> list[Reward]:
        given = self.preset.score(items)
        shares = [item.response.count("1") / max(1, item.length) for item in items]
        return [
            Reward(each.overall + share, share > 0, each.parts | {"ones": share}, each.verdict)
            for each, share in zip(given, shares, strict=True)
        ]


def smaller(name: str) -> Params:
    full = load_params(ROOT / "params", preset=name).rl
    sizes = {
        "steps": 3,
        "prompts_per_step": max(4, full.minibatches),
        "group_size": min(4, full.group_size),
        "max_tokens": 12,
        "eval_every": 0,
        "checkpoint_every": 3,
    }
    return load_params(
        ROOT / "params", preset=name, overrides=[f"rl.{key}={value}" for key, value in sizes.items()]
    )


@pytest.mark.parametrize("name", PRESETS)
def test_it_resolves_and_has_a_page(name: str) -> None:
    params = load_params(ROOT / "params", preset=name)
    assert params.model_dump() != load_params(ROOT / "params").model_dump()
    assert any(f"`{name}`" in page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_trains_three_steps(name: str, tmp_path: Path) -> None:
    params = smaller(name)
    base = FreshModel(
        architecture=PUBLISHED[name], hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1,
        max_positions=4096,
    )  # fmt: skip
    tokenizer = character_tokenizer(base)
    tokenizer.chat_template = CHAT
    model = fresh_network(base, tokenizer, seed=3).eval()
    before = torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])
    sampler = Sampler(TorchEngine(model, tokenizer, Rollout()), tokenizer, params.prompt)
    extra: dict[str, Any] = {"numbers": [1, 2, 3], "target": 6} if "countdown" in name else {}
    problems = [
        Problem(id=f"p{n}", question=f"{n}+{n}=", answers=(str(2 * n),), source="s", split="rl", extra=extra)
        for n in range(1, 33)
    ]
    reward = WithOnes(build_reward(params.reward))
    train_rl(
        model, sampler, problems, (), reward, params.rl, 0, Backend(torch.device("cpu")), tmp_path,
        lambda resume_after: JsonlSink(tmp_path / "metrics.jsonl", resume_after=resume_after),
    )  # fmt: skip
    rows = without_timings(tmp_path / "metrics.jsonl")
    assert len(rows) == 3 and all(math.isfinite(row["grad_norm"]) for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows) and rows[-1]["skipped_updates"] == 0
    after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    assert torch.isfinite(after).all() and not torch.equal(before, after)
