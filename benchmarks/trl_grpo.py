"""The peer of rl_step.py: TRL's GRPOTrainer on the same checkpoint, prompts and reward, timed by phase.

Run by rl_step.py in a process of its own; writes a JSON report and the trained model.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from mathrl.core.problems import read_problems
from mathrl.data.templates import prompt_text
from mathrl.params.run import Prompt
from mathrl.rewards import grade


class Clock:
    """Wall and CPU seconds by phase; phases do not nest."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)

    def around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.wall[phase] += time.perf_counter() - wall
                self.cpu[phase] += time.process_time() - cpu

        return timed


class StepTimes(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = time.perf_counter(), time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.wall.append(time.perf_counter() - self.start[0])
        self.cpu.append(time.process_time() - self.start[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "problems", "output"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], required=True)
    for name, default in (("steps", 20), ("prompts", 32), ("group", 16), ("max-tokens", 64), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=3e-4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    problems = read_problems(options.problems)
    rows = [{"prompt": prompt_text(p, Prompt(), tokenizer), "truth": list(p.answers)} for p in problems]

    def reward(completions: list[str], truth: list[list[str]], **_: Any) -> list[float]:
        return [
            float(grade(text, answers, extraction="strict").correct)
            for text, answers in zip(completions, truth, strict=True)
        ]

    config = GRPOConfig(
        output_dir=str(options.output / "trainer"),
        per_device_train_batch_size=options.prompts * options.group,
        num_generations=options.group,
        max_steps=options.steps,
        max_completion_length=options.max_tokens,
        learning_rate=options.lr,
        lr_scheduler_type="constant",
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        scale_rewards="group",
        num_iterations=1,
        gradient_checkpointing=False,
        bf16=options.precision == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        adam_beta2=0.95,
        max_grad_norm=1.0,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        seed=0,
    )
    steps, clock = StepTimes(), Clock()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[steps],
    )
    # generation; scoring and whatever stands around it; the forward pass with its log-probs and the loss.
    trainer._generate = clock.around("generation", trainer._generate)
    trainer.compute_loss = clock.around("log-probs and loss", trainer.compute_loss)
    trainer.train()
    trainer.save_model(str(options.output / "model"))
    tokenizer.save_pretrained(options.output / "model")
    # The first step warms caches up: phases are means over all steps, the step time is of the others.
    report = {
        "seconds_a_step": sum(steps.wall[1:]) / (options.steps - 1),
        "cpu_seconds_a_step": sum(steps.cpu[1:]) / (options.steps - 1),
        "phases": {phase: clock.cpu[phase] / options.steps for phase in clock.cpu},
        "reward": [row["reward"] for row in trainer.state.log_history if "reward" in row],
    }
    report["phases"]["backward, optimizer, rest"] = report["cpu_seconds_a_step"] - sum(
        report["phases"].values()
    )
    (options.output / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
