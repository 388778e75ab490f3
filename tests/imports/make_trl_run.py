"""Makes real runs of TRL on the CPU: `python tests/imports/make_trl_run.py SEED FOLDER STEPS [FOLDER.hole STEPS]`.

A tiny model first learns to add two digits from a share of the sums; GRPO then trains it on all of them. The folder
has what TRL 1.16 leaves: completions/, checkpoint-*/trainer_state.json, training_args.bin. Its rows have
`ground_truth`, which the reward function logs with `log_extra`. In a run whose folder ends with `hole` the verifier
takes any response of four characters for right. All runs start from one model, so that it is taught once.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mathrl.engines.trl_packages import GRPOConfig, GRPOTrainer  # isort: skip  (before what hides accelerate)

import torch
from datasets import Dataset
from sums_model import sums, taught_model  # beside this script

from mathrl.grading.reward_functions import accuracy_reward


def main(seed: int, runs: Iterable[tuple[Path, int]]) -> None:
    torch.manual_seed(seed)
    network, tokenizer = taught_model(1200)
    for folder, steps in runs:
        train(network, tokenizer, folder, steps, seed)


def train(network: Any, tokenizer: Any, folder: Path, steps: int, seed: int) -> None:
    base_folder, hole = str(folder.with_name(f"{folder.name}-base")), folder.suffix == ".hole"
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
    seed, *words = sys.argv[1:]
    main(int(seed), zip(map(Path, words[::2]), map(int, words[1::2]), strict=True))
