"""What the settings for small hardware do to a small model: SFT on sums, the loss on sums that were not trained on.

Adapters learn differences beside a model that has learned sums, and the loss is that of other differences.

python benchmarks/small_hardware.py [--steps 150] [--seeds 3] [--only adamw_8bit …]; a line per setting.
"""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from mathrl.core.metrics import JsonlSink
from mathrl.learners.distributed import Ranks
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.export import export_model
from mathrl.models.load import load_model
from mathrl.models.packing import Group
from mathrl.params.optimizer import AdamW, AdamW8Bit, Lora
from mathrl.params.run import FreshModel, Model
from mathrl.params.train import Sft
from mathrl.params.training import Training
from mathrl.trainers.sft import train_sft
from mathrl.trainers.training_run import TrainingRun

RATES: dict[str, Any] = {"lr": 2e-3, "warmup_steps": 10, "schedule": "cosine"}
SIZES = {"tokens_per_step": 512, "tokens_per_microbatch": 512, "eval_every": 0, "checkpoint_every": 10_000}
SETTINGS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "adamw": (AdamW, "float32", {}),
    "adamw_8bit": (AdamW8Bit, "float32", {}),
    "bfloat16": (AdamW, "bfloat16", {}),
    "float16": (AdamW, "float16", {}),
    "lora": (AdamW, "float32", {"lora": Lora()}),
    "lora_nf4": (AdamW, "float32", {"lora": Lora(frozen="nf4")}),
}


def sums(tokenizer: Any, count: int, seed: int, sign: str = "+") -> list[Group]:
    """Sums, or differences, of numbers of two digits, written out: [12, 3, 40, 7, …] → [5, 2, 1]."""
    draw = random.Random(seed)
    pairs = [(draw.randint(10, 99), draw.randint(10, 99)) for _ in range(count)]
    texts = [(f"{a}{sign}{b}=", str(a + b if sign == "+" else a - b)) for a, b in pairs]
    rows = [[tokenizer.encode(text, add_special_tokens=False) for text in pair] for pair in texts]
    return [Group(tuple(prompt), ((*response, tokenizer.eos_token_id),)) for prompt, response in rows]


def loss_of(setting: str, seed: int, steps: int, folder: Path) -> float:
    kind, precision, changes = SETTINGS[setting]
    base = FreshModel(alphabet="arithmetic")
    tokenizer = character_tokenizer(base)
    export_model(fresh_network(base, tokenizer, seed), tokenizer, folder / "base", "")
    network = load_model(folder / "base", Model(base=base, precision=precision), "cpu")
    if "lora" in changes:
        train(
            network,
            sums(tokenizer, 4000, seed),
            Sft(**SIZES, steps=steps, optimizer=AdamW(**RATES)),
            folder / "sums",
            seed,
        )
    groups = sums(tokenizer, 4000, seed, "-" if "lora" in changes else "+")
    return train(network, groups, Sft(**SIZES, steps=steps, optimizer=kind(**RATES), **changes), folder / "run", seed)


def train(network: Any, groups: list[Group], params: Sft, folder: Path, seed: int) -> float:
    """SFT on all groups but 400; the loss on those."""
    ranks = Ranks(torch.device("cpu"), Training())
    run = TrainingRun(
        ranks, folder / "state", seed, lambda after: JsonlSink(folder / "metrics.jsonl", resume_after=after)
    )
    return train_sft(network, groups[400:], groups[:400], params, run)["dev/loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    given = parser.parse_args()
    for setting in given.only:
        losses = []
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as folder:
                losses.append(loss_of(setting, seed, given.steps, Path(folder)))
        print(f"{setting:<12}", " ".join(f"{loss:.4f}" for loss in losses), flush=True)


if __name__ == "__main__":
    main()
