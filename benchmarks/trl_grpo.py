"""The peer of rl_step.py: TRL's GRPOTrainer on the same prompts, its methods wrapped for timing."""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from rl_step import WARM_UP, greedy_accuracy
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from mathrl.compose import load_params
from mathrl.rewards.compose import RewardInput, build_reward


def run_trl(
    options: argparse.Namespace, problems: list[Any], prompts: int, samples: int, max_tokens: int, lr: float
) -> None:
    torch.set_num_threads(options.processes)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    reward = build_reward(load_params().reward)
    lengths: list[float] = []

    def accuracy(completions: list[str], truth: list[str], completion_ids: list[Any], **_: Any) -> list[float]:
        lengths.append(sum(len(ids) for ids in completion_ids) / len(completion_ids))
        items = [RewardInput(text, (answer,)) for text, answer in zip(completions, truth, strict=True)]
        return [score.overall for score in reward.score(items)]

    rows = [{"prompt": problem.question, "truth": problem.answers[0]} for problem in problems]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=prompts * samples, num_generations=samples,
            max_completion_length=max_tokens, temperature=1.0, beta=0.0, epsilon=0.2, epsilon_high=0.28,
            learning_rate=lr, lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=1.0,
            max_steps=options.steps, shuffle_dataset=False, gradient_checkpointing=False, use_cpu=True,
            bf16=options.precision == "bfloat16", report_to=[], save_strategy="no", logging_steps=1,
            disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=accuracy,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        clock.wrap(trainer, "_generate", "generation")
        clock.wrap(trainer, "_generate_and_score_completions", "rollouts")
        clock.wrap(trainer, "_get_per_token_logps_and_entropies", "logprobs", only_without_grad=True)
        trainer.train()
    group = [len(tokenizer(row["prompt"]).input_ids) for row in rows]
    steps = []
    for number, row in enumerate(clock.rows):
        sampled = lengths[number] * prompts * samples
        asked = sum(group[number * prompts : (number + 1) * prompts])
        steps.append(
            {
                "seconds": row["seconds"],
                "generation": row.get("generation", 0.0),
                "logprobs": row.get("logprobs", 0.0),
                "update": row["seconds"] - row["rollouts"],
                "sampled": sampled,
                "trained": sampled - prompts * samples + asked,
                "length": lengths[number],
            }
        )
    # The same arithmetic for both in the evaluation.
    greedy = greedy_accuracy(trainer.model.float().eval(), tokenizer)
    count = sum(weight.numel() for weight in model.parameters())
    cpu = clock.cpu_at_end - clock.cpu_after[WARM_UP - 1]
    options.out.write_text(json.dumps({"steps": steps, "cpu_seconds": cpu, "greedy": greedy, "parameters": count}))


class Clock(TrainerCallback):  # type: ignore[misc]
    """Wall-clock seconds per step and of the wrapped methods within it; CPU-seconds after each step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.now: dict[str, float] = {}
        self.cpu_after: list[float] = []
        self.cpu_at_end = 0.0

    def wrap(self, owner: Any, name: str, key: str, only_without_grad: bool = False) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            out = inner(*args, **named)
            if not (only_without_grad and torch.is_grad_enabled()):
                self.now[key] = self.now.get(key, 0.0) + time.perf_counter() - start
            return out

        setattr(owner, name, timed)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.start = time.perf_counter()
        if not self.rows:
            self.now = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.rows.append({**self.now, "seconds": time.perf_counter() - self.start})
        self.now = {}
        use = resource.getrusage(resource.RUSAGE_SELF)
        self.cpu_at_end = use.ru_utime + use.ru_stime
        self.cpu_after.append(self.cpu_at_end)
