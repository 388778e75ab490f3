"""DPO, a reward model and one of steps trained a little, by as many processes as WORLD_SIZE says."""

from pathlib import Path
from typing import Any

import torch

from mathrl.core.metrics import without_timings
from mathrl.learners.distributed import Ranks
from mathrl.models.packing import Group
from mathrl.models.scores import make_scorer
from mathrl.params.optimizer import AdamW, Lora
from mathrl.params.train import Dpo, RewardModel
from mathrl.trainers.preference import train_dpo
from mathrl.trainers.reward_model import train_reward_model
from mathrl.trainers.supervised import Item
from tests.trainers import small

# An eps of 1 makes of AdamW's step one that is linear in the gradient: rounding stays rounding.
SHARED = {"steps": 4, "tokens_per_microbatch": 32, "eval_every": 2, "optimizer": AdamW(lr=0.3, eps=1.0, warmup_steps=0)}


def items(kind: str) -> list[Item]:
    """Responses of 1 to 9 tokens, so that processes have shares of different sizes."""
    draw = torch.Generator().manual_seed(7)
    out = []
    for number in range(11):
        lengths = torch.randint(2, 10, (2,), generator=draw).tolist()
        prompt, one, two = (tuple(torch.randint(3, 20, (n,), generator=draw).tolist()) for n in (3, *lengths))
        if kind == "steps":
            out.append(
                Item(
                    Group(prompt, (one,)),
                    (1.0, 0.25)[: 1 + number % 2],
                    (len(one) - 2, len(one) - 1)[-(1 + number % 2) :],
                )
            )
        else:
            out.append(Item(Group(prompt, (one, two))))
    return out


def main(out: Path) -> None:
    torch.set_num_threads(1)
    ranks, found = Ranks(torch.device("cpu")), {}
    for name in ("dpo", "dpo adapters", "pairs", "steps"):
        state = out / f"{name}-{ranks.rank}"
        model: Any = small.policy()[0]
        for weight in model.parameters():
            weight.data.mul_(3 if weight.dim() > 1 else 1)
        training, dev = items(name)[2:], items(name)[:2]
        run = small.training_run(state)
        if name.startswith("dpo"):
            lora = Lora(r=4) if name.endswith("adapters") else None
            params = Dpo(**SHARED, pairs_per_step=5, lora=lora)
            figures = train_dpo(model, training, dev, params, run)
        else:
            model = make_scorer(model)
            settings = RewardModel(**SHARED, batch=5)
            figures = train_reward_model(model, training, dev, settings, 1, run)
            figures |= {"mean": model.config.reward_mean, "std": model.config.reward_std}
        if ranks.rank == 0:
            for row in without_timings(state / "metrics.jsonl"):
                figures |= {f"{row['step']}/{key}": value for key, value in row.items()}
        weights = [weight.detach().flatten() for weight in model.parameters() if weight.requires_grad]
        found[name] = (torch.cat(weights), figures)
    torch.save(found, out / f"rank-{ranks.rank}.pt")
    ranks.close()
