"""A GRPO step of the 0.5B preset's sizes, split into its parts, with either engine.

128 prompts of 128 tokens x 8 responses of 512 tokens; random weights, so every response ends at its limit, and random
rewards, so that every group has a gradient. The first of four steps does not count.
"""

import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.workload import GIB, run_params, write_model
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Problem
from mathrl.grading.verdict import Verdict
from mathrl.learners.distributed import Ranks
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.model_shape import shape_of
from mathrl.planning.memory import plan_memory
from mathrl.rewards.compose import RewardFunction, RewardResult
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.rl import train_rl
from mathrl.trainers.training_run import TrainingRun

PROMPT, STEPS = 128, 4
PARTS = ("step", "rollout", "reward", "scores", "update", "sync")


class RandomReward(RewardFunction):
    """A reward that every group has a gradient with."""

    draw = random.Random(0)

    def score(self, items: Any) -> list[RewardResult]:
        verdict = Verdict(False, None, "none", "", 0.0)
        return [RewardResult(self.draw.random(), False, {}, verdict) for _ in items]


def main(device: torch.device, toy: bool, engine: str = "torch") -> dict[str, Any]:
    prompts, samples, tokens = (4, 4, 32) if toy else (128, 8, 512)
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "model", "toy" if toy else "0.5B", device)
        params = run_params(
            source, f"prompt.max_tokens={PROMPT}", f"rl.steps={STEPS}", f"rl.prompts_per_step={prompts}",
            f"rl.group_size={samples}", f"rl.max_tokens={tokens}", f"rollout.engine={engine}",
            "rl.tokens_per_microbatch=16384", f"rollout.max_sequences={prompts * samples}",
            "rollout.vllm.memory_share=0.4", f"rollout.vllm.max_model_length={PROMPT + tokens}",
        )  # fmt: skip
        tokenizer = load_tokenizer(source)
        model = load_model(source, params.model, device)
        shape = shape_of(model.config)
        sampler = Sampler(
            training_engine(model, source, tokenizer, params.model, params.rollout, False), tokenizer, params.prompt
        )
        problems = [
            Problem(id=f"p{number}", question=str(number % 10) * PROMPT, answers=("1",), source="random", split="rl")
            for number in range(prompts * STEPS)
        ]
        rows: list[dict[str, Any]] = []

        class Sink(JsonlSink):
            def log(self, step: int, metrics: Any) -> None:
                rows.append(dict(metrics))

        ranks, state = Ranks(device, params.training), Path(folder) / "state"
        state.mkdir()
        run = TrainingRun(ranks, state, 0, lambda resume_after: Sink(state / "metrics.jsonl"))
        train_rl(model, sampler, problems, (), RandomReward(params.reward), params.rl, run)
    mean = {key: sum(row.get(key, 0.0) for row in rows[1:]) / len(rows[1:]) for key in rows[1]}
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    planned = plan_memory(shape, params, "rl", device.type, gpu_memory=float(total))
    return {
        "engine": engine,
        "seconds": {part: mean.get(f"time/{part}", 0.0) for part in PARTS},
        "sampled_tokens_per_s": prompts * samples * mean["response_length"] / mean["time/rollout"],
        "trained_tokens_per_s": mean["trained_tokens"] / mean["time/update"],
        "alignment": mean["rollout/logprob_alignment"],
        "canary": mean.get("rollout/canary_gap", 0.0),
        "planned_gib": planned.peak / GIB,
        "peak_gib": gpu_peak(device) / GIB,
    }


def gpu_peak(device: torch.device) -> float:
    """What is not free on the GPU and not cached by torch, and torch's peak: vLLM's pool is outside torch's count."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return max(total - free - torch.cuda.memory_reserved(device), 0) + torch.cuda.max_memory_allocated(device)
