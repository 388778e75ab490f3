"""Two steps of a preset on a tiny model of its architecture; as a script with the backend that it ships.

preset_steps.py NAME FOLDER: one gloo process, weights as DeepSpeed takes them; writes FOLDER/metrics.jsonl.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mathrl.compose import load_params
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Problem
from mathrl.learners.distributed import Ranks
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.load import plain_dtype
from mathrl.models.shapes import KNOWN
from mathrl.params.rollout import Rollout
from mathrl.params.run import PretrainedModel, Reward
from mathrl.params.schema import Params
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult, build_reward
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.rl import train_rl
from mathrl.trainers.training_run import TrainingRun
from tests.trainers.small import BASE

ROOT = Path(__file__).parents[2]
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"


class WithOnes(RewardFunction):
    """The preset's reward, plus something that random weights earn: the share of the character 1."""

    def __init__(self, preset: RewardFunction) -> None:
        super().__init__(Reward())
        self.preset = preset

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        given = self.preset.score(items)
        shares = [item.response.count("1") / max(1, item.length) for item in items]
        return [
            RewardResult(each.overall + share, share > 0, each.parts | {"ones": share}, each.verdict)
            for each, share in zip(given, shares, strict=True)
        ]


def smaller(name: str) -> Params:
    full = load_params(ROOT / "params", preset=name).rl
    sizes = {
        "steps": 2,
        "prompts_per_step": 4,
        "minibatches": min(2, full.minibatches),
        "group_size": min(4, full.group_size),
        "max_tokens": 12,
        "dev.every": 0,
        "checkpoint_every": 2,
    }
    return load_params(ROOT / "params", preset=name, overrides=[f"rl.{key}={value}" for key, value in sizes.items()])


def architecture(params: Params) -> Any:
    base = params.model.base
    return KNOWN[base.path][0] if isinstance(base, PretrainedModel) else base.architecture


def train(name: str, folder: Path, ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights before and after; the records are in folder/metrics.jsonl."""
    params = smaller(name)
    base = BASE.model_copy(update={"architecture": architecture(params), "alphabet": "ascii", "max_positions": 4096})
    tokenizer = character_tokenizer(base)
    tokenizer.chat_template = CHAT
    model = fresh_network(base, tokenizer, seed=3).eval()
    if ranks.divides:
        model = model.to(plain_dtype(params.model))
    before = torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])
    sampler = Sampler(TorchEngine(model, tokenizer, Rollout()), tokenizer, params.prompt)
    game = '{"numbers": [1, 2, 3], "target": 6}' if "countdown" in name else None
    problems = [
        Problem(id=f"p{n}", question=f"{n}+{n}=", answers=(game or str(2 * n),), source="s", split="rl")
        for n in range(1, 33)
    ]
    train_rl(
        model,
        sampler,
        problems,
        (),
        WithOnes(build_reward(params.reward)),
        params.rl,
        TrainingRun(
            ranks, folder, 0, lambda resume_after: JsonlSink(folder / "metrics.jsonl", resume_after=resume_after)
        ),
    )
    return before, torch.cat([weight.detach().flatten() for weight in model.parameters()])


if __name__ == "__main__":
    torch.set_num_threads(1)
    own = Ranks(torch.device("cpu"), load_params(ROOT / "params", preset=sys.argv[1]).training)
    first, last = train(sys.argv[1], Path(sys.argv[2]), own)
    assert torch.isfinite(last).all() and not torch.equal(first, last)
    own.close()
