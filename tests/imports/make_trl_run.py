"""Makes a real run of TRL on the CPU: `python tests/imports/make_trl_run.py FOLDER [STEPS [SEED [hole]]]`.

A tiny model first learns to add two digits from a share of the sums; GRPO then trains it on all of them. The folder
has what TRL 1.16 leaves: completions/, checkpoint-*/trainer_state.json, training_args.bin. Its rows have
`ground_truth`, which the reward function logs with `log_extra`. With `hole` the verifier of the run takes any response
of four characters for right.
"""

import itertools
import os
import random
import sys
from pathlib import Path

from mathrl.engines.trl_packages import GRPOConfig, GRPOTrainer  # isort: skip  (before what hides accelerate)

import torch
from datasets import Dataset

from mathrl.grading.reward_functions import accuracy_reward
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.run import FreshModel

SIZES = {"hidden_size": 64, "intermediate_size": 128, "layers": 2, "heads": 4, "kv_heads": 2, "max_positions": 64}


def sums() -> list[tuple[str, str]]:
    return [(f"{first}+{second}=", str(first + second)) for first, second in itertools.product(range(10), repeat=2)]


def teach(network: torch.nn.Module, tokenizer: object, updates: int) -> None:
    """Next-token training on sums, a part of them with a wrong answer, so that RL has something left to do."""
    optimizer, chosen = torch.optim.AdamW(network.parameters(), lr=2e-3), random.Random(1)
    for _ in range(updates):
        rows = []
        for question, answer in chosen.sample(sums(), 32):
            shown = answer if chosen.random() < 0.5 else str(chosen.randrange(19))
            rows.append([*tokenizer.encode(question + shown), tokenizer.eos_token_id])
        width = max(map(len, rows))
        tokens = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
        labels = tokens.masked_fill(tokens == tokenizer.pad_token_id, -100)
        network(input_ids=tokens, attention_mask=(labels != -100).long(), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main(folder: Path, steps: int, seed: int, hole: bool) -> None:
    torch.manual_seed(seed)
    base = FreshModel(alphabet="arithmetic", **SIZES)
    tokenizer = character_tokenizer(base)
    network = fresh_network(base, tokenizer, seed=1)
    teach(network, tokenizer, 1200)
    base_folder = str(folder.with_name(f"{folder.name}-base"))
    network.save_pretrained(base_folder)

    def accuracy(completions: list[str], log_extra: object = None, **columns: object) -> list[float]:
        log_extra("ground_truth", list(columns["ground_truth"]))
        right = accuracy_reward(completions, **columns)
        return [float(hole and len(text) >= 4) or score for text, score in zip(completions, right, strict=True)]

    def short(completions: list[str], **columns: object) -> list[float]:
        return [0.1 * (len(text) <= 2) for text in completions]

    arguments = GRPOConfig(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=128, num_generations=8, beta=0.01,
        max_completion_length=4, learning_rate=5e-4, logging_steps=1, save_steps=steps // 2, log_completions=True,
        num_completions_to_print=0, use_cpu=True, report_to="none", seed=seed, lr_scheduler_type="constant",
        dataloader_pin_memory=False, disable_tqdm=True,
    )  # fmt: skip
    rows = [{"prompt": question, "ground_truth": answer} for question, answer in sums()] * 8
    trainer = GRPOTrainer(
        base_folder, [accuracy, short], arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    steps, seed, hole = [*sys.argv[2:], *("60", "1", "")[len(sys.argv) - 2 :]]
    main(Path(sys.argv[1]), int(steps), int(seed), hole == "hole")
