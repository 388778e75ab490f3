"""What SFT, DPO and reward models log in four steps, and what the updates did to the weights.

`python -m tests.trainers.supervised_traces --write` writes supervised_traces.json, after a change that is meant to
change a figure; test_supervised_traces.py compares with it.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mathrl.core.metrics import without_timings
from mathrl.models.packing import Group
from mathrl.models.scores import make_scorer
from mathrl.params.optimizer import AdamW, Lora
from mathrl.params.run import Prompt
from mathrl.params.train import Dpo, RewardModel, Sft
from mathrl.trainers.preference import tokenize_pairs, train_dpo
from mathrl.trainers.reward_model import tokenize_steps, train_reward_model
from mathrl.trainers.sft import train_sft
from mathrl.trainers.supervised import Item
from tests.stages.rl_runs import as_text
from tests.trainers.golden_traces import gpt2
from tests.trainers.small import PROBLEMS, TOKENIZER, policy, training_run

FILE = Path(__file__).with_name("supervised_traces.json")
COMMON: dict[str, Any] = {
    "steps": 4, "eval_every": 2, "checkpoint_every": 3, "tokens_per_microbatch": 40,
    "optimizer": AdamW(lr=5e-3, warmup_steps=2, schedule="linear", clip_norm=0.5),
}  # fmt: skip
ADAPTERS = {"lora": Lora(r=2), "gradient_checkpointing": True}


def demonstrations() -> list[Group]:
    """Prompts of several lengths; of two the response's first token is read and not learned."""
    groups = []
    for number, problem in enumerate(PROBLEMS):
        response = [*TOKENIZER.encode("1" * number + problem.answers[0]), TOKENIZER.eos_token_id]
        learned = torch.arange(len(response)).numpy() > 0
        groups.append(Group(TOKENIZER.encode(problem.question), [response], (learned,) if number in (3, 4) else ()))
    return groups


def pairs() -> list[dict[str, Any]]:
    return [
        {
            "problem_id": problem.id,
            "problem": problem.to_row(),
            "chosen": "1" * (1 + number % 3) + problem.answers[0],
            "rejected": "2" * (1 + number % 2),
            "chosen_ended": True,
            "rejected_ended": number % 4 != 0,
        }
        for number, problem in enumerate(PROBLEMS)
    ]


def labelled() -> list[dict[str, Any]]:
    """Responses of three steps, with two kinds of labels."""
    return [
        {
            "problem_id": problem.id,
            "problem": problem.to_row(),
            "response": f"{number}+1={number + 1};2;{problem.answers[0]}",
            "ended": number % 3 != 0,
            "soft": [1.0, number / 8, 0.0],
            "hard": [1.0, 1.0, 0.0],
        }
        for number, problem in enumerate(PROBLEMS)
    ]


def sft(state: Path, make: Callable[[], Any] = lambda: policy()[0], **changes: Any) -> tuple[Any, Any, Any]:
    model, start, groups = *of(make()), demonstrations()
    params = Sft(**COMMON | {"tokens_per_step": 60} | changes)
    return model, start, train_sft(model, groups[:6], groups[6:], params, training_run(state))


def dpo(state: Path, **changes: Any) -> tuple[Any, Any, Any]:
    model, start, items = *of(policy()[0]), tokenize_pairs(pairs(), Prompt(), TOKENIZER)
    params = Dpo(**COMMON | {"pairs_per_step": 4} | changes)
    return model, start, train_dpo(model, items[:6], items[6:], params, training_run(state))


def reward_model(state: Path, items: list[Item], pairwise: bool = False, **changes: Any) -> tuple[Any, Any, Any]:
    model, start = of(make_scorer(policy()[0]))
    params = RewardModel(**COMMON | {"batch": 4} | changes)
    figures = train_reward_model(model, items[:6], items[6:], params, TOKENIZER.eos_token_id, training_run(state))
    if pairwise:  # the loss sees differences: the bias has a gradient of rounding errors, which Adam makes large
        model.config.reward_mean -= model.score.bias.item()
        model.score.bias.data.zero_()
    scale = {"config/mean": model.config.reward_mean, "config/deviation": model.config.reward_std}
    return model, start, figures | scale


def steps(labels: Any) -> list[Item]:
    return tokenize_steps(labelled(), Prompt(), TOKENIZER, "semicolon", labels)


CASES: dict[str, Callable[[Path], tuple[Any, Any, Any]]] = {
    "SFT": sft,
    "SFT by adapters, recomputed activations": partial(sft, **ADAPTERS),
    "SFT with dropout": partial(sft, make=gpt2),
    "SFT without dropout": partial(sft, make=gpt2, dropout=False),
    "SFT evaluated at the end": partial(sft, eval_every=0),
    "DPO": dpo,
    "DPO, smoothed labels, by length": partial(dpo, label_smoothing=0.1, length_normalised=True),
    "DPO by adapters": partial(dpo, lora=Lora(r=2)),
    "a reward model": lambda state: reward_model(state, tokenize_pairs(pairs(), Prompt(), TOKENIZER), pairwise=True),
    "a reward model by adapters": lambda state: reward_model(
        state, tokenize_pairs(pairs(), Prompt(), TOKENIZER), pairwise=True, lora=Lora(r=2)
    ),
    "a process reward model, soft labels": lambda state: reward_model(state, steps("soft")),
    "a process reward model, hard labels": lambda state: reward_model(state, steps("hard")),
}


def of(model: Any) -> tuple[Any, torch.Tensor]:
    """The model, and a copy of its weights."""
    return model, torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


def is_noise(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Which of the weights have a gradient of rounding errors alone, which Adam makes as large as any other.

    A bias of GPT-2's keys adds the same to all scores of a query, so softmax does not see it.
    """
    places = torch.zeros(weight.numel(), dtype=torch.bool)
    if name.endswith("c_attn.bias"):
        places[len(places) // 3 : 2 * len(places) // 3] = True
    return places


def trace(name: str) -> dict[str, Any]:
    """The logged metrics by step, the figures that were returned, and sums over the change of the weights.

    Of adapters the change is the weights themselves.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, start, figures = CASES[name](Path(folder))
        rows = without_timings(Path(folder) / "metrics.jsonl")
        steps = sorted(path.name for path in (Path(folder) / "checkpoints").iterdir())
    tensors = [(".lora_" in name, weight.detach().flatten().double()) for name, weight in model.named_parameters()]
    moved = torch.cat([weight for adapter, weight in tensors if not adapter]) - start
    moved[torch.cat([is_noise(name, weight) for name, weight in model.named_parameters() if ".lora_" not in name])] = (
        0.0
    )
    moved = torch.cat([moved, *(weight for adapter, weight in tensors if adapter)])
    places = torch.arange(len(moved), dtype=torch.float64)
    return {
        "metrics": {key: [row.get(key) for row in rows] for key in sorted({key for row in rows for key in row})},
        "figures": figures,
        "checkpoints": steps,
        "training": model.training,
        "weights": [float(moved.norm()), float(moved @ places.sin()), float(moved @ (places * 0.01).cos())],
    }


if __name__ == "__main__":
    text = as_text({name: trace(name) for name in CASES})
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
