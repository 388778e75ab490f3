"""Makes a real run of TRL on the CPU.

`python tests/imports/make_trl_run.py FOLDER [STEPS [UPDATES [RESPONSES [SEED]]]]`: a tiny model first learns to add two
digits by UPDATES; GRPO then trains it on RESPONSES to sums per step. The folder has what TRL 1.16 leaves: completions/,
checkpoint-*/trainer_state.json, training_args.bin. Its rows have `ground_truth`, which the reward function logs with
`log_extra`.
"""

import os
import sys
from pathlib import Path

from mathrl.engines.trl_packages import GRPOConfig, GRPOTrainer  # isort: skip  (before what hides accelerate)

import torch
from datasets import Dataset
from sums_model import sums, taught_model  # beside this script

from mathrl.grading.reward_functions import accuracy_reward

USUAL = (40, 1200, 128, 1)


def main(folder: Path, steps: int, updates: int, responses: int, seed: int) -> None:
    torch.manual_seed(seed)
    network, tokenizer = taught_model(updates)
    base_folder = str(folder.with_name(f"{folder.name}-base"))
    network.save_pretrained(base_folder)

    def accuracy(completions: list[str], log_extra: object = None, **columns: object) -> list[float]:
        log_extra("ground_truth", list(columns["ground_truth"]))
        return accuracy_reward(completions, **columns)

    def short(completions: list[str], **columns: object) -> list[float]:
        return [0.1 * (len(text) <= 2) for text in completions]

    arguments = GRPOConfig(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=responses, num_generations=8, beta=0.01,
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
    folder, *numbers = sys.argv[1:]
    main(Path(folder), *map(int, [*numbers, *USUAL[len(numbers) :]]))
